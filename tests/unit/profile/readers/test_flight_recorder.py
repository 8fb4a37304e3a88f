"""The rules by which a Flight Recorder dump becomes a workload."""

import pickle

import pytest

from ncclt.errors import TraceError
from ncclt.profile.readers.flight_recorder import FlightRecorderReader
from ncclt.testing.reader_contract import message_table

GROUPS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}, "7": {"desc": "tp", "ranks": "[2, 3]"}}


def _entry(name, into, out, dtype="Float", *, group=("0", "default_pg"), number=0, **more):
    return {
        "record_id": number,
        "pg_id": int(group[0] or 0),
        "process_group": group,
        "profiling_name": name,
        "input_sizes": into,
        "input_dtypes": [dtype] * len(into),
        "output_sizes": out,
        "output_dtypes": [dtype] * len(out),
        "state": "completed",
        "retired": True,
        **more,
    }


@pytest.fixture
def read(tmp_path):
    def _read(*entries, label="dump", version="2.9", groups=GROUPS):
        path = tmp_path / label
        path.write_bytes(pickle.dumps({"version": version, "pg_config": groups, "entries": list(entries)}, protocol=2))
        return FlightRecorderReader().read([path], name="t")

    return _read


_rows = message_table


def test_size_is_the_size_column_of_nccl_tests(read):
    """Shapes become the full buffer, what is sent for all_to_all; an empty shape is a scalar."""
    for name, into, out, row in [
        ("nccl:all_reduce", [[3, 4]], [[3, 4]], ("all_reduce", "float32", 48, 4)),
        ("nccl:_all_gather_base", [[10]], [[40]], ("all_gather", "float32", 160, 4)),
        ("nccl:all_gather", [[10]], [[10]] * 4, ("all_gather", "float32", 160, 4)),
        ("nccl:all_gather", [[10]], [], ("all_gather", "float32", 160, 4)),
        ("nccl:_reduce_scatter_base", [[40]], [[10]], ("reduce_scatter", "float32", 160, 4)),
        ("nccl:reduce_scatter", [], [[10]], ("reduce_scatter", "float32", 160, 4)),
        ("nccl:all_to_all", [[10, 2]], [[30, 2]], ("all_to_all", "float32", 80, 4)),
        ("nccl:broadcast", [[10]], [[10]], ("broadcast", "float32", 40, 4)),
        ("nccl:send 2->3", [[10]], [], ("send_recv", "float32", 40, 4)),
        ("nccl:recv 3<-2", [], [[10]], ("send_recv", "float32", 40, 4)),
        ("nccl:all_reduce", [[]], [[]], ("all_reduce", "float32", 4, 4)),
    ]:
        assert _rows(read(_entry(name, into, out))) == {row: 1.0}


def test_coalesced_marks_and_barriers_are_no_messages(read):
    """The calls of a coalesced group stand before its mark, each on its own."""
    workload = read(
        _entry("nccl:all_reduce", [[5]], [[5]]),
        _entry("nccl:all_reduce", [[9]], [[9]]),
        _entry("nccl:coalesced", [], []),
        _entry("nccl:all_reduce_barrier", [[1]], [[1]]),
        _entry("nccl:barrier", [], []),
    )
    assert _rows(workload) == {("all_reduce", "float32", 20, 4): 1.0, ("all_reduce", "float32", 36, 4): 1.0}


def test_coalesced_tensors_of_one_entry_are_messages_of_their_own(read):
    """With their shapes listed, NCCL's calls are known."""
    workload = read(_entry("nccl:allgather_into_tensor_coalesced", [[5], [9]], [[20], [36]]))
    assert _rows(workload) == {("all_gather", "float32", 80, 4): 1.0, ("all_gather", "float32", 144, 4): 1.0}


def test_groups_are_joined_by_name(read):
    """A sub-group has its own size; equal messages of two groups both count."""
    tp = ("7", "tp")
    workload = read(
        _entry("nccl:all_reduce", [[5]], [[5]]), _entry("nccl:all_reduce", [[5]], [[5]], group=tp), _entry("x", [], [])
    )
    assert _rows(workload) == {("all_reduce", "float32", 20, 4): 1.0, ("all_reduce", "float32", 20, 2): 1.0}
    assert workload.provenance.world_size == 4
    assert any("span nodes" in note for note in workload.provenance.notes)


def test_the_only_group_is_everybodys(read):
    """gloo's dumps leave its name empty."""
    only = {"": {"name": "", "desc": "", "ranks": [0, 1]}}
    assert _rows(read(_entry("gloo:all_reduce", [[5]], [[5]]), groups=only)) == {("all_reduce", "float32", 20, 2): 1.0}


def test_group_without_ranks_is_told_by_an_all_gather(read):
    """Of the same group; the others stay open, and that is said."""
    groups = {"": {"ranks": "[]"}}
    workload = read(
        _entry("gloo:all_gather", [[5]], [[3, 5]], group=("", "")),
        _entry("gloo:all_reduce", [[8]], [[8]], group=("", "")),
        _entry("gloo:broadcast", [[9]], [[9]], group=("", ""), pg_id=2),
        groups=groups,
    )
    assert set(_rows(workload)) == {
        ("all_gather", "float32", 60, 3),
        ("all_reduce", "float32", 32, 3),
        ("broadcast", "float32", 36, 0),
    }
    assert any("assumed to be the whole job" in note for note in workload.provenance.notes)


def test_gloo_beside_nccl_is_left_out(read):
    """It never reaches NCCL."""
    workload = read(_entry("nccl:all_reduce", [[5]], [[5]]), _entry("gloo:broadcast", [[7]], [[7]]))
    assert _rows(workload) == {("all_reduce", "float32", 20, 4): 1.0}
    assert "left out: 1 x call over gloo, which bypasses NCCL" in workload.provenance.notes


def test_sends_stand_for_both_halves_and_name_the_rank(read):
    """Numbers in the name are ranks inside the group."""
    tp = ("7", "tp")
    workload = read(
        _entry("nccl:send 1->0", [[5]], [], group=tp), _entry("nccl:recv 1<-0", [], [[5]], group=tp), label="rank_9"
    )
    assert _rows(workload) == {("send_recv", "float32", 20, 2): 1.0}
    assert workload.provenance.ranks_read == (3,)


def test_rank_from_the_name_is_said_to_be_so(read):
    """PyTorch writes it nowhere else."""
    origin = read(_entry("nccl:all_reduce", [[5]], [[5]]), label="nccl_trace_rank_2").provenance
    assert origin.ranks_read == (2,)
    assert any("file's name" in note for note in origin.notes)


def test_overwritten_ring_is_a_partial_view(read):
    """The first record number tells how many calls are gone."""
    notes = read(_entry("nccl:all_reduce", [[5]], [[5]], number=312)).provenance.notes
    assert "partial view: the ring buffer had overwritten the first 312 calls" in notes
    assert not any("partial view" in n for n in read(_entry("nccl:all_reduce", [[5]], [[5]])).provenance.notes)


def test_hanging_calls_count_and_are_said(read):
    """A dump is often written because of one."""
    hanging = _entry("nccl:all_reduce", [[5]], [[5]], state="started", retired=False)
    notes = read(_entry("nccl:all_reduce", [[5]], [[5]]), hanging).provenance.notes
    assert "1 of 2 calls had not completed when the dump was written; they count" in notes


def test_durations_are_kept_where_recorded(read):
    """The mean, in µs; NaN and negative ones are none."""
    times = (1.5, 2.5, float("nan"), -1, None)
    workload = read(*(_entry("nccl:all_reduce", [[5]], [[5]], duration_ms=t) for t in times))
    assert workload.messages[0].recorded_us == 2000
    assert workload.messages[0].calls_per_step == 5


def test_dump_without_dtypes_is_refused(tmp_path):
    """Version 1.4 of torch 2.3: sizes in elements cannot become bytes, and none is guessed."""
    entry = {"record_id": 0, "pg_id": 0, "seq_id": 1, "profiling_name": "nccl:all_reduce", "input_sizes": [[5]]}
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "1.4", "entries": [{**entry, "output_sizes": [[5]]}]}, protocol=2))
    with pytest.raises(TraceError, match="1 x allreduce without a dtype") as caught:
        FlightRecorderReader().read([path], name="t")
    assert "2.4" in caught.value.hint


def test_impossible_shapes_are_left_out(read):
    """And the rest is read."""
    for shape in [[-1], [2**60], [2**30] * 10, ["5"] * 65, [1.5], None, [[5]]]:
        workload = read(_entry("nccl:all_reduce", [[5]], [[5]]), _entry("nccl:all_reduce", [shape], [shape]))
        assert _rows(workload) == {("all_reduce", "float32", 20, 4): 1.0}
        assert "left out: 1 x allreduce without a usable size" in workload.provenance.notes


def test_entries_without_a_name_are_counted_as_left_out(read):
    """A damaged dump says that it is partial."""
    notes = read(_entry("nccl:all_reduce", [[5]], [[5]]), {}, 7).provenance.notes
    assert "left out: 2 x entry without an operation's name" in notes
