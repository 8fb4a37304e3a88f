"""`ncclt tune --on-jobs`: candidates for jobs, shown, opened and followed."""

import json

import pytest

from ncclt.cli.studies import show
from ncclt.cli.tune import tune
from ncclt.errors import ConflictError, NotFoundError
from ncclt.testing.samples import sample_cluster, sample_workload

WORDS = ("--model", sample_workload().name, "--cluster", sample_cluster().name, "--on-jobs")


@pytest.fixture
def started(command):
    """A caller with the workload and the cluster in its store."""
    command.store.workloads.add(sample_workload(), replace=True)
    command.store.clusters.add(sample_cluster(), replace=True)
    return command


def test_dry_run_shows_the_candidates_and_stores_nothing(started):
    first, *lines = started(tune, *WORDS, "--dry-run").splitlines()
    assert first == "jobs: toy on pair: 2 x 4 A100-SXM4-64GB, NCCL 2.28.9"
    assert all(line.startswith("candidate ") for line in lines[:-2])
    assert lines[-2:] == ["control: the jobs' own settings", "evidence: none yet; jobs will try the candidates"]
    assert started.store.recommendations.find(model=sample_workload().name) == ()


def test_candidates_become_arms_of_a_roll_out_that_the_study_follows(started):
    document = json.loads(started(tune, *WORDS, "--max-cost", "0.01", "--json"))
    rollout = started.store.revisions.rollout(document["rollout"])
    assert [arm.recommendation for arm in rollout.arms] == [one["id"] for one in document["candidates"]]
    assert rollout.max_cost == 0.01
    study = started.store.recommendations.get(document["candidates"][0]["id"]).study
    shown = started(show, study)
    assert f"roll-out {rollout.id} (running): 0 job starts against the jobs' own settings" in shown
    with pytest.raises(NotFoundError, match="has no trials"):
        started(show, study, "--evidence")
    with pytest.raises(ConflictError):
        started(tune, *WORDS)
