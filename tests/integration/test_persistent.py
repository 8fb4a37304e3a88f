"""Persistent ranks of gloo: settings come into force in them, and whatever they do to them the next trial is sound."""

import os
import re
import runpy
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.errors import NotStartedError, SettingError, UsageError
from ncclt.launch.launcher import JobShape
from ncclt.launch.torchrun import TorchrunLauncher
from ncclt.measure import PersistentRunner, Timeouts
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives
from ncclt.measure.limits import SamplingLimit
from ncclt.measure.persistent import session as session_module
from ncclt.nccl.switching import SwitchCost
from ncclt.testing.samples import sample_cluster
from runner_contract import RunnerContract

pytest.importorskip("torch.distributed")
FAKES = Path(__file__).parents[1] / "fakes"
LEFTOVERS = runpy.run_path(str(FAKES / "leftovers.py"))
PATIENCE_S = 240.0

CLUSTER = replace(sample_cluster("here", nodes=1), gpus_per_node=2, link_gbps=10.0, nccl_version="2.30.7")
MESSAGES = tuple(
    Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=2) for size in (4096, 65536)
)
# The ranks' own patience is longer than any limit here, so that what hangs is seen by the limit on a busy machine too.
BENCHMARK = TorchCollectives(backend="gloo", budget_s=0.01, timeout_s=2 * PATIENCE_S)

# What the settings of these tests stand for; NCCL itself takes no part.
SAID = {
    Setting(channels=1): {"NCCL_ALGO": "nothing"},
    Setting(channels=2): {"NCCL_MIN_CTAS": "2"},
    Setting(channels=3): {"NCCL_ALGO": "kill-1"},
    Setting(channels=4): {"NCCL_ALGO": "stop-1"},
    Setting(channels=5): {"NCCL_ALGO": "raise-1"},
    Setting(channels=6): {"NCCL_ALGO": "wrong-1"},
    Setting(channels=7): {"NCCL_ALGO": "slow-1"},
    Setting(channels=8): {"NCCL_P2P_LEVEL": "SYS"},
}
ALGO, CTAS, KILL, STOP, RAISE, WRONG, SLOW, FIXED = SAID


def variables(setting):
    if setting.parameters:
        raise SettingError("NCCL takes no such thing")
    return SAID.get(setting, {})


def environment(**more):
    left_out = ("NCCL", "SLURM_", "OMPI_", "PMI_", "TORCH_FAULT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
    return {k: v for k, v in os.environ.items() if not k.startswith(left_out)} | {"OMP_NUM_THREADS": "1"} | more


def create_launcher(word, notes, *, processes=2):
    given = environment(WORD=word, NOTES_FOLDER=str(notes), PYTHONPATH=str(FAKES / "torch_faults_by_setting"))
    return TorchrunLauncher(shape=JobShape(processes_per_node=processes), environment=given, grace_s=1.0)


def runner_of(launcher, *, benchmark=BENCHMARK, **options):
    # The limit follows from the default's own time here, so a slow machine waits longer for what hangs.
    timeouts = Timeouts(start_s=PATIENCE_S, floor_s=10.0, factor=1.5)
    return PersistentRunner(
        benchmark=benchmark, launcher=launcher, cluster=CLUSTER, variables=variables, timeouts=timeouts, **options
    )


class Ranks:
    """A runner, and what its ranks have noted."""

    def __init__(self, runner, word, notes, sampling):
        self.runner, self.word, self.notes, self.sampling = runner, word, notes, sampling

    def measure(self, setting, messages=MESSAGES):
        return self.runner.measure(setting, messages, repeat=0)

    def sound(self):
        """Measure the default and return the process ids of the ranks."""
        result = self.measure(DEFAULT)
        assert result.outcome is Outcome.OK, result.detail
        assert [m.message for m in result.measurements] == list(MESSAGES)
        assert all(m.wrong == 0 for m in result.measurements)
        assert [words[2:] for words in self.last()] == [["None", "None"]] * 2
        return [int(words[1]) for words in self.last()]

    def last(self):
        """Return the last note of each rank."""
        return [(self.notes / str(rank)).read_text().splitlines()[-1].split() for rank in range(2)]


@pytest.fixture(autouse=True)
def no_process_left():
    """Ranks that a test starts stay for the next one; `ranks` ends them, and looks for what is left, after the last."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """A runner for all tests of this file: each test begins with whatever the one before has left."""
    word, notes = f"ncclt-test-{os.getpid()}-{time.monotonic_ns()}", tmp_path_factory.mktemp("notes")
    runner = runner_of(create_launcher(word, notes), place="here", sampling=(sampling := SamplingLimit()))
    try:
        yield Ranks(runner, word, notes, sampling)
    finally:
        runner.close()
    assert not LEFTOVERS["soon_gone"](word)


class TestPersistentRunner(RunnerContract):
    """It is a runner like others."""

    @pytest.fixture(autouse=True)
    def _ranks(self, ranks):
        self._runner = ranks.runner

    def runner(self):
        return self._runner

    def messages(self):
        return MESSAGES


def test_settings_come_into_force_without_a_relaunch_and_leave_nothing(ranks):
    """The same processes see each variable on every rank, and the default sees none."""
    before = ranks.sound()
    counted = ranks.runner.switches.copy()
    for setting, seen in ((ALGO, ["nothing", "None"]), (CTAS, ["None", "2"]), (ALGO, ["nothing", "None"])):
        result = ranks.measure(setting)
        assert result.outcome is Outcome.OK, result.detail
        assert [words[2:] for words in ranks.last()] == [seen] * 2
    assert ranks.measure(ALGO).outcome is Outcome.OK
    assert ranks.sound() == before
    assert ranks.runner.switches - counted == {SwitchCost.COMMUNICATOR: 4, SwitchCost.CALL: 1}
    assert (result.place, result.persistent) == ("here", True)


@pytest.mark.thorough
def test_what_nccl_fixes_for_life_takes_new_ranks(ranks):
    before = ranks.sound()
    assert ranks.measure(FIXED).outcome is Outcome.OK
    between = [int(words[1]) for words in ranks.last()]
    after = ranks.sound()
    assert len({*before, *between, *after}) == 6


def test_a_slow_setting_is_measured_as_slow(ranks):
    before = ranks.sound()
    result = ranks.measure(SLOW)
    assert result.outcome is Outcome.OK, result.detail
    assert all(sample >= 20_000 for m in result.measurements for sample in m.samples_us)
    assert ranks.sound() == before


@pytest.mark.parametrize(
    ("setting", "outcome", "words"),
    [
        (KILL, Outcome.CRASHED, "SIGKILL|all_reduce:float32:1024:2: RuntimeError: "),  # whoever is seen first
        pytest.param(WRONG, Outcome.WRONG_RESULT, "data came out wrong", marks=pytest.mark.thorough),
        pytest.param(STOP, Outcome.TIMEOUT, "not done within ", marks=pytest.mark.thorough),
    ],
    ids=["killed", "wrong", "hang"],
)
def test_what_a_setting_does_to_the_ranks_is_its_outcome_and_nobody_elses(ranks, setting, outcome, words):
    before = ranks.sound()
    result = ranks.measure(setting)
    assert result.outcome is outcome, result.detail
    assert re.search(words, result.detail)
    assert not LEFTOVERS["soon_gone"](ranks.word)
    assert not set(ranks.sound()) & set(before)
    assert result.wall_s > 0


@pytest.mark.thorough
def test_equal_failures_read_equal(ranks):
    """A study stops at many equal failures in a row, and recognises them by the first line."""
    before = ranks.sound()
    first, second = ranks.measure(RAISE), ranks.measure(RAISE)
    assert first.outcome is Outcome.CRASHED, first.detail
    assert "all_reduce:float32:1024:2: RuntimeError: the cable is gone" in first.detail
    assert first.detail.splitlines()[0] == second.detail.splitlines()[0]
    assert not LEFTOVERS["soon_gone"](ranks.word)
    assert not set(ranks.sound()) & set(before)


def test_messages_that_the_ranks_refuse_leave_them_alive(ranks):
    before = ranks.sound()
    odd = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=3)
    result = ranks.measure(DEFAULT, [odd])
    assert result.outcome is Outcome.CRASHED
    assert "2 ranks on 1 nodes cannot be cut into groups of 3" in result.detail
    assert ranks.sound() == before


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.thorough)], ids=["died", "hangs"]
)
def test_ranks_that_are_lost_between_trials_are_replaced_and_no_trial_is_blamed(ranks, number, monkeypatch):
    monkeypatch.setattr(session_module, "BEGIN_S", 15.0)
    before = ranks.sound()
    os.kill(before[1], number)
    result = ranks.measure(ALGO)
    assert result.outcome is Outcome.OK, result.detail
    assert not set(ranks.sound()) & set(before)


def test_close_ends_everything_and_the_next_trial_starts_anew(ranks):
    before = ranks.sound()
    ranks.runner.close()
    assert not LEFTOVERS["soon_gone"](ranks.word)
    ranks.runner.close()
    assert not set(ranks.sound()) & set(before)


def test_slow_messages_are_sampled_less_once_the_default_is_known(ranks):
    """A message that no other test measures."""
    slow = replace(MESSAGES[0], size_bytes=8192)
    before = ranks.sound()
    ranks.sampling.learn({slow: 1e-3})
    result = ranks.measure(ALGO, [slow])
    assert result.outcome is Outcome.OK, result.detail
    assert [len(m.samples_us) <= 8 for m in result.measurements] == [True]
    assert ranks.sound() == before


def test_ranks_that_cannot_be_started_say_nothing_of_a_setting(tmp_path):
    """And no token stays behind."""
    nowhere = TorchCollectives(backend="gloo", python="/nowhere/python")
    runner = runner_of(
        create_launcher("nowhere", tmp_path), benchmark=nowhere, scratch=(scratch := tmp_path / "scratch")
    )
    scratch.mkdir()
    with pytest.raises(NotStartedError, match="/nowhere/python"):
        runner.measure(DEFAULT, MESSAGES, repeat=0)
    assert list(scratch.iterdir()) == []
    runner.close()


def test_what_cannot_stay_is_refused_with_a_hint(tmp_path):
    class Elsewhere:
        name, reaches_back = "elsewhere", False

    for options in ({"launcher": Elsewhere()}, {"launcher": create_launcher("x", tmp_path), "benchmark": NcclTests()}):
        with pytest.raises(UsageError) as caught:
            runner_of(**options)
        assert "--persistent" in caught.value.hint
