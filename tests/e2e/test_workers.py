"""Several processes work on one study."""

import json
import time

import psycopg
import pytest

from ncclt.errors import StoreError
from ncclt.store import open_store

WORKERS = 4
TRIALS = 16


@pytest.mark.thorough
def test_four_workers_on_one_postgresql_study_lose_and_repeat_nothing(ncclt, postgresql):
    with psycopg.connect(postgresql.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE workers")
    url = postgresql.get_uri(database="workers")
    words = ("tune", "--model", "nasnetmobile", "--trials", TRIALS, "--patience", 0, "--storage", url, "--json")

    started = [ncclt.start(*words) for _ in range(WORKERS)]
    outputs = [process.communicate(timeout=300) for process in started]

    assert [process.returncode for process in started] == [0] * WORKERS, outputs
    documents = [json.loads(out) for out, _ in outputs]
    proven = [document for document in documents if document["recommendation"]]
    with open_store(url) as store:
        study = store.studies.get(documents[0]["study"])
        trials = store.trials.find(study.id)
        published = store.recommendations.find(study=study.id)
        left = (store.leases.workers(study.id), store.leases.running(study.id))
    searched = [trial for trial in trials if trial.phase == "search"]
    launches = [(trial.setting, trial.repeat) for trial in trials]
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len(launches) == len(set(launches))
    assert len(searched) == TRIALS
    assert len(published) == 1
    assert {document["recommendation"]["id"] for document in proven} == {published[0].id}
    assert left == ((), ())


def test_a_killed_worker_does_not_hold_up_the_others(ncclt, tmp_path):
    url = f"sqlite:///{tmp_path / 'ncclt.db'}"
    words = ("tune", "--model", "bert", "--cluster", "leonardo", "--trials", 20, "--patience", 0, "--json")
    words = (*words, "--launcher", "simulate", "--storage", url)
    first, second = (ncclt.start(*words) for _ in range(2))
    deadline = time.monotonic() + 120
    while trials_of(url) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    first.kill()
    first.communicate(timeout=240)
    out, err = second.communicate(timeout=180)

    assert second.returncode == 0, err
    study = json.loads(out)
    assert study["verdict"] is not None
    # What the dead one had claimed went to the other: no number is missing.
    numbers = sorted(trial["number"] for trial in study["trials"])
    assert len(numbers) >= 10
    assert numbers == list(range(len(numbers)))


def trials_of(url):
    try:
        with open_store(url, migrate=False) as store:
            return sum(summary.trials for summary in store.studies.page().items)
    except StoreError:
        return 0
