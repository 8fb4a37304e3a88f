"""nccl-tests as a benchmark: its commands, word by word, and what is read back for each message."""

from pathlib import Path

import made_workloads
import pytest

from ncclt.core.message import Collective
from ncclt.errors import BenchmarkError, UsageError
from ncclt.measure.benchmarks.benchmark import BenchmarkCommand, CommandOutput
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.measure.benchmarks.nccl_tests.features import LEAST, NcclTestsFeatures

SAMPLES = Path(__file__).parents[3] / "nccl" / "nccl_tests" / "samples"
HALF = "time algbw busbw #wrong"
HEADER = f"# nThread 1\n# size count type redop root {HALF} {HALF}\n"


NEWEST = NcclTestsFeatures(json=True, cycles=True, per_iteration=True, split=True, split_mask=True, mpi=True)


def message(collective=Collective.ALL_REDUCE, size_bytes=1024, dtype="float32", group_size=4, spans_nodes=False):
    return made_workloads.message(size_bytes, collective, dtype=dtype, group=group_size, spans=spans_nodes)


def command_for(*messages, sweep=("-b", "1024", "-e", "1024"), dtype="float"):
    return BenchmarkCommand(argv=("all_reduce_perf", *sweep, "-d", dtype), messages=messages)


WIDTHS = {"half": 2, "uint8": 1}
"""Bytes of an element where it is not 4; rows have the counts of an all_reduce."""


def row(size=1024, out=20.0, inside=18.0, wrong="0", dtype="float"):
    return f"{size} {size // WIDTHS.get(dtype, 4)} {dtype} sum -1 {out} 1 1 {wrong} {inside} 1 1 0\n"


def read(text, *messages, exit_code=0, footer="# Out of bounds values : 0 OK\n", sweep=("-b", "1024", "-e", "1024")):
    output = CommandOutput(exit_code=exit_code, stdout=HEADER + text + footer)
    return NcclTests().read(command_for(*messages, sweep=sweep), output)


def test_commands_word_by_word(tmp_path):
    """One process per GPU; sizes of one collective and dtype go into one sweep, twice, for the first row is cold."""
    benchmark = NcclTests(folder=Path("/build"), features=NEWEST, processes=4)
    sizes = [message(size_bytes=size) for size in (4096, 1024, 2048)]
    commands = benchmark.commands([*sizes, message(Collective.ALL_TO_ALL, dtype="bfloat16")], folder=tmp_path)
    options = "-t 1 -g 1 -w 5 -n 10 -c 1 -N 2 -I 1 -J"
    assert [" ".join(command.argv) for command in commands] == [
        f"/build/all_reduce_perf -b 1024 -e 4096 -f 2 -d float {options} {tmp_path}/000-all_reduce_perf.json",
        f"/build/alltoall_perf -b 1024 -e 1024 -d bfloat16 {options} {tmp_path}/001-alltoall_perf.json",
    ]
    assert {m.size_bytes for m in commands[0].messages} == {1024, 2048, 4096}
    assert all(command.variables == () for command in commands), "the groups are the whole job"


def test_a_build_that_can_nothing_is_asked_for_nothing(tmp_path):
    """An unknown option would print the usage and exit with 0."""
    (command,) = NcclTests(features=LEAST).commands([message()], folder=tmp_path)
    assert " ".join(command.argv) == "all_reduce_perf -b 1024 -e 1024 -d float -t 1 -g 4 -w 5 -n 20 -c 1"
    assert command.output_file is None


def test_results_that_cannot_be_read_back_are_not_written():
    """Then the table has to do, and the time of each call is not in it."""
    (command,) = NcclTests(features=NEWEST).commands([message()], folder=None)
    assert not {"-J", "-I"} & set(command.argv)


def test_one_process_per_node_drives_all_its_gpus():
    """2 processes with 8 GPUs each are 16 ranks."""
    (command,) = NcclTests(processes=2, gpus_per_process=8).commands([message(group_size=16)], folder=None)
    assert command.argv[command.argv.index("-g") + 1] == "8"
    assert command.variables == ()


def test_what_only_moves_bytes_shares_a_run():
    """NCCL sends broadcasts of floats and of flags as the same bytes; a reduction computes, so its dtype stays."""
    moved = [message(Collective.BROADCAST, 1000), message(Collective.BROADCAST, 3, dtype="bool")]
    reduced = [message(), message(dtype="bfloat16")]
    broadcast, *reductions = NcclTests().commands([*moved, *reduced], folder=None)
    assert broadcast.argv[1:7] == ("-b", "3", "-e", "1000", "-i", "997")
    assert broadcast.argv[broadcast.argv.index("-d") + 1] == "uint8"
    assert [c.argv[c.argv.index("-d") + 1] for c in reductions] == ["float", "bfloat16"]
    found = NcclTests().read(
        broadcast,
        CommandOutput(
            exit_code=0, stdout=HEADER + row(3, inside=5.0, dtype="uint8") + row(1000, inside=6.0, dtype="uint8")
        ),
    )
    assert {m.message: m.time_us for m in found.measurements} == dict(zip(moved, (6.0, 5.0), strict=True))


def test_beyond_the_limit_sizes_are_interpolated_and_marked():
    """Log-log between the neighbours, only for what is not measured itself."""
    sizes = [4_000_000, 1_000_000, 1_300_000, 2_700_000, 40]
    messages = [message(size_bytes=size) for size in sizes]
    (command,) = NcclTests(max_commands=1).commands(messages, folder=None)
    first = int(command.argv[command.argv.index("-b") + 1])
    rows = "".join(row(first << n, inside=2.0 * (first << n) ** 0.5) for n in range(30))
    reading = NcclTests(max_commands=1).read(command, CommandOutput(exit_code=0, stdout=HEADER + rows))
    assert {m.message for m in reading.measurements} == set(messages)
    for measured in reading.measurements:
        assert measured.time_us == pytest.approx(2.0 * measured.message.size_bytes**0.5), "a line in log-log"
        assert measured.interpolated
    exact = NcclTests(max_commands=9).commands(messages, folder=None)
    assert len(exact) == len(NcclTests().commands(messages, folder=None)) > 1


def test_a_row_that_is_missing_is_not_interpolated():
    """It was asked for, so something is wrong."""
    text = row(1024) + row(4096)
    with pytest.raises(BenchmarkError, match="no row"):
        read(text, message(size_bytes=2048), sweep=("-b", "1024", "-e", "4096", "-f", "2"))


def test_wrong_neighbours_make_an_interpolated_size_wrong():
    """Data that comes out wrong around it disqualifies as well."""
    text = row(1024) + row(2048, wrong="5")
    reading = read(text, message(size_bytes=1500), sweep=("-b", "1024", "-e", "2048", "-f", "2"))
    assert reading.is_wrong


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


def test_processes_with_several_gpus_cannot_send_alone():
    """A group of 4 ranks does not fit into processes of 8; and a launch has a command."""
    with pytest.raises(UsageError):
        NcclTests(processes=2, gpus_per_process=8).commands([message(group_size=4)], folder=None)
    with pytest.raises(UsageError):
        NcclTests(max_commands=0)


def test_the_half_is_taken_that_training_runs():
    """all_reduce runs in place in torch, all_gather between two buffers."""
    assert read(row(), message()).measurements[0].samples_us == (18.0,)
    assert read(row(), message(Collective.ALL_GATHER)).measurements[0].samples_us == (20.0,)


def test_the_cold_first_row_does_not_count_where_it_is_repeated():
    """Repeated rows are samples, and the first of all is slower than it should be; its check counts."""
    text = row(inside=99.0, wrong="2") + row(2048, inside=40.0) + row(inside=18.0) + row(2048, inside=41.0)
    small, large = message(), message(size_bytes=2048)
    reading = read(text, small, large, sweep=("-b", "1024", "-e", "2048", "-f", "2"))
    assert [m.samples_us for m in reading.measurements] == [(18.0,), (40.0, 41.0)]
    assert [m.wrong for m in reading.measurements] == [2, 0]
    assert read(row(), message()).measurements[0].samples_us == (18.0,), "nothing else is there to take"


def test_an_unaligned_size_takes_the_nearest_row():
    """nccl-tests measures all_gather on 4 ranks in steps of 64 bytes only."""
    odd = message(Collective.ALL_GATHER, size_bytes=1000)
    (command,) = NcclTests().commands([odd], folder=None)
    assert command.argv[1:3] == ("-b", "1024")
    reading = read(row(), odd)
    (measured,) = reading.measurements
    assert (measured.message, measured.measured_bytes, measured.interpolated) == (odd, 1024, False)
    (aligned,) = read(row(), message(Collective.ALL_GATHER)).measurements
    assert aligned.measured_bytes is None
    (between,) = read(row(512) + row(2048), odd, sweep=("-b", "512", "-e", "2048", "-f", "4")).measurements
    assert (between.interpolated, between.measured_bytes) == (True, 1024)


def test_no_dtype_of_a_shard_is_measured_exactly(subtests):
    """8,388,618 bytes per rank: only the note tells that 8,388,624 were measured."""
    for dtype in ("float32", "bfloat16", "int8"):
        shard = message(Collective.ALL_GATHER, size_bytes=67_108_944, dtype=dtype, group_size=8)
        with subtests.test(dtype=dtype):
            (command,) = NcclTests().commands([shard], folder=None)
            assert command.argv[1:3] == ("-b", "67108992")


def test_a_small_size_is_rounded_up_not_to_nothing():
    """Asked for 8 bytes, nccl-tests would measure an all_gather of 0 bytes."""
    tiny = message(Collective.ALL_GATHER, size_bytes=8)
    (command,) = NcclTests().commands([tiny], folder=None)
    assert command.argv[1:3] == ("-b", "64")
    with pytest.raises(BenchmarkError):
        read(row(size=0), tiny, sweep=("-b", "64", "-e", "64"))


def test_no_time_is_invented(subtests):
    """A missing, unusable or ambiguous row is an error that says which."""
    cases = [
        (row(size=2048), "no row for all_reduce 1 KiB"),
        (row(dtype="half"), "no row"),
        (row(dtype="nonsense"), "no row"),
        (row(inside="nan"), "no usable time"),
        (row(inside="0.00"), "no usable time"),
        (row(size=2048) + "1024 1 fl host:1:2 [0] NCCL INFO x\n", "its table has 1 unreadable line"),
        (f"{row()}# nThread 1\n{HEADER}{row()}", "2 runs"),
    ]
    for text, reason in cases:
        with subtests.test(text=text):
            with pytest.raises(BenchmarkError, match=reason) as caught:
                read(text, message())
            assert caught.value.hint


def test_a_run_on_other_ranks_is_refused():
    """A build without MPI starts one run per process, each on its own GPUs."""
    with pytest.raises(BenchmarkError, match="ran on 1 rank,"):
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
    benchmark = NcclTests(features=NEWEST)
    (command,) = benchmark.commands([message(Collective.ALL_GATHER, 128, group_size=8)], folder=tmp_path)
    table = CommandOutput(exit_code=0, stdout=HEADER + row(size=128))
    assert benchmark.read(command, table).measurements[0].time_us == 20.0
    command.output_file.write_text((SAMPLES / "nccl_tests_v3.json").read_text())
    assert benchmark.read(command, table).measurements[0].time_us == 16.98


def test_times_of_single_calls_are_the_samples(tmp_path):
    """-I 1 writes them into the file."""
    (command,) = NcclTests(features=NEWEST).commands([message(Collective.ALL_TO_ALL, group_size=2)], folder=tmp_path)
    command.output_file.write_text((SAMPLES / "nccl_tests_v2.json").read_text())
    (measured,) = NcclTests().read(command, CommandOutput(exit_code=0, stdout="")).measurements
    assert measured.samples_us == (20.0, 22.0)
