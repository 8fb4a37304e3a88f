"""Several processes work on one study."""

import json
import subprocess

import psycopg

from ncclt.store import open_store

WORKERS = 8
TRIALS = 24


def test_eight_workers_on_one_postgresql_study_lose_and_repeat_nothing(ncclt, postgresql):
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
        study = store.study(documents[0]["study"])
        trials = store.trials(study.id)
        published = store.recommendations(study=study.id)
        left = (store.workers(study.id), store.running(study.id))
    searched = [trial for trial in trials if trial.phase == "search"]
    launches = [(trial.setting, trial.repeat) for trial in trials]
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len(launches) == len(set(launches))
    assert len(searched) == TRIALS
    assert len(published) == 1
    assert {document["recommendation"]["id"] for document in proven} == {published[0].id}
    assert left == ((), ())


def test_trials_at_once_in_one_process_find_what_one_at_a_time_finds(ncclt):
    words = ("tune", "--model", "resnet101", "--trials", 16, "--patience", 0, "--json", "--storage")

    one = json.loads(ncclt(*words, "sqlite:///one.db").stdout)
    four = json.loads(ncclt(*words, "sqlite:///four.db", "--parallel", 3).stdout)

    assert one["verdict"] == four["verdict"] == "tuned"
    assert abs(one["speedup"] / four["speedup"] - 1) < 0.03
    numbers = [trial["number"] for trial in four["trials"]]
    assert sorted(numbers) == list(range(16))
    assert any("3 trials at once" in note for note in four["notes"])


def test_a_killed_worker_does_not_hold_up_the_others(ncclt, tmp_path):
    words = ("tune", "--model", "bert", "--trials", 30, "--patience", 0, "--json", "--storage", "sqlite:///ncclt.db")
    first, second = (ncclt.start(*words) for _ in range(2))
    try:
        second.wait(timeout=3)
    except subprocess.TimeoutExpired:
        first.kill()
    first.communicate(timeout=60)
    out, err = second.communicate(timeout=120)

    assert second.returncode == 0, err
    study = json.loads(out)
    assert study["verdict"] is not None
    assert sorted(trial["number"] for trial in study["trials"]) == list(range(30))
