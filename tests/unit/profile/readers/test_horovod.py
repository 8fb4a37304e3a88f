"""Horovod timelines: fusion groups, files that were never closed, and what is no timeline."""

import json
from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import parse_dtype
from ncclt.core.workload import WHOLE_FILE
from ncclt.errors import TraceError
from ncclt.profile import read_workload
from ncclt.profile.readers import horovod
from ncclt.profile.readers.horovod import HorovodReader, TensorCall
from ncclt.testing.reader_contract import message_table


class Timeline:
    """Writes events as Horovod does: a tensor is a process of the picture."""

    def __init__(self):
        self.rows = [
            {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1.7e15}}
        ]
        self.pids = {}

    def pid(self, tensor):
        if tensor not in self.pids:
            self.pids[tensor] = len(self.pids) + 1
            row = {"name": "process_name", "ph": "M", "pid": self.pids[tensor], "args": {"name": tensor}}
            self.rows.append(row)
        return self.pids[tensor]

    def negotiate(self, tensor, at, ranks=2):
        pid = self.pid(tensor)
        self.rows.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": pid})
        self.rows += [{"ph": "X", "name": str(r), "ts": at, "pid": pid, "dur": 0} for r in range(ranks)]
        self.rows.append({"ph": "E", "ts": at, "pid": pid})

    def reduce(self, tensor, shape, start, end, *, dtype="float32", activity="NCCL_ALLREDUCE", op="ALLREDUCE"):
        pid = self.pid(tensor)
        args = {"args": {"dtype": dtype, "shape": shape}} if shape else {}
        self.rows += [
            {"ph": "B", "name": op, "ts": start - 2, "pid": pid},
            {"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": start - 1, "pid": pid},
            {"ph": "E", "ts": start, "pid": pid},
            {"ph": "B", "name": activity, "ts": start, "pid": pid},
            {"ph": "E", "ts": end, "pid": pid},
            {"ph": "E", "ts": end + 1, "pid": pid, **args},
        ]

    def text(self, ending="\n]"):
        return "[\n" + ",\n".join(json.dumps(row) for row in self.rows) + ending


@pytest.fixture
def timeline():
    return Timeline()


@pytest.fixture
def read(read_files):
    return lambda text: read_files(HorovodReader(), [text])


found = partial(message_table, fields=("dtype", "size_bytes", "group_size"))


def test_overlapping_tensors_are_one_message(timeline, read):
    """Two steps; their groups differ, so each size comes in half of the steps."""
    for step, at in enumerate((100, 1000)):
        for tensor in ("a", "b", "c"):
            timeline.negotiate(tensor, at - 50)
        timeline.reduce("a", "[512, 1000]", at, at + 100)
        timeline.reduce("b", "[1000]", at + 1, at + 101)
        timeline.reduce("c", "[24]", at + (3 if step else 200), at + (103 if step else 300))
    workload = read(timeline.text())
    together = 4 * (512000 + 1000)
    assert found(workload) == {
        ("float32", together + 96, 2): 0.5,
        ("float32", together, 2): 0.5,
        ("float32", 96, 2): 0.5,
    }
    origin = workload.provenance
    assert (origin.steps, origin.world_size, origin.created) == (2, 2, "2023-11-14")
    assert "steps are not marked: 3 of 3 tensors were sent 2 x, so 2 steps" in origin.notes
    assert origin.detail["size_clusters"] == "96 B x1, 1.96 MiB x2"
    assert any("vary from step to step" in note for note in origin.notes)
    assert min(m.recorded_us for m in workload.messages) == 100


def test_every_backend_has_its_activity(timeline, read):
    """The copies into and out of the fusion buffer are no communication."""
    for activity in ["NCCL_ALLREDUCE", "MPI_ALLREDUCE", "GLOO_ALLREDUCE", "CCL_ALLREDUCE"]:
        timeline.reduce("a", "[8]", 100, 200, activity=activity)
        assert found(read(timeline.text())) == {("float32", 32, 0): 1}


def test_chain_of_overlaps_is_not_one_group(timeline, read):
    """The third begins when the first has ended: they cannot have been one message."""
    timeline.reduce("a", "[1]", 100, 200)
    timeline.reduce("b", "[1]", 150, 300)
    timeline.reduce("c", "[1]", 250, 400)
    assert found(read(timeline.text())) == {("float32", 8, 0): 1, ("float32", 4, 0): 1}


def test_dtypes_and_sets_of_ranks_are_never_fused(timeline, read):
    """Horovod fuses neither."""
    timeline.negotiate("c", 50, ranks=4)
    timeline.negotiate("d", 50, ranks=2)
    for tensor, dtype in (("a", "float32"), ("b", "float16"), ("c", "float32"), ("d", "float32")):
        timeline.reduce(tensor, "[16]", 100, 200, dtype=dtype)
    # a and b were never negotiated here: they count as the whole job, of which 4 ranks are seen.
    assert found(read(timeline.text())) == {("float32", 128, 4): 1, ("float16", 32, 4): 1, ("float32", 64, 2): 1}


def test_scalar_has_one_element_and_empty_tensors_none(timeline, read):
    """`[]` is a shape, `[0, 5]` is nothing to send."""
    timeline.reduce("loss", "[]", 100, 200, dtype="float64")
    timeline.reduce("empty", "[0, 5]", 300, 400)
    assert found(read(timeline.text())) == {("float64", 8, 0): 1}


def test_tensor_is_once_in_a_message(timeline, read):
    """Its second call is the next message, however long the first one lasted."""
    timeline.reduce("a", "[8]", 100, 500)
    timeline.reduce("a", "[8]", 200, 600)
    workload = read(timeline.text())
    assert workload.messages[0].calls_per_step * workload.provenance.steps == 2


def test_closing_bracket_may_be_missing(timeline, read):
    """Older releases never write it; nothing is missing then."""
    for ending in ["", ",", ",\n", "\n]", "]\n"]:
        timeline.reduce("a", "[8]", 100, 200)
        workload = read(timeline.text(ending))
        assert found(workload) == {("float32", 32, 0): 1}
        assert not any("cut off" in note for note in workload.provenance.notes)


def test_cut_timeline_is_read_as_far_as_it_goes_and_says_so(timeline, read):
    """Wherever it is cut, between events or inside one."""
    timeline.reduce("a", "[8]", 100, 200)
    whole = timeline.text("")
    timeline.reduce("b", "[8]", 300, 400)
    longer = timeline.text("")
    for end in range(len(whole) + 3, len(longer) - 1, 7):
        workload = read(longer[:end])
        assert found(workload) == {("float32", 32, 0): 1}
    assert any("cut off at its end" in note for note in workload.provenance.notes)


def test_other_operations_are_left_out_with_their_reason(timeline, read):
    """Broadcasts have no size; gathers may be uneven."""
    timeline.reduce("a", "[8]", 100, 200)
    timeline.reduce("w", "", 300, 400, op="BROADCAST", activity="NCCL_BCAST")
    timeline.reduce("g", "[10, 3]", 500, 600, op="ALLGATHER", activity="MPI_ALLGATHER")
    timeline.reduce("s", "[8]", 700, 800, activity="SOMETHING_ELSE")
    notes = read(timeline.text()).provenance.notes
    assert "left out: 1 x BROADCAST: the timeline does not give its size" in notes
    assert "left out: 1 x ALLGATHER: the timeline does not give the part of each rank" in notes
    assert "left out: 1 x ALLREDUCE without its communication" in notes


def test_unequal_tensors_make_no_steps(timeline, read):
    """Where no number of calls is that of most tensors, nobody knows the steps."""
    for tensor, times in (("a", 1), ("b", 2), ("c", 3)):
        for turn in range(times):
            at = 1000 * turn + 100 * ord(tensor)
            timeline.reduce(tensor, "[8]", at, at + 50)
    origin = read(timeline.text()).provenance
    assert origin.steps == 0
    assert WHOLE_FILE in origin.notes


def test_reading_stops_at_the_largest_number_of_calls(timeline, read, monkeypatch):
    """Memory is bounded, and the profile says that it is partial."""
    monkeypatch.setattr("ncclt.profile.readers.horovod.CALLS", 2)
    for turn in range(5):
        timeline.reduce("a", "[8]", 100 * turn + 100, 100 * turn + 150)
    workload = read(timeline.text())
    assert workload.provenance.steps == 2
    assert any(note.startswith("only the first") for note in workload.provenance.notes)


def test_what_is_no_timeline_is_refused(tmp_path):
    """With the reason, however deep or long."""
    for text, why in [
        ('{"traceEvents": []}', "no JSON array"),
        ("[]", "no operation in it completed"),
        ('[{"ph": "B", "ts": 1, "pid": 1}, nonsense' + " " * 70000, "is damaged"),
        ("[" + '{"a":' * 30000, "is damaged"),
        ("[" + '"' + "x" * 200000, "is damaged"),
    ]:
        path = tmp_path / "timeline.json"
        path.write_text(text)
        with pytest.raises(TraceError, match=why) as caught:
            HorovodReader().read([path], name="run")
        assert caught.value.hint


def test_impossible_tensors_are_refused(timeline, read):
    """A size that cannot be is not stored."""
    for dtype, shape in [("complex", "[8]"), ("float32", "[99999999999, 99999999999]")]:
        timeline.reduce("a", shape, 100, 200, dtype=dtype)
        with pytest.raises(TraceError, match="tensor 'a'"):
            read(timeline.text())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from("abcdef")), max_size=40))
def test_groups_keep_every_element_once(calls):
    """However intervals lie, no byte is lost or doubled, and no group holds a tensor twice."""
    parts = [
        TensorCall(tensor=t, dtype="int8", elements=1, start_us=start, end_us=start + length, ranks=2)
        for start, length, t in calls
    ]
    groups = horovod.group_tensors(parts, world_size=2)
    assert sum(message.size_bytes for message, _group in groups) == len(parts)
    assert sum(len(group.calls) for _message, group in groups) == len(parts)


@pytest.mark.shared
def test_real_timeline_gives_the_extractors_groups(shared_data):
    """Equal but for one dtype: the extractor writes float32 for all, and the trace says float64 of a tensor of 7."""
    traces = shared_data / "traces"
    (path,) = (traces / "generated").glob("horovod*")
    workload = read_workload([path], name="real")
    expected = Counter()
    for row in json.loads((traces / "expected.json").read_text())[f"generated/{path.name}"]["messages"]:
        dtype = "float64" if row["size_bytes"] == 56 else parse_dtype(row["dtype"])
        expected[dtype, row["size_bytes"], row["group_size"]] += row["calls"]
    steps = workload.provenance.steps
    assert steps == 3
    assert Counter({key: round(calls * steps, 6) for key, calls in found(workload).items()}) == expected
    assert sum(size * calls for (_dtype, size, _group), calls in expected.items()) == 3 * 46758048 + 56
    notes = workload.provenance.notes
    assert "left out: 122 x BROADCAST: the timeline does not give its size" in notes
    assert any(note.startswith("left out: 1 x ALLGATHER") for note in notes)
