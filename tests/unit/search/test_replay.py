"""A study searched again on its own measurements."""

import importlib.util

import pytest

from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Study, StudyState
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.measure.trial import launch
from ncclt.search.replay import recording_of, replay
from ncclt.search.space import cluster_space
from ncclt.testing.fakes import FakeRunner, FakeTrialLog


def study_of(cluster, workload):
    return Study(
        id="s1", name="s", cluster=cluster, workload=workload, launcher="fake", simulated=True, process_wide=(),
        seed=0, state=StudyState.DONE,
    )  # fmt: skip


@pytest.fixture
def recording(cluster, workload, landscape):
    """Every setting of the space, launched once, and one that crashes."""
    space = cluster_space(workload.collectives, cluster, parameters={})
    crashing = next(s for s in space.distinct if s.channels == 64)

    def time_of(setting, message, number):
        return Outcome.CRASHED if setting == crashing else landscape(setting, message, number)

    trial_log, runner = FakeTrialLog(), FakeRunner(cluster, time_of)
    for setting in (DEFAULT, *(s for s in space.distinct if not s.is_default)):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)
    return recording_of(study_of(cluster, workload), trial_log.trials())


SAMPLERS = [
    "ours",
    "tpe",
    "random",
    pytest.param(
        "gp", marks=pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
    ),
]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sampler_begins_at_the_default_and_never_loses_what_it_knows(recording, sampler):
    found = replay(recording, sampler, seed=1, launches=8)

    # The default takes 1200 us per step; tree/ll on small messages and many ring channels on the large one 940.
    assert found.regrets[0] == pytest.approx(1200 / recording.ideal_us - 1)
    assert len(found.regrets) <= 8
    assert list(found.regrets) == sorted(found.regrets, reverse=True), "without noise more knowledge is not a worse"
    assert replay(recording, sampler, seed=1, launches=8) == found


def test_launches_within_count_from_where_the_regret_stays(recording):
    found = replay(recording, "random", seed=1, launches=3)
    wavering = type(found)(sampler="x", seed=0, regrets=(0.2, 0.005, 0.04, 0.01, 0.0))

    assert (wavering.launches_within(0.03), wavering.launches_within(0.001)) == (4, 5)
    assert type(found)(sampler="x", seed=0, regrets=(0.2, 0.1)).launches_within(0.05) is None


def test_an_unknown_sampler_or_a_study_without_a_search_is_refused(recording, cluster, workload, landscape):
    with pytest.raises(UsageError, match="unknown sampler 'best'"):
        replay(recording, "best", seed=0, launches=5)
    trial_log = FakeTrialLog()
    launch(FakeRunner(cluster, landscape), workload, trial_log, Setting(), phase=Phase.SEARCH)
    with pytest.raises(UsageError, match="too few"):
        recording_of(study_of(cluster, workload), trial_log.trials())
