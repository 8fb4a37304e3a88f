"""Every ending of a launch: its outcome, a first line that people understand, and the last lines."""

import itertools

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.trial import Outcome
from ncclt.errors import HostLostError, NodesLostError, NotStartedError, StudyStoppedError
from ncclt.launch.launcher import LaunchResult
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.measure.outcome import DETAIL_LINES, judge

MESSAGE = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=1024, group_size=4)
HEADER = "# nThread 1\n# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
ROW = "1024 256 float sum -1 20 1 1 0 18 1 1 0\n"
USAGE = "all_reduce_perf: invalid option -- 'J'\nUSAGE: all_reduce_perf\n\t[-b,--minbytes <n>]\n"


def judged(limit_s=60.0, **launch):
    benchmark = NcclTests()
    (command,) = benchmark.commands([MESSAGE], folder=None)
    return judge(benchmark, command, LaunchResult(**launch), limit_s=limit_s)


def test_a_good_launch_has_no_words():
    """Times, and nothing to read."""
    result = judged(exit_code=0, stdout=HEADER + ROW, wall_s=3.0)
    assert (result.outcome, result.detail, result.wall_s) == (Outcome.OK, "", 3.0)
    assert result.measurements[0].time_us == 18.0


NOTHING = ": nccl-tests measured nothing: it printed nothing"

CASES = {
    "hang": ({"exit_code": -15, "timed_out": True}, Outcome.TIMEOUT, "not done within 60 s"),
    "crash": ({"exit_code": -11}, Outcome.CRASHED, f"ended by SIGSEGV{NOTHING}"),
    "crash seen through a shell": ({"exit_code": 139}, Outcome.CRASHED, f"ended by SIGSEGV{NOTHING}"),
    "real-time signal": ({"exit_code": -40}, Outcome.CRASHED, f"ended by signal 40{NOTHING}"),
    "crash after the last row": ({"exit_code": 134, "stdout": HEADER + ROW}, Outcome.CRASHED, "ended by SIGABRT"),
    "killed by the kernel": (
        {"exit_code": 137},
        Outcome.CRASHED,
        f"ended by SIGKILL, often because the host ran out of memory{NOTHING}",
    ),
    "killed by the kernel, said by Slurm": (
        {"exit_code": 1, "stderr": "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n"},
        Outcome.CRASHED,
        "a node ran out of memory (exit code 1)",
    ),
    "out of GPU memory": (
        {"exit_code": 2, "stdout": "n1: Test CUDA failure common.cu:11 'out of memory'\n"},
        Outcome.CRASHED,
        "CUDA out of memory (exit code 2)",
    ),
    "illegal combination": (
        {"exit_code": 3, "stdout": "n1:1:2 [0] NCCL WARN Error : no algorithm/protocol available for AllGather\n"},
        Outcome.INVALID,
        "NCCL has no such algorithm and protocol for this collective (exit code 3)",
    ),
    "usage": (
        {"exit_code": 0, "stdout": USAGE},
        Outcome.INVALID,
        "exit code 0: nccl-tests measured nothing: it does not know one of the options and printed its usage "
        "(invalid option -- 'J')",
    ),
    "no rows": (
        {"exit_code": 0, "stdout": HEADER},
        Outcome.INVALID,
        "exit code 0: nccl-tests measured nothing: it ended before its first row",
    ),
    "partial rows": (
        {"exit_code": 1, "stdout": f"{HEADER}2048 512 float sum -1 20 1 1 0 18 1 1 0\n1024 256 flo"},
        Outcome.CRASHED,
        "exit code 1: nccl-tests printed no row for all_reduce 1 KiB float32; its table has 1 unreadable line",
    ),
    "not a number": (
        {"exit_code": 0, "stdout": HEADER + ROW.replace("18", "nan")},
        Outcome.INVALID,
        "exit code 0: nccl-tests printed no usable time for all_reduce 1 KiB float32: nan µs",
    ),
    "wrong elements": (
        {"exit_code": 7, "stdout": HEADER + ROW.replace("1 1 0", "1 1 12")},
        Outcome.WRONG_RESULT,
        "data came out wrong",
    ),
    "wrong by exit code alone": ({"exit_code": 7}, Outcome.WRONG_RESULT, "data came out wrong"),
    "a broken GPU": (
        {"exit_code": 2, "stderr": "n1: Test CUDA failure x.cu:1 'uncorrectable ECC error encountered'\n"},
        Outcome.CRASHED,
        "a GPU failed (exit code 2)",
    ),
    "a step that took too long": (
        {"exit_code": 143, "stderr": "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED DUE TO TIME LIMIT ***\n"},
        Outcome.CRASHED,
        "the scheduler ended the launch (ended by SIGTERM)",
    ),
    "hung in a driver": (
        {"exit_code": None, "survivors": (7, 8)},
        Outcome.CRASHED,
        f"it could not be ended{NOTHING}",
    ),
}


def test_every_ending_has_its_outcome_and_first_line(subtests):
    """The first line alone tells what happened, and is the same for the same cause."""
    for name in CASES:
        with subtests.test(name=name):
            launch, outcome, first = CASES[name]
            result = judged(**launch)
            assert (result.outcome, result.detail.splitlines()[0]) == (outcome, first)


def test_what_did_not_start_has_no_outcome(subtests):
    """Whatever the launcher's program ended with, and whatever was measured before."""
    cases = [{"exit_code": 1}, {"exit_code": 127}, {"exit_code": None}, {"timed_out": True}]
    for ending in cases:
        with subtests.test(ending=ending):
            with pytest.raises(NotStartedError) as caught:
                judged(
                    **{"exit_code": -15, **ending},
                    not_started="srun: error: Unable to create step",
                    stdout=HEADER + ROW,
                )
            assert caught.value.message == "the launch did not start: srun: error: Unable to create step"
            assert "no trial was stored" in caught.value.hint
            assert "run the same command to resume" in caught.value.hint
            with pytest.raises(NodesLostError, match="the allocation is lost: Slurm job 7 was cancelled"):
                judged(exit_code=1, not_started="srun: error: Unable to create step", lost="Slurm job 7 was cancelled")


def test_a_lost_node_is_no_outcome_of_a_setting(subtests):
    """Whoever started the ranks has its own words for it, and the line that says so is shown."""
    lines = [
        "srun: error: Node failure on n2",
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T10:00:00 DUE TO NODE FAILURE ***",
        "ORTE has lost communication with a remote daemon.",
        "PRTE has lost communication with a remote daemon.",
        "An ORTE daemon has unexpectedly failed after launch",
        "[proxy:0:1@n2] HYD_pmcd_pmi: the proxy has unexpectedly closed connection",
        "Connection to n2 closed by remote host.",
        "client_loop: send disconnect: Broken pipe",
        "ssh: connect to host n2 port 22: Connection timed out",
        "Timeout, server n2 not responding.",
        "ncclt: kubernetes: pod ncclt-7-node-0-1: Evicted: The node was low on resource: ephemeral-storage.",
    ]
    endings = {"exit_code": 255}, {"exit_code": -15, "timed_out": True}
    for said, ending in itertools.product(lines, endings):
        with subtests.test(said=said, **ending):
            with pytest.raises(HostLostError) as caught:
                judged(**ending, stderr=f"something before\n{said}\nsrun: Terminating job step\n")
            assert caught.value.message == f"a node, or the connection to it, was lost: {said}"
            assert "does not count" in caught.value.hint


def test_a_host_that_cannot_be_cleaned_up_is_lost():
    """Its own ranks say nothing any more; those of the others fail first."""
    left = (
        "python ended with exit code 255: ncclt: node 1 (n2) failed first, with exit code 255: it cannot be reached, "
    )
    with pytest.raises(HostLostError):
        judged(exit_code=1, stderr="Connection closed by peer", left_elsewhere=(f"{left}or the connection was lost",))


def test_a_lost_allocation_is_no_outcome_of_a_setting(subtests):
    cases = [
        {"exit_code": 143, "lost": "Slurm job 7 was cancelled"},
        {"exit_code": 1, "not_started": "Slurm refused the step", "lost": "Slurm job 7 was cancelled"},
        {"exit_code": 1, "timed_out": True, "lost": "Slurm job 7 was cancelled"},
        {"exit_code": 143, "stderr": "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED DUE TO PREEMPTION ***\n"},
    ]
    for ending in cases:
        with subtests.test(ending=ending):
            with pytest.raises(NodesLostError) as caught:
                judged(**ending)
            assert caught.value.message in (
                "the allocation is lost: Slurm job 7 was cancelled",
                "the allocation is lost: the scheduler took the nodes",
            )
            assert "run the same command in a new one" in caught.value.hint


def test_wrong_data_are_told_even_if_the_nodes_are_lost_afterwards():
    stdout = HEADER + ROW.replace("1 1 0", "1 1 12")
    assert judged(exit_code=1, stdout=stdout, lost="Slurm job 7 was cancelled").outcome is Outcome.WRONG_RESULT


def test_ranks_in_another_environment_are_no_outcome_of_a_setting():
    said = "ncclt: unfit: unexpected NCCL_TUNER_PLUGIN=/x on n1, from TaskProlog=/etc/slurm/prolog.sh\n"
    with pytest.raises(StudyStoppedError) as caught:
        judged(exit_code=78, stdout="", stderr=said)
    assert caught.value.message.startswith("invalid: unexpected NCCL_TUNER_PLUGIN=/x")
    assert "leave launches of ncclt alone" in caught.value.hint


def test_the_first_line_holds_nothing_that_passes():
    """Five such failures in a row are one diagnosis, whichever rank and process speaks first."""
    lines = [
        "[2026-01-01 10:00:00] n1:4711:4712 [3] misc/socket.cc:484 NCCL WARN socketPollConnect: 0x7f11 failed",
        "[2026-01-01 10:07:31] n2:813:814 [0] misc/socket.cc:484 NCCL WARN socketPollConnect: 0x7e00 failed",
    ]
    first_lines = {judged(exit_code=3, stdout=line).detail.splitlines()[0] for line in lines}
    assert len(first_lines) == 1
    assert "socketPollConnect" in first_lines.pop()


def test_what_is_not_gone_and_what_was_not_kept_is_said():
    """Processes in a hung driver, and output beyond the limit."""
    detail = judged(exit_code=None, survivors=(7, 8), dropped_bytes=9, left_elsewhere=("step 7.0 still runs",)).detail
    assert "perhaps still running elsewhere: step 7.0 still runs" in detail
    assert "still running after SIGKILL: 7, 8" in detail
    assert "9 bytes of earlier output were dropped" in detail


def test_the_detail_is_short_and_ends_with_the_last_lines():
    """Long lines are cut."""
    detail = judged(exit_code=1, stdout="\n".join(f"{n} {'x' * 5000}" for n in range(100))).detail
    assert len(detail.splitlines()) == DETAIL_LINES
    assert detail.splitlines()[-1].startswith("99 xxx")
    assert max(map(len, detail.splitlines())) <= 400


def test_endless_noise_is_judged_by_its_end():
    """8 MiB of it are kept by a launcher; the cause stands at the end."""
    noise = "gpu-node-1: noise " * 400_000
    result = judged(exit_code=1, stdout=f"{noise}\nslurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")
    assert result.detail.startswith("a node ran out of memory")


def test_secrets_do_not_stay():
    """Neither in the reason nor in the lines."""
    line = "host: Test CUDA failure common.cu:11 'out of memory' HF_TOKEN=hf_verysecret"
    assert "verysecret" not in judged(exit_code=2, stdout=line).detail
    with pytest.raises(NotStartedError) as caught:
        judged(exit_code=None, not_started=line)
    assert "verysecret" not in caught.value.message


def test_no_secret_stays_where_the_search_cuts_off_its_name():
    line = "password: verysecret\n"
    for cut in range(0, len(line), 4):
        end = (line[cut:] + "log " * (1 << 18))[: 1 << 20]
        assert "verysecret" not in judged(exit_code=2, stdout=line[:cut] + end).detail, cut
