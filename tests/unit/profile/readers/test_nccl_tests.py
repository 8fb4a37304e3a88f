"""nccl-tests output as a source of profiles."""

import json
from pathlib import Path

import pytest

from ncclt.errors import TraceError, UsageError
from ncclt.profile import read_workload
from ncclt.profile.readers.nccl_tests import NcclTestsReader

SAMPLES = Path(__file__).parents[2] / "nccl" / "nccl_tests" / "samples"
HALF = "time algbw busbw #wrong"


def table(columns, *rows, ranks=4, before=""):
    """A table without the line that names its program."""
    listed = "".join(f"#  Rank  {rank} Pid 1\n" for rank in range(ranks))
    return f"{before}# nThread 1 nGpus {ranks}\n{listed}#  size count type {columns} {HALF} {HALF}\n" + "\n".join(rows)


def times(busbw=1):
    return f"10 1 {busbw} 0 12 1 {busbw} 0"


def test_the_form_of_a_table_tells_the_collective(tmp_path):
    for columns, row, collective in [
        ("redop", f"64 16 float sum {times(1.5)}", "all_reduce"),
        ("redop root", f"64 16 float sum -1 {times(1.5)}", "all_reduce"),
        ("redop root", f"64 16 float sum -1 {times(1)}", "send_recv"),
        ("redop", f"64 4 float sum {times(0.75)}", "reduce_scatter"),
        ("redop", f"64 4 float {times(0.75)}", "all_to_all"),
        ("", f"64 4 float {times(0.75)}", "all_gather"),
        ("root", f"64 16 float 0 {times()}", "broadcast"),
        ("redop root", f"64 16 float sum 0 {times()}", "reduce"),
    ]:
        path = tmp_path / "out"
        path.write_text(table(columns, row))
        (found,) = read_workload([path], name="x").messages
        assert (found.message.collective.value, found.message.size_bytes, found.message.group_size) == (
            collective,
            64,
            4,
        )


def test_a_form_that_several_share_needs_the_command(tmp_path):
    """all_gather and alltoall, all_reduce and sendrecv of two ranks: nothing is guessed."""
    for row, ranks in [(f"64 4 float none -1 {times()}", 4), (f"64 16 float sum -1 {times()}", 2)]:
        path = tmp_path / "out"
        path.write_text(table("redop root", row, ranks=ranks))
        with pytest.raises(TraceError, match="does not say which collective") as caught:
            read_workload([path], name="x")
        assert "above the table" in caught.value.hint
        path.write_text(table("redop root", row, ranks=ranks, before="$ ./build/alltoall_perf -b 8 -e 8\n"))
        assert read_workload([path], name="x").collectives == {"all_to_all"}


def test_it_is_called_what_it_is(tmp_path):
    """Sizes of a benchmark: one call each, however often a sweep was repeated, no steps, and none can be given."""
    path = tmp_path / "out"
    row = f"64 16 float sum {times(1.5)}"
    path.write_text(table("redop", row, row, f"0 0 float sum {times()}", f"64 64 fp4 sum {times()}"))
    workload = read_workload([path], name="x")
    (found,) = workload.messages
    assert (found.calls_per_step, found.recorded_us) == (1.0, 12.0)
    origin = workload.provenance
    assert (origin.source, origin.world_size, origin.steps, origin.whole_file) == ("nccl_tests", 4, 0, True)
    assert "benchmarked sizes, not a training's" in origin.notes[0]
    assert {"left out: 1 x row of 0 bytes", "left out: 1 x row of type 'fp4', of unknown size"} <= {*origin.notes}
    with pytest.raises(UsageError, match="has no steps"):
        workload.over_steps(10, "as told")


def test_the_result_file_is_read():
    for version in [1, 2, 3]:
        workload = read_workload([SAMPLES / f"nccl_tests_v{version}.json"], name="x")
        assert workload.provenance.source == "nccl_tests"
        assert "API_TOKEN" not in json.dumps(workload.to_document())


def test_a_log_of_calls_around_a_table_is_preferred(tmp_path):
    """It tells every call; the table only what was timed."""
    call = (
        "n0:1:9 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 16 datatype 7 op 0 root 0 "
        "comm 0xa [nranks=4] stream 0x3\n"
    )
    path = tmp_path / "out"
    path.write_text(table("redop", f"64 16 float sum {times(1.5)}", before=call * 3))
    assert not NcclTestsReader().recognises(path)
    assert read_workload([path], name="x").provenance.source == "nccl_log"


@pytest.mark.shared
def test_recorded_outputs_are_read(shared_data):
    """Every published one with rows, all of its distinct messages."""
    expected = json.loads((shared_data / "nccl-tests" / "expected.json").read_text())
    read = {
        name: read_workload([shared_data / "nccl-tests" / name], name="x")
        for name, tests in expected.items()
        if any(test["rows"] for test in tests)
    }
    assert len(read) == 20
    for name, workload in read.items():
        assert workload.provenance.source == "nccl_tests"
        assert workload.provenance.world_size == max(test["ranks"] for test in expected[name])
        if name.startswith("superbench_nccl_"):
            named = name.removeprefix("superbench_nccl_").removesuffix(".log")
            assert {c.replace("_", "") for c in workload.collectives} == {named}
