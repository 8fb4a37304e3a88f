"""What is picked from the stream is what is picked from the parsed document."""

import json
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclt.profile.numbers import parse_float
from ncclt.profile.readers.kineto import stream as kineto_stream
from ncclt.profile.readers.kineto.calls import read_calls
from ncclt.profile.readers.kineto.reader import KinetoReader, kernel_times
from ncclt.profile.readers.kineto.trace import EventPicker, find_launches, read_trace
from ncclt.profile.source import documents, load_json
from ncclt.profile.workload_builder import drop_answered_receives

_NAMES = st.sampled_from(
    [
        "record_param_comms",
        "record_param_comms ",
        "nccl:all_reduce",
        "gloo:x",
        "xccl:send 0->1",
        "ucc",
        "c10d::barrier",
        "c10d::_allgather_base_",
        "ncclDevKernel_AllReduce",
        "ncclSymkDevKernel",
        "NCCLKernel",
        "ProfilerStep#7",
        "ProfilerStep#",
        "aten::mm",
        "Memcpy DtoD (Device -> Device)",
        "::{lambda()#1}",
        "a},\n  {b",
        "é",
    ]
)
_CATEGORIES = st.sampled_from(
    ["cpu_op", "user_annotation", "Operator", "kernel", "Kernel", "gpu_memcpy", "cuda_runtime", "ac2g", 7]
)
_ROWS = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "f", None]), "cat": _CATEGORIES, "name": _NAMES | st.none()},
    optional={
        "ts": st.floats(0, 1e15) | st.sampled_from([0, "7.5", None, "x"]),
        "dur": st.floats(-1, 1e6),
        "pid": st.integers(),
        "tid": st.sampled_from([1, "PyTorch Profiler"]),
        "args": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "Collective name": st.sampled_from(["allreduce", "barrier", None]),
                "In msg nelems": st.integers(),
                "correlation": st.sampled_from([1, 2, "3", " 3", 4.0, None]),
                "Input Dims": st.just([[1, 2], []]),
                "odd": st.just([{"ph": "X", "cat": "cpu_op", "name": "nccl:all_reduce", "ts": 1, "dur": 1}]),
            },
        ),
    },
)


def _as_kineto(rows, head):
    """Lay a document out as Kineto does: two spaces, an event per paragraph."""
    events = ",\n".join("  " + json.dumps(row).replace('"args": {', '\n    "args": {\n      ') for row in rows)
    return json.dumps(head)[:-1] + ',\n  "traceEvents": [\n' + events + '\n  ],\n  "traceName": "x"\n}'


def _escaped(text):
    """Write one letter of every interesting name by its number, as any JSON writer may."""
    for word in ("nccl", "gloo", "c10d", "record", "Profiler", '"ts"', "correlation"):
        text = text.replace(word, word.replace(word[1], f"\\u{ord(word[1]):04x}"))
    return text


_WRITERS = [
    _as_kineto,
    lambda rows, head: _escaped(_as_kineto(rows, head)),
    lambda rows, head: json.dumps({**head, "traceEvents": rows}, separators=(",", ":")),
    lambda rows, head: json.dumps({"traceEvents": rows, **head}, indent=4, ensure_ascii=False),
    lambda rows, head: json.dumps({"traceEvents": [row and dict(reversed(row.items())) for row in rows], **head}),
]


def _full(document):
    """Pick from the whole parsed document."""
    parsed, picker = load_json(document), EventPicker()
    rows = parsed["traceEvents"]
    for row in rows:
        picker.take(row)
    trace = picker.trace(parsed, document.label)
    for row in (one for one in rows if one and one.get("ph") == "X"):
        name, times = str(row["name"]), [(parse_float(row.get(k)) or 0.0) for k in ("ts", "dur")]
        if row.get("cat") in ("kernel", "Kernel"):
            trace.timeline.add_kernel(name, *times, str(row.get("pid")))
        elif row.get("cat") == "gpu_memcpy" and name.startswith("Memcpy DtoD"):
            trace.timeline.add_copy(*times, str(row.get("pid")))
    return trace, rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(_ROWS | st.none(), max_size=8),
    writer=st.sampled_from(_WRITERS),
    block=st.sampled_from([1, 50, 10**6]),
)
def test_streaming_and_parsing_agree(tmp_path, monkeypatch, rows, writer, block):
    """Field for field, whatever the layout, the order of the keys and the borders of the blocks."""
    monkeypatch.setattr(kineto_stream, "BLOCK_BYTES", block)
    path = tmp_path / "trace.json"
    path.write_text(writer(rows, {"distributedInfo": {"rank": 1, "world_size": 4}, "baseTimeNanoseconds": 1}))
    for document in documents(path):
        streamed, found = read_trace(document), find_launches(document, {1, 2, 3})
        assert set(found) == {
            n
            for row in rows
            if row and row["cat"] == "cuda_runtime"
            for n in (1, 2, 3)
            if str((row.get("args") or {}).get("correlation")).strip() == str(n)
        }
    for document in documents(path):
        parsed, _ = _full(document)
    assert streamed == parsed


@pytest.mark.shared
def test_streaming_and_parsing_agree_on_real_traces(shared_data):
    """Every public Kineto file, with the launches of all of its kernels."""
    paths = [p for p in (shared_data / "traces").rglob("*.gz") if "kineto" in str(p.relative_to(shared_data))]
    assert len(paths) >= 12
    for path in paths:
        parsed = {document.label: _full(document) for document in documents(path)}
        for document in documents(path):
            trace, rows = parsed[document.label]
            assert read_trace(document) == trace
            wanted = {k.correlation for k in trace.kernels if k.correlation is not None}
            found = find_launches(document, wanted)
            runtime = [r for r in rows if r.get("cat") in ("cuda_runtime", "cuda_driver", "Runtime")]
            assert set(found) == {r["args"]["correlation"] for r in runtime} & wanted


def test_kernels_are_joined_to_their_launches_in_every_rank_of_an_archive(new_trace, tmp_path):
    """The second look at one member must not disturb the reading of the next; launches may stand before or behind."""
    archive = tmp_path / "ranks.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for rank in range(3):
            trace = new_trace().job(rank, 3)
            for number in range(2):
                call = trace.shaped("nccl:all_reduce", ([256], "float"))
                kernel = {"correlation": number, "dur": 10.0 * (rank + 1)}
                launch = {"correlation": number, "at": call["ts"] + 1, "dur": 1}
                events = [("ncclKernel_AllReduce(x)", "kernel", kernel), ("cudaLaunchKernel", "cuda_runtime", launch)]
                for name, category, fields in events if number else reversed(events):
                    trace.event(name, category, **fields)
            tar.add(trace.write(f"{rank}.json"), arcname=f"{rank}.json")
    workload = KinetoReader().read([archive], name="t")
    assert workload.provenance.ranks_read == (0, 1, 2)
    assert [m.recorded_us for m in workload.messages] == [10.0]
    assert not any("belong to no recorded call" in note for note in workload.provenance.notes)


def test_only_launches_of_unexplained_kernels_are_looked_for(trace):
    """A kernel with the identity of its operator needs no second look at the file."""
    row = trace.comm("allreduce", 256)
    row["args"]["External id"] = 7
    trace.event("ncclDevKernel_X(x)", "kernel", correlation=1, **row["args"])
    asked = []
    for document in documents(trace.write()):
        picked = read_trace(document)
    calls = drop_answered_receives(read_calls(picked).calls)
    times = kernel_times(picked, calls, find_launches=lambda numbers: asked.append(numbers) or {})
    assert asked == [set()]
    assert times.unmatched == 0


def test_barriers_inside_barriers_cover_what_starts_in_any_of_them(trace):
    """The operator around the call ends last; another thread has barriers of its own."""
    outer = trace.shaped("c10d::barrier", ([1], "float"))
    outer["dur"] = 100
    inner = trace.comm("barrier", 1)
    assert outer["ts"] < inner["ts"] < outer["ts"] + 50
    for offset, thread in ((-1, 1), (0, 1), (60, 1), (100, 1), (101, 1), (60, 2)):
        row = trace.comm("allreduce", 1)
        row.update(ts=outer["ts"] + offset, tid=thread)
    for document in documents(trace.write()):
        picked = read_trace(document)
    found = [(e.start_us - outer["ts"], e.thread) for e in picked.comms if picked.in_barrier(e)]
    assert found == [(0, "1/1"), (60, "1/1"), (100, "1/1")]
