"""The rich store has what the pages must show, and every page of it answers within its size."""

import importlib.util
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from ncclt.core.preflight import State
from ncclt.core.trial import Outcome
from ncclt.store import open_store
from ncclt_api.app import create_app

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def rich():
    """The module that fills a store."""
    path = Path(__file__).parents[2] / "bench" / "rich_store.py"
    spec = importlib.util.spec_from_file_location("rich_store_of_tests", path)
    module = sys.modules["rich_store_of_tests"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def store(rich, tmp_path_factory):
    with open_store(f"sqlite:///{tmp_path_factory.mktemp('rich')}/a.db") as store:
        rich.fill(store, now=NOW)
        yield store


def test_everything_that_pages_show_is_there(rich, store):
    pairs = store.recommendations.pairs()
    recommendations = [pair.recommendation for pair in pairs if pair.recommendation]
    assert {one.table.verdict.decision.value for one in recommendations} == {"tuned", "keep-default", "undecided"}
    assert {one.origin.value for one in recommendations} == {"measured", "recorded", "simulated"}
    assert any(one.stale for one in recommendations)
    assert sum(pair.running for pair in pairs) >= 3
    assert {pair.cluster for pair in pairs} & set(rich.HOSTILE)
    assert {one.state for one in store.records.preflights(cluster="hall-a")} == {State.HEALTHY, State.DEGRADED}
    trials = store.trials.page("10000aaaaaaa", limit=600)
    assert len(trials) == rich.SMALL.long
    assert {trial.result.outcome for trial in trials} > {Outcome.OK, Outcome.CRASHED, Outcome.WRONG_RESULT}
    assert len(store.studies.page(limit=500).items) == rich.SMALL.studies + 1


def test_the_same_store_is_made_again(rich, store, tmp_path):
    with open_store(f"sqlite:///{tmp_path}/b.db") as other:
        rich.fill(other, now=NOW)
        assert other.recommendations.pairs() == store.recommendations.pairs()


def test_names_that_break_pages_can_be_left_out(rich, tmp_path):
    size = rich.Size(studies=12, measurements=200, long=60, replays=0, hostile=False)
    with open_store(f"sqlite:///{tmp_path}/b.db") as plain:
        rich.fill(plain, size, now=NOW)
        names = {name for pair in plain.recommendations.pairs() for name in (pair.cluster, pair.model)}
    assert not names & set(rich.HOSTILE)


def test_every_page_of_it_answers_and_stays_small(rich, store):
    names = [f"/clusters/{quote(cluster.name, safe='')}" for cluster, _ in store.clusters.entries()]
    names += [f"/workloads/{quote(workload.name, safe='')}" for workload, _ in store.workloads.entries()]
    with TestClient(create_app(store)) as client:
        lists = ("/", "/?days=30", "/?state=stale", "/studies", "/live", "/find?q=hall", "/compare?model=chat-13b")
        for path in (*lists, *names):
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert len(answer.content) < 200_000, path
            assert rich.HOSTILE[0] not in answer.text
