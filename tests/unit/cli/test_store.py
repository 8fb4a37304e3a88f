"""`ncclt admin store prune`: what it says, and what it refuses."""

import sys
from dataclasses import replace
from functools import partial

import optuna
import pytest

from ncclt.cli.store import app
from ncclt.core.study import StudyState
from ncclt.errors import StoreError, UsageError
from ncclt.store import open_store
from ncclt.testing.samples import sample_recommendation, sample_study, sample_trial


@pytest.fixture
def prune(command):
    return partial(command.call, app, "prune")


@pytest.fixture
def old(command):
    """Fill the store with a study that ended long ago and published what was replaced; Optuna knows it too."""
    with open_store(command.url, clock=lambda: "2024-01-01T00:00:00.000+00:00") as store:
        study = store.studies.open(sample_study())
        store.trials.add(study.id, sample_trial(0))
        store.studies.set_state(study.id, StudyState.DONE, "")
        store.revisions.publish(replace(sample_recommendation("a"), study=study.id))
        store.revisions.publish(replace(sample_recommendation("b"), study="elsewhere"))
        optuna.create_study(storage=store.optuna_url, study_name=study.name)
        return store.optuna_url


def test_it_says_what_it_would_remove_and_then_what_it_has(prune, old, command):
    counts = "1 study, 1 trial, 1 revision\n"
    assert prune("--older-than", "180d", "--dry-run") == f"would remove {counts}"
    assert len(command.store.studies.page().items) == len(optuna.get_all_study_names(old)) == 1
    assert prune("--older-than", "180d") == f"removed {counts}"
    assert command.store.studies.page().items == ()
    assert prune("--older-than", "180d") == "removed nothing\n"
    assert optuna.get_all_study_names(old) == []
    assert [one.id for one in command.store.recommendations.find()] == ["b"]


@pytest.mark.parametrize("age", ["0d", "0", "180", "-3d", "1.5d", "d", "soon", "100000d", "180 d", "180d "])
def test_an_age_that_makes_no_sense_is_refused(prune, old, command, age):
    with pytest.raises(UsageError, match="is not a number of days") as refused:
        prune("--older-than", age)
    assert "180d" in refused.value.hint
    assert len(command.store.studies.page().items) == 1


def test_nothing_is_removed_where_optuna_cannot_be_asked_to_forget(prune, old, command, monkeypatch):
    monkeypatch.delitem(sys.modules, "ncclt.search.optuna_tables", raising=False)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ModuleNotFoundError, match="optuna"):
        prune("--older-than", "180d")
    assert len(command.store.studies.page().items) == 1


def test_a_store_that_is_not_there_is_not_made(prune, tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        prune("--older-than", "180d", url=f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
