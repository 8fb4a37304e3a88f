"""Kernels read off the bytes of events, against the same events parsed."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ncclt.profile.readers.kineto.exposure import KernelTimeline
from ncclt.profile.readers.kineto.trace import note_kernels

PLAIN = {
    "ph": "X",
    "cat": "kernel",
    "name": "f<{lambda()#1}>",
    "pid": 0,
    "tid": 7,
    "ts": 1365627866520.196,
    "dur": 2.08,
}
OTHERS = [
    {"ph": "X", "cat": "cpu_op", "name": "kernel", "pid": 0, "tid": 7, "ts": 1, "dur": 2},
    {"ph": "X", "cat": "cpu_op", "name": 'a "cat": "kernel", "name": "b", "pid": 0, "tid": 1, "ts": 1, "dur": 2,'},
]


def _noted(rows, parse=None, **layout):
    """Return the timeline read off the bytes, and whether the events had to be parsed."""
    data = json.dumps(rows, **layout).encode()[1:-1].strip()
    asked = []
    timeline = KernelTimeline()
    note_kernels(timeline, data, lambda: asked.append(data) or json.loads(b"[" + data + b"]"))
    return timeline, bool(asked)


def _timeline(*kernels):
    timeline = KernelTimeline()
    for kernel in kernels:
        timeline.add_kernel(*kernel)
    return timeline


def test_kernels_laid_out_as_usual_are_not_parsed():
    """Among others that only mention the word."""
    for layout in [{}, {"indent": 2}, {"indent": 8}, {"separators": (",", ":")}]:
        nccl = {
            **PLAIN,
            "name": "ncclDevKernel_AllReduce(x)",
            "cat": "Kernel",
            "pid": 3,
            "ts": 5,
            "args": {"device": 3},
        }
        timeline, parsed = _noted([*OTHERS, PLAIN, *OTHERS, nccl], **layout)
        assert timeline == _timeline(
            (PLAIN["name"], PLAIN["ts"], PLAIN["dur"], "0"), ("ncclDevKernel_AllReduce(x)", 5.0, 2.08, "3")
        )
        assert not parsed


def test_kernels_of_other_shapes_are_parsed():
    """And so are those beside them; what lacks a time or is no complete event adds nothing."""
    for strange in [
        dict(reversed(PLAIN.items())),
        {**PLAIN, "name": 'a "quoted" name'},
        {**PLAIN, "name": "ends with \\"},
        {**PLAIN, "pid": "GPU 0"},
        {**PLAIN, "ts": "12.5"},
        {**PLAIN, "dur": None},
        {key: PLAIN[key] for key in ("ph", "cat", "name")},
        {**PLAIN, "ph": "B"},
        {"cat": "kernel", **PLAIN},
        7,
    ]:
        timeline, parsed = _noted([PLAIN, strange, PLAIN])
        assert parsed == (strange != 7)
        kernels = [PLAIN, strange, PLAIN] if parsed else [PLAIN, PLAIN]
        expected = KernelTimeline()
        for row in kernels:
            if row["ph"] == "X" and row.get("dur"):
                expected.add_kernel(row["name"], float(row["ts"]), row["dur"], str(row["pid"]))
        assert timeline == expected


def test_category_spelled_by_number_is_found():
    """As any JSON writer may."""
    data = json.dumps(PLAIN).replace('"kernel"', '"\\u006bernel"').encode()
    timeline = KernelTimeline()
    note_kernels(timeline, data, lambda: [json.loads(data)])
    assert timeline == _timeline((PLAIN["name"], PLAIN["ts"], PLAIN["dur"], "0"))


@given(start=st.floats(0, 1e16), duration=st.floats(0, 1e9))
def test_numbers_are_those_of_the_parser(start, duration):
    """To the last digit, exponents included."""
    timeline, parsed = _noted([{**PLAIN, "ts": start, "dur": duration}])
    assert timeline == _timeline((PLAIN["name"], start, duration, "0"))
    assert not parsed
