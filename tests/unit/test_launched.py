"""The runner of real launches, against a stand-in for nccl-tests that fails in every way it can."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.legality import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.core.version import NcclVersion
from ncclt.errors import SettingError
from ncclt.launch.launcher import LaunchPlan, LaunchResult
from ncclt.launch.local import LocalLauncher
from ncclt.launched import DETAIL_LINES, LaunchedRunner, TimeoutRule
from ncclt.measure.nccl_tests import NcclTests

STAND_IN = Path(__file__).parents[1] / "fakes" / "nccl_tests_stand_in.py"
CLUSTER = Cluster(
    name="here", gpus_per_node=4, gpu="Stand-in", compute_capability=80, link_class="pcie", link_gbps=20.0,
    nccl_version="2.28.9",
)  # fmt: skip
MESSAGES = [
    Message(collective=collective, dtype="float32", size_bytes=size, group_size=4)
    for size in (4 << 20, 1 << 20, 1 << 18)
    for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER)
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with the stand-in under the names of all programs."""
    folder = tmp_path_factory.mktemp("build")
    subprocess.run([sys.executable, STAND_IN, "install", folder], check=True)
    return folder


@pytest.fixture
def runner(programs, tmp_path):
    """Make a runner whose launches misbehave as named."""

    def make(fault="", *, version=None, timeout_s=20.0, launcher=None, folder=programs):
        def variables(setting):
            return {"STAND_IN": fault} | ({"NCCL_ALGO": setting.algorithm.value} if setting.algorithm else {})

        return LaunchedRunner(
            benchmark=NcclTests(folder=folder, version=version),
            launcher=launcher or LocalLauncher(environment=os.environ, grace_s=0.2, keep_bytes=1 << 20),
            cluster=CLUSTER,
            variables=variables,
            timeouts=TimeoutRule(start_s=timeout_s),
            scratch=tmp_path,
        )

    return make


def expected_us(message, factor=1):
    return pytest.approx((20 + message.size_bytes / 10_000) * factor, rel=1e-3)


@pytest.mark.parametrize("version", [None, NcclVersion(2, 19, 6)], ids=["text", "json"])
def test_every_message_is_measured_in_the_order_asked_for(runner, version, tmp_path):
    """All sizes of a collective in one launch; no result file, which holds the environment, stays behind."""
    measured = runner(version=version)
    result = measured.measure(DEFAULT, MESSAGES, repeat=0)
    assert (result.outcome, result.detail) == (Outcome.OK, "")
    assert [m.message for m in result.measurements] == MESSAGES
    assert [m.time_us for m in result.measurements] == [expected_us(m) for m in MESSAGES]
    assert result.wall_s > 0
    assert not list(tmp_path.iterdir())
    assert (measured.name, measured.simulated, measured.cluster) == ("local", False, CLUSTER)


def test_a_setting_reaches_the_command(runner):
    """The stand-in's tree is half as fast."""
    result = runner().measure(Setting(algorithm=Algorithm.TREE), MESSAGES[:1], repeat=3)
    assert result.measurements[0].time_us == expected_us(MESSAGES[0], 2)


@pytest.mark.parametrize(
    ("fault", "outcome", "detail"),
    [
        ("segfault", Outcome.CRASHED, "ended by SIGSEGV"),
        ("usage", Outcome.INVALID, "does not know one of the options"),
        ("partial", Outcome.CRASHED, "exit code 1; nccl-tests printed no row for all_reduce 4 MiB"),
        ("nan", Outcome.INVALID, "no usable time"),
        ("glued", Outcome.INVALID, "6 lines of its table are unreadable"),
        ("wrong", Outcome.WRONG_RESULT, "3 values out of bounds"),
        ("wrong_exit_1", Outcome.WRONG_RESULT, "3 values out of bounds"),
        ("out_of_bounds", Outcome.WRONG_RESULT, "3 values out of bounds"),
        ("exit_7", Outcome.WRONG_RESULT, "exit code 7"),
        ("no_algorithm", Outcome.INVALID, "no algorithm/protocol available"),
        ("out_of_memory", Outcome.CRASHED, "CUDA out of memory (exit code 2)"),
        ("orphan", Outcome.OK, ""),
        ("info", Outcome.OK, ""),
        ("noise", Outcome.OK, ""),
    ],
)
def test_every_ending_has_its_outcome(runner, fault, outcome, detail):
    """A failed trial is a value, with a reason and the last lines for people."""
    messages = [m for m in MESSAGES if m.collective is Collective.ALL_REDUCE]
    result = runner(fault).measure(DEFAULT, messages, repeat=0)
    assert result.outcome is outcome, result.detail
    assert detail in result.detail
    assert len(result.detail.splitlines()) <= DETAIL_LINES
    assert (outcome is Outcome.OK) == (result.detail == "")
    assert "hf_verysecret" not in result.detail


def test_a_cut_result_file_is_a_failure(runner):
    """Half a file is no measurement, even where the table is whole."""
    result = runner("cut_json", version=NcclVersion(2, 19, 6)).measure(DEFAULT, MESSAGES, repeat=0)
    assert result.outcome is Outcome.INVALID
    assert "cut off" in result.detail


@pytest.mark.parametrize("fault", ["hang", "stubborn_child"])
def test_a_hang_is_a_timeout_and_leaves_nothing(runner, fault):
    """Neither the program nor a child that is deaf to SIGTERM."""
    result = runner(fault, timeout_s=1.0).measure(DEFAULT, MESSAGES[-1:], repeat=0)
    assert result.outcome is Outcome.TIMEOUT
    assert result.wall_s < 10
    for line in result.detail.splitlines():
        if line.startswith("CHILD"):
            stat = Path(f"/proc/{int(line.split()[1])}/stat")
            assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"
    assert ("CHILD" in result.detail) == (fault == "stubborn_child")


def test_a_missing_program_is_invalid(runner, tmp_path):
    """Nothing of NCCL has run at all."""
    result = runner(folder=tmp_path / "nowhere").measure(DEFAULT, MESSAGES, repeat=0)
    assert result.outcome is Outcome.INVALID
    assert "all_reduce_perf" in result.detail


def test_what_was_measured_before_a_failure_is_kept(runner):
    """Two commands, and the second ends badly."""

    class SecondFails(LocalLauncher):
        calls = 0

        def run(self, plan):
            self.calls += 1
            return super().run(plan) if self.calls == 1 else LaunchResult(exit_code=127, stderr="sh: not found")

    result = runner(launcher=SecondFails()).measure(DEFAULT, MESSAGES, repeat=0)
    assert result.outcome is Outcome.INVALID
    assert {m.message.collective for m in result.measurements} == {Collective.ALL_REDUCE}


class Recorder:
    """A launcher that starts nothing and answers always the same."""

    name = "recorder"

    def __init__(self, result=None):
        self.result = result or LaunchResult(exit_code=0)
        self.plans = []
        self.kills = 0

    def plan(self, argv, *, variables, timeout_s, files=()):
        return LaunchPlan(argv=tuple(argv), set_env=tuple(variables.items()), timeout_s=timeout_s)

    def run(self, plan):
        self.plans.append(plan)
        return self.result

    def kill(self):
        self.kills += 1


def test_ll128_is_never_forced_by_variables(runner):
    """NCCL would obey even where LL128 tears data; nothing is launched."""
    recorder = Recorder()
    result = runner(launcher=recorder).measure(Setting(protocol=Protocol.LL128), MESSAGES, repeat=0)
    assert result.outcome is Outcome.INVALID
    assert "LL128" in result.detail
    assert not recorder.plans


def test_a_setting_without_variables_is_invalid(programs):
    """The compiler refuses what an NCCL does not know."""

    def variables(_setting):
        raise SettingError("NCCL 2.18 has no PAT")

    runner = LaunchedRunner(benchmark=NcclTests(), launcher=Recorder(), cluster=CLUSTER, variables=variables)
    result = runner.measure(DEFAULT, MESSAGES, repeat=0)
    assert (result.outcome, result.detail) == (Outcome.INVALID, "NCCL 2.18 has no PAT")


@pytest.mark.parametrize(
    ("launch", "outcome", "detail"),
    [
        (LaunchResult(exit_code=139), Outcome.CRASHED, "ended by SIGSEGV"),
        (LaunchResult(exit_code=-40), Outcome.CRASHED, "ended by signal 40"),
        (LaunchResult(exit_code=None, survivors=(7, 8)), Outcome.CRASHED, "still running after SIGKILL: 7, 8"),
        (LaunchResult(exit_code=1, dropped_bytes=9), Outcome.CRASHED, "9 bytes of earlier output were dropped"),
        (LaunchResult(exit_code=None, timed_out=True, wall_s=9), Outcome.TIMEOUT, "not done after 9 s"),
    ],
)
def test_endings_that_no_stand_in_can_play(runner, launch, outcome, detail):
    """Signals reported by a shell, real-time signals, processes that hang in a driver."""
    result = runner(launcher=Recorder(launch)).measure(DEFAULT, MESSAGES, repeat=0)
    assert result.outcome is outcome
    assert detail in result.detail


def test_detail_is_short(runner):
    """At most so many lines, and long ones are cut."""
    launch = LaunchResult(exit_code=1, stdout="\n".join(f"{n} {'x' * 5000}" for n in range(100)))
    detail = runner(launcher=Recorder(launch)).measure(DEFAULT, MESSAGES, repeat=0).detail
    assert len(detail.splitlines()) == DETAIL_LINES
    assert "99 xxx" in detail
    assert max(map(len, detail.splitlines())) <= 800


def test_time_grows_with_the_bytes():
    """A fixed start and a floor of bandwidth."""
    rule = TimeoutRule(start_s=10, slowest_gbps=1.0, calls=50)
    assert rule.timeout_s(MESSAGES[:1]) == pytest.approx(10 + 50 * (4 << 20) / 1e9)


def test_kill_ends_the_trial_and_all_that_follow(runner):
    """It is no result: an interrupted trial must not be recorded as a crash."""
    measured = runner("hang", timeout_s=60.0)
    timer = threading.Timer(0.4, measured.kill)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        measured.measure(DEFAULT, MESSAGES, repeat=0)
    timer.join()
    with pytest.raises(KeyboardInterrupt):
        measured.measure(DEFAULT, MESSAGES, repeat=0)
