"""`ncclt studies replay`: another sampler on what a study has measured."""

import json

import pytest

from ncclt.cli.studies import replay_study
from ncclt.core.study import Phase, Study, StudyState
from ncclt.errors import UsageError
from ncclt.measure.testbed import simulated_testbed
from ncclt.measure.trial import launch
from ncclt.search.space import cluster_space
from ncclt.testing.fakes import FakeTrialLog
from ncclt.testing.store_contract import sample_cluster, sample_workload


@pytest.fixture
def searched(command):
    """A store with a study that launched every setting on the simulated cluster."""
    cluster = sample_cluster()
    workload = sample_workload().placed(nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node)
    runner, trial_log = simulated_testbed(cluster, seed=1, reason="test").runner, FakeTrialLog()
    for setting in cluster_space(workload.collectives, cluster, parameters={}).distinct[:24]:
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)
    command.store.open_study(
        Study(
            id="abc123", name="s", cluster=cluster, workload=workload, launcher="simulate", simulated=True,
            process_wide=(), seed=1, state=StudyState.DONE,
        )
    )  # fmt: skip
    for trial in trial_log.trials():
        command.store.add_trial("abc123", trial)
    return command


def test_samplers_are_compared_on_the_same_measurements(searched):
    words = ("abc123", "--sampler", "ours", "--sampler", "tpe", "--seeds", "2", "--trials", "6")

    document = json.loads(searched(replay_study, *words, "--json"))

    assert [row["sampler"] for row in document["samplers"]] == ["ours", "tpe"]
    for row in document["samplers"]:
        assert row["seeds"] == 2
        assert 0 <= row["regret"]["5"]["mean"] <= row["regret"]["5"]["worst"] <= document["default_regret"] + 1e-9
        assert len(row["launches_within"]["0.03"]) == 2
    text = searched(replay_study, *words)
    assert "settings were measured" in text
    assert "launches to 1 %" in text


def test_a_senseless_number_is_refused(searched):
    with pytest.raises(UsageError):
        searched(replay_study, "abc123", "--seeds", "0")
