"""nccl-tests as a benchmark: its commands, word by word, and what is read back for each message."""

from pathlib import Path

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.version import NcclVersion
from ncclt.errors import BenchmarkError, NotFoundError, UsageError
from ncclt.measure import BENCHMARKS, benchmark_module, benchmark_modules
from ncclt.measure.benchmark import BenchmarkCommand, CommandOutput
from ncclt.measure.nccl_tests import NcclTests

HALF = "time algbw busbw #wrong"
HEADER = f"# nThread 1\n# size count type redop root {HALF} {HALF}\n"


def message(collective=Collective.ALL_REDUCE, size_bytes=1024, dtype="float32", group_size=4):
    return Message(collective=collective, dtype=dtype, size_bytes=size_bytes, group_size=group_size)


def command_for(*messages):
    return BenchmarkCommand(argv=("all_reduce_perf",), messages=messages)


def row(size=1024, out=20.0, inside=18.0, wrong="0", dtype="float"):
    return f"{size} 1 {dtype} sum -1 {out} 1 1 {wrong} {inside} 1 1 0\n"


def read(text, *messages, exit_code=0, footer="# Out of bounds values : 0 OK\n"):
    output = CommandOutput(exit_code=exit_code, stdout=HEADER + text + footer)
    return NcclTests().read(command_for(*messages), output)


def test_commands_word_by_word(tmp_path):
    """Sizes of one collective and dtype go into one sweep; with a release that has -J a file is written."""
    benchmark = NcclTests(folder=Path("/build"), version=NcclVersion(2, 17, 3), suffix="_mpi", processes=2)
    sizes = [message(size_bytes=size) for size in (4096, 1024, 2048)]
    commands = benchmark.commands([*sizes, message(Collective.ALL_TO_ALL, dtype="bfloat16")], folder=tmp_path)
    assert [command.argv for command in commands] == [
        ("/build/all_reduce_perf_mpi", "-b", "1024", "-e", "4096", "-f", "2", "-d", "float", "-t", "1", "-g", "2",
         "-w", "5", "-n", "20", "-c", "1", "-J", str(tmp_path / "000-all_reduce_perf_mpi.json")),
        ("/build/alltoall_perf_mpi", "-b", "1024", "-e", "1024", "-d", "bfloat16", "-t", "1", "-g", "2",
         "-w", "5", "-n", "20", "-c", "1", "-J", str(tmp_path / "001-alltoall_perf_mpi.json")),
    ]  # fmt: skip
    assert [m.size_bytes for m in commands[0].messages] == [1024, 2048, 4096]


@pytest.mark.parametrize("version", [None, NcclVersion(2, 17, 2)])
def test_older_or_unknown_releases_are_not_given_j(version, tmp_path):
    """They would print their usage and exit with 0."""
    (command,) = NcclTests(version=version).commands([message()], folder=tmp_path)
    assert "-J" not in command.argv
    assert command.output_file is None


@pytest.mark.parametrize("collective", list(Collective))
def test_each_collective_has_its_program(collective):
    """Names of nccl-tests differ from ours for two of them."""
    (command,) = NcclTests().commands([message(collective)], folder=None)
    expected = {Collective.ALL_TO_ALL: "alltoall_perf", Collective.SEND_RECV: "sendrecv_perf"}
    assert command.argv[0] == expected.get(collective, f"{collective}_perf")


@pytest.mark.parametrize(
    "wanted", [message(dtype="int16"), message(group_size=0), message(group_size=3)], ids=["dtype", "unknown", "odd"]
)
def test_what_cannot_be_measured_is_refused(wanted):
    """A dtype NCCL does not have, and groups that do not fit the processes."""
    with pytest.raises(UsageError) as caught:
        NcclTests(processes=2).commands([wanted], folder=None)
    assert caught.value.hint


def test_too_few_warm_ups_are_refused():
    """The first calls connect the ranks."""
    with pytest.raises(UsageError):
        NcclTests(warmup=1)


def test_the_half_is_taken_that_training_runs():
    """all_reduce runs in place in torch, all_gather between two buffers."""
    assert read(row(), message()).measurements[0].samples_us == (18.0,)
    assert read(row(), message(Collective.ALL_GATHER)).measurements[0].samples_us == (20.0,)


def test_repeated_rows_are_samples():
    """The median counts later."""
    assert read(row() + row(inside=30.0), message()).measurements[0].samples_us == (18.0, 30.0)


def test_an_unaligned_size_takes_the_nearest_row():
    """nccl-tests measures all_gather on 4 ranks in steps of 64 bytes only."""
    odd = message(Collective.ALL_GATHER, size_bytes=1000)
    (command,) = NcclTests().commands([odd], folder=None)
    assert command.argv[1:3] == ("-b", "1024")
    reading = read(row(), odd)
    assert reading.measurements[0].message == odd
    assert not reading.measurements[0].interpolated


def test_a_small_size_is_rounded_up_not_to_nothing():
    """Asked for 8 bytes, nccl-tests would measure an all_gather of 0 bytes."""
    tiny = message(Collective.ALL_GATHER, size_bytes=8)
    (command,) = NcclTests().commands([tiny], folder=None)
    assert command.argv[1:3] == ("-b", "64")
    with pytest.raises(BenchmarkError):
        read(row(size=0), tiny)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (row(size=2048), "no row for all_reduce 1 KiB"),
        (row(dtype="half"), "no row"),
        (row(dtype="nonsense"), "no row"),
        (row(inside="nan"), "no usable time"),
        (row(inside="0.00"), "no usable time"),
        (row(size=2048) + "1024 1 fl host:1:2 [0] NCCL INFO x\n", "1 lines of its table are unreadable"),
        (f"{row()}# nThread 1\n{HEADER}{row()}", "2 runs"),
    ],
)
def test_no_time_is_invented(text, reason):
    """A missing, unusable or ambiguous row is an error that says which."""
    with pytest.raises(BenchmarkError, match=reason) as caught:
        read(text, message())
    assert caught.value.hint


def test_a_run_on_other_ranks_is_refused():
    """A build without MPI starts one run per process, each on its own GPUs."""
    with pytest.raises(BenchmarkError, match="ran on 1 ranks"):
        read(row(), message(), footer="#  Rank  0 Group  0 Pid 1\n")


def test_wrong_elements_are_counted_over_both_halves():
    """Any of them disqualifies."""
    reading = read(row(wrong="3") + row(wrong="1"), message())
    assert reading.measurements[0].wrong == 4
    assert reading.is_wrong


def test_unchecked_rows_have_no_count():
    """N/A in both halves is not the same as 0."""
    text = row(wrong="N/A").replace("1 1 0\n", "1 1 N/A\n")
    assert read(text, message()).measurements[0].wrong is None


def test_failed_checks_make_a_reading_wrong_without_wrong_rows():
    """The footer counts failed checks; exit code 7 says it without a footer, even without rows."""
    footer = "# Out of bounds values : 2 FAILED\n"
    assert read(row(), message(), footer=footer).failed_check == "2 values out of bounds"
    assert "exit code 7" in read(row(), message(), exit_code=7).failed_check
    assert "exit code 7" in read("", message(), exit_code=7).failed_check


def test_the_file_goes_before_the_table(tmp_path):
    """It is more precise; where it is out of reach the table is read."""
    benchmark = NcclTests(version=NcclVersion(2, 19, 6))
    (command,) = benchmark.commands([message(Collective.ALL_GATHER, 128, group_size=8)], folder=tmp_path)
    table = CommandOutput(exit_code=0, stdout=HEADER + row(size=128))
    assert benchmark.read(command, table).measurements[0].time_us == 20.0
    command.output_file.write_text((Path(__file__).parent / "samples" / "nccl_tests_v3.json").read_text())
    assert benchmark.read(command, table).measurements[0].time_us == 16.98


def test_benchmarks_are_found_by_name():
    """Ours are listed, an unknown one is refused with the known names."""
    assert set(BENCHMARKS) <= set(benchmark_modules())
    assert benchmark_module("nccl_tests").create().name == "nccl_tests"
    with pytest.raises(NotFoundError) as caught:
        benchmark_module("ncclests")
    assert "nccl_tests" in caught.value.hint
