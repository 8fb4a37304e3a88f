"""Files of NVIDIA's example profiler plugin."""

import json
from functools import partial

import pytest

from ncclt.errors import TraceError
from ncclt.profile.readers.nccl_profiler import NcclProfilerReader
from ncclt.testing.reader_contract import message_table


def event(name="AllReduce", category="COLL", *, rank=0, count=256, dtype="ncclFloat32", comm=7, pid=50, **args):
    facts = {"CommHash": comm, "Rank": rank, "Count": count, "Datatype": dtype, **args}
    return {"name": name, "cat": category, "ph": "b", "id": 0, "pid": pid, "tid": 1, "ts": 1.0, "args": facts}


@pytest.fixture
def read(tmp_path):
    def _read(*files, end="{}]"):
        paths = [tmp_path / f"{place}.txt" for place in range(len(files))]
        for path, rows in zip(paths, files, strict=True):
            path.write_text("[\n" + "".join(f"{json.dumps(row)},\n" for row in rows) + end)
        return NcclProfilerReader().read(paths, name="t")

    return _read


rows = partial(message_table, fields=("collective", "size_bytes", "group_size"))


def test_communicators_of_a_process_add_up_and_the_busiest_rank_counts(read):
    """Rank 1 sends more, in two files, one per communicator."""
    files = [event()], [event(rank=1, pid=51), event(rank=1, pid=51)], [event(comm=8, pid=51)]
    assert rows(read(*files)) == {("all_reduce", 1024, 2): 2.0, ("all_reduce", 1024, 0): 1.0}


def test_group_is_not_known_unless_all_its_ranks_were_read(read):
    assert rows(read([event("AllGather", rank=0)], [event("AllGather", rank=3, pid=53)])) == {
        ("all_gather", 1024, 0): 1.0
    }


def test_sends_stand_for_both_halves(read):
    both = [event(word, "P2P", Peer=1) for word in ("Send", "Recv", "Recv")]
    assert rows(read(both)) == {("send_recv", 1024, 0): 1.0}


def test_file_of_a_job_that_was_killed_is_read_and_noted(read):
    workload = read([event(), event()], end='{"name": "AllRed')
    assert rows(workload) == {("all_reduce", 1024, 0): 2.0}
    assert any("1 files are cut off" in note for note in workload.provenance.notes)


def test_what_makes_no_message_is_noted(read):
    workload = read([event(), event(dtype="ncclWhat"), event(count=0), event("Quiet"), event(count="many")])
    notes = " ".join(workload.provenance.notes)
    for reason in ("'ncclWhat'", "AllReduce of 0 bytes", "Quiet, which ncclt", "without rank, count or communicator"):
        assert reason in notes
    with pytest.raises(TraceError, match="AllReduce of 0 bytes"):
        read([event(count=0)])


def test_rank_in_two_files_is_refused(read):
    with pytest.raises(TraceError, match=r"rank 0 of communicator 7 is in 0\.txt and in 1\.txt"):
        read([event()], [event()])
