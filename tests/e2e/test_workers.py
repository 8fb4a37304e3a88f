"""Several processes work on one study."""

import json
import time

from ncclt.errors import StoreError
from ncclt.store import open_store


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
