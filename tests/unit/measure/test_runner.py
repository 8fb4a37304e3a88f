"""The runner of real launches, with a stand-in for nccl-tests; how it fails in every way is in tests/integration."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Measurement, Outcome
from ncclt.errors import SettingError, UsageError
from ncclt.launch.launcher import LaunchPlan, LaunchResult
from ncclt.launch.local import LocalLauncher
from ncclt.measure import LaunchedRunner, SamplingLimit, Timeouts, ask_through
from ncclt.measure.benchmarks.benchmark import BenchmarkCommand, BenchmarkReading
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.measure.benchmarks.nccl_tests.features import LEAST, NcclTestsFeatures, detect
from ncclt.testing.samples import sample_cluster

STAND_IN = Path(__file__).parents[2] / "fakes" / "nccl_tests_stand_in.py"
CLUSTER = sample_cluster("here", nodes=1)
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

    def make(fault="", *, features=LEAST, timeout_s=20.0, launcher=None, folder=programs, **options):
        def variables(setting):
            return {"STAND_IN": fault} | ({"NCCL_ALGO": setting.algorithm.value} if setting.algorithm else {})

        return LaunchedRunner(
            benchmark=NcclTests(folder=folder, features=features),
            launcher=launcher or LocalLauncher(environment=os.environ, grace_s=0.2, keep_bytes=1 << 20),
            cluster=CLUSTER,
            variables=variables,
            timeouts=Timeouts(start_s=timeout_s),
            scratch=tmp_path,
            **options,
        )

    return make


def expected_us(message, factor=1):
    return pytest.approx((20 + message.size_bytes / 10_000) * factor, rel=1e-3)


JSON = NcclTestsFeatures(json=True, cycles=True, per_iteration=True)


@pytest.mark.parametrize(
    ("features", "samples"), [(LEAST, 1), (NcclTestsFeatures(cycles=True), 2), (JSON, 20)], ids=["old", "text", "json"]
)
def test_every_message_is_measured_in_the_order_asked_for(runner, features, samples, tmp_path):
    """All sizes of a collective in one launch; no result file, which holds the environment, stays behind."""
    measured = runner(features=features)
    result = measured.measure(DEFAULT, MESSAGES, repeat=0)
    assert (result.outcome, result.detail) == (Outcome.OK, "")
    assert [m.message for m in result.measurements] == MESSAGES
    assert [m.time_us for m in result.measurements] == [expected_us(m) for m in MESSAGES]
    assert len(result.measurements[0].samples_us) == samples
    assert result.wall_s > 0
    assert not list(tmp_path.iterdir())
    assert (measured.name, measured.simulated, measured.cluster) == ("local", False, CLUSTER)


def test_a_scratch_folder_that_is_not_shared_is_not_used(runner, tmp_path):
    """Ranks in other containers write into another /tmp; the table comes back over standard output."""
    recorder = Recorder()
    runner(features=JSON, launcher=recorder, scratch_is_shared=False).measure(DEFAULT, MESSAGES, repeat=0)
    assert "-J" not in recorder.plans[0].argv
    runner(features=JSON, launcher=recorder).measure(DEFAULT, MESSAGES, repeat=0)
    assert str(tmp_path) in recorder.plans[1].argv[-1]


def test_programs_are_asked_where_they_would_run(runner, programs, tmp_path):
    """The stand-in is a script, so its file tells nothing; a missing one stops before the study."""
    launcher = LocalLauncher(environment=os.environ)
    assert detect(programs, run=ask_through(launcher)).per_iteration
    with pytest.raises(UsageError, match="cannot find nccl-tests where they would run: cannot start "):
        detect(tmp_path / "nowhere", run=ask_through(launcher))


def test_a_setting_reaches_the_command(runner):
    """The stand-in's tree is half as fast."""
    result = runner().measure(Setting(algorithm=Algorithm.TREE), MESSAGES[:1], repeat=3)
    assert result.measurements[0].time_us == expected_us(MESSAGES[0], 2)


def test_a_policy_that_variables_deliver_takes_one_launch(runner):
    policy = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING),))
    found = runner(policy_variables=lambda asked: {"NCCL_ALGO": "ring"} if asked == policy else None)

    result = found.measure_policy(policy, MESSAGES, repeat=0)
    assert result.outcome is Outcome.OK
    assert [m.message for m in result.measurements] == MESSAGES
    assert found.applies(policy)
    assert not found.applies(Policy())
    assert not runner().applies(policy), "a runner that was told no way"


def test_what_was_measured_before_a_failure_is_kept(runner):
    """Two commands, and the second ends badly."""

    class SecondFails(LocalLauncher):
        calls = 0

        def run(self, plan):
            self.calls += 1
            return super().run(plan) if self.calls == 1 else LaunchResult(exit_code=3, stderr="no more")

    result = runner(launcher=SecondFails()).measure(DEFAULT, MESSAGES, repeat=0)
    assert result.outcome is Outcome.CRASHED
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


def test_a_trial_whose_log_shows_another_p2p_chunk_is_substituted(runner, subtests):
    """A trial requests no log, but a file of the site can."""
    log = "n1:4:5 [0] NCCL INFO comm 0xa rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n"
    wanted = Setting(parameters=(("BUFFSIZE", 8 << 20), ("P2P_NET_CHUNKSIZE", 1 << 20)))
    small = Setting(parameters=(("P2P_NET_CHUNKSIZE", 1 << 16),))
    for setting, chunk, outcome in [
        (wanted, 1 << 20, Outcome.OK),
        (wanted, None, Outcome.OK),
        (wanted, 1 << 17, Outcome.SUBSTITUTED),
        (small, 1 << 17, Outcome.SUBSTITUTED),
        (DEFAULT, 1 << 17, Outcome.OK),
    ]:
        with subtests.test(setting=setting.label, chunk=chunk):
            said = f"{log}n1:4:5 [0] NCCL INFO P2P Chunksize set to {chunk}\n" if chunk else ""
            launcher = Recorder(LaunchResult(exit_code=0, stdout=table(MESSAGES[:1]), stderr=said))
            result = runner(launcher=launcher).measure(setting, MESSAGES[:1], repeat=0)
            assert result.outcome is outcome
            assert ("P2P chunk of 128 KiB" in result.detail) is (outcome is Outcome.SUBSTITUTED)
            assert bool(result.measurements) is (outcome is Outcome.OK)


def test_the_limit_follows_the_default(runner):
    """Generous for the first launch, then a few times what the default took, for every setting."""
    answer = LaunchResult(exit_code=0, stdout=table(MESSAGES[:1]), wall_s=20.0)
    recorder = Recorder(answer)
    measured = runner(launcher=recorder, timeout_s=900.0)
    for setting in (DEFAULT, Setting(algorithm=Algorithm.TREE)):
        assert measured.measure(setting, MESSAGES[:1], repeat=0).outcome is Outcome.OK
    assert [plan.timeout_s > 900 for plan in recorder.plans] == [True, False]
    assert recorder.plans[1].timeout_s == 100


def test_a_slow_setting_does_not_make_the_limit_longer(runner):
    """Only the default says what is normal, and only where it ended well."""
    recorder = Recorder(LaunchResult(exit_code=0, stdout=table(MESSAGES[:1]), wall_s=20.0))
    measured = runner(launcher=recorder, timeout_s=900.0)
    measured.measure(Setting(algorithm=Algorithm.TREE), MESSAGES[:1], repeat=0)
    recorder.result = LaunchResult(exit_code=1, wall_s=1.0)
    measured.measure(DEFAULT, MESSAGES[:1], repeat=0)
    measured.measure(DEFAULT, MESSAGES[:1], repeat=1)
    assert min(plan.timeout_s for plan in recorder.plans) > 900


def test_a_resumed_study_knows_the_default_already(runner):
    """Its stored launch of all messages took so long."""
    recorder = Recorder()
    measured = runner(launcher=recorder, timeout_s=900.0)
    measured.calibrate(30.0, {})
    measured.measure(Setting(algorithm=Algorithm.TREE), MESSAGES, repeat=0)
    assert recorder.plans[0].timeout_s == 150


class Sampler:
    """A benchmark that can stop early and notes what it was told; every message takes 100 µs."""

    name = "sampler"

    def __init__(self, enough_us=None, told=None):
        self.enough_us, self.told = enough_us or {}, [] if told is None else told

    def paced(self, enough_us):
        return Sampler(enough_us, self.told)

    def commands(self, messages, *, folder):
        return (
            BenchmarkCommand(
                argv=("sampler", *(f"{self.enough_us.get(m, 0):g}" for m in messages)), messages=tuple(messages)
            ),
        )

    def read(self, command, output):
        self.told.append(self.enough_us)
        return BenchmarkReading(
            measurements=tuple(Measurement(message=m, samples_us=(100.0,)) for m in command.messages)
        )


def paced(sampling, launcher):
    return LaunchedRunner(
        benchmark=Sampler(),
        launcher=launcher,
        cluster=CLUSTER,
        variables=lambda _setting: {},
        sampling=sampling,
        scratch_is_shared=False,
    )


def test_the_default_tells_when_other_settings_have_been_sampled_enough():
    """Runners of one study share it; plans show what launches do."""
    sampling, recorder, tree = SamplingLimit(), Recorder(), Setting(algorithm=Algorithm.TREE)
    first, second = paced(sampling, recorder), paced(sampling, recorder)
    for setting in (tree, DEFAULT, tree):
        assert first.measure(setting, MESSAGES[:2], repeat=0).outcome is Outcome.OK
    second.measure(tree, MESSAGES[1:3], repeat=0)

    assert [plan.argv[1:] for plan in recorder.plans] == [("0", "0"), ("0", "0"), ("150", "150"), ("150", "0")]
    assert first.plans(tree, MESSAGES[:2])[0].argv == recorder.plans[2].argv


def test_a_default_that_fails_sets_no_pace():
    sampling = SamplingLimit()
    paced(sampling, Recorder(LaunchResult(exit_code=1))).measure(DEFAULT, MESSAGES[:1], repeat=0)
    assert sampling.enough_us(MESSAGES[:1]) == (None,)


def test_a_resumed_study_knows_its_pace_already():
    recorder = Recorder()
    runner = paced(SamplingLimit(), recorder)
    runner.calibrate(30.0, {MESSAGES[0]: 8.0})
    runner.measure(DEFAULT, MESSAGES[:1], repeat=1)
    assert recorder.plans[0].argv[1] == "12"


def test_a_benchmark_that_cannot_stop_early_is_left_alone(runner):
    recorder = Recorder(LaunchResult(exit_code=0, stdout=table(MESSAGES[:1])))
    measured = runner(launcher=recorder, sampling=SamplingLimit())
    for repeat in range(2):
        measured.measure(DEFAULT, MESSAGES[:1], repeat=repeat)
    assert recorder.plans[0].argv == recorder.plans[1].argv


def table(messages):
    """What nccl-tests prints for some messages."""
    half = "time algbw busbw #wrong"
    rows = "\n".join(f"{m.size_bytes} {m.size_bytes // 4} float sum -1 20 1 1 0 18 1 1 0" for m in messages)
    return f"# nThread 1\n# size count type redop root {half} {half}\n{rows}\n"


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
