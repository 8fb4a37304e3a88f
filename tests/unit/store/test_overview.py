"""Overviews: what stands where, found over indexes."""

from dataclasses import replace

import pytest
from full_records import fill_record
from sqlalchemy.dialects import sqlite

from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.study import StudyState
from ncclt.store.recommendations import newest_query, running_query
from ncclt.store.studies import MOST_FOUND
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_study, sample_trial, sample_workload


def plan_of(store, query):
    """Return how SQLite would run a query, as one text."""
    text = str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
    with store._database.reading() as connection:
        return " ".join(row[-1] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}"))


def test_the_map_is_read_from_indexes_alone(store):
    assert "COVERING INDEX ix_recommendations_newest" in plan_of(store, newest_query())
    assert "SEARCH recommendations USING COVERING INDEX" in plan_of(store, newest_query("pair"))
    assert "SEARCH studies USING COVERING INDEX ix_studies_state" in plan_of(store, running_query())


def test_a_pair_shows_what_a_job_would_get(store):
    base = sample_recommendation("a")
    store.revisions.publish(base)
    measured = replace(base, id="b", simulated=False, launcher="slurm")
    store.revisions.publish(measured)
    store.revisions.publish(replace(base, id="c"))  # newer, and only simulated
    store.revisions.publish(replace(measured, id="d", fingerprint=sample_cluster(nodes=4).fingerprint()))
    (pair,) = store.recommendations.pairs()
    assert (pair.cluster, pair.model, pair.shapes, pair.running) == ("pair", "toy", 2, 0)
    assert pair.recommendation.id == "d"
    assert [one.id for one in store.recommendations.newest_each(cluster="pair")] == ["d", "c", "b"]
    assert store.recommendations.newest_each(model="other") == ()


def test_what_was_measured_goes_before_what_was_recorded_or_simulated(store):
    """Whatever is newer."""
    base = sample_recommendation("a")
    origins = {
        "measured": {"simulated": False, "launcher": "slurm"},
        "recorded": {"simulated": False, "launcher": "replay"},
        "simulated": {"simulated": True},
    }
    larger = replace(base, id="y larger", model="y", fingerprint=sample_cluster(nodes=4).fingerprint())
    store.revisions.publish(replace(larger, **origins["recorded"]))
    orders = {"x": "recorded simulated", "y": "simulated recorded", "z": "recorded measured simulated"}
    for model, order in orders.items():
        for name in order.split():
            store.revisions.publish(replace(base, id=f"{model} {name}", model=model, **origins[name]))
    store.revisions.publish(replace(base, id="z newest", model="z", **origins["measured"]))
    store.revisions.publish(replace(base, id="z last", model="z", **origins["recorded"]))
    assert [pair.recommendation.id for pair in store.recommendations.pairs()] == [
        "x recorded",
        "y recorded",
        "z newest",
    ]
    assert [pair.shapes for pair in store.recommendations.pairs()] == [1, 2, 1]


def test_a_pair_says_that_it_is_stale_and_what_is_running(store):
    kept = store.revisions.publish(sample_recommendation("a"))
    of = {"recommendation": kept.id, "cluster": "pair", "model": "toy"}
    check = fill_record(Recheck, **of, freshness=Freshness.STALE, reasons=("the gain is lost",))
    store.records.add_recheck(check)
    store.studies.open(sample_study())
    (pair,) = store.recommendations.pairs(cluster="pair")
    assert "the gain is lost" in pair.recommendation.stale
    assert pair.running == 1
    assert store.recommendations.pairs(cluster="other") == ()


def test_a_pair_without_a_recommendation_is_there_while_it_is_searched(store):
    store.studies.open(sample_study())
    (pair,) = store.recommendations.pairs()
    assert (pair.recommendation, pair.running) == (None, 1)
    store.studies.set_state("abc123", StudyState.DONE, "")
    assert store.recommendations.pairs() == ()


def test_running_studies_are_separate_from_those_that_ended(store):
    for number in range(3):
        store.studies.open(sample_study(f"s{number}", id=f"id{number}"))
    store.studies.set_state("id1", StudyState.DONE, "")
    assert [one.study.id for one in store.studies.running()] == ["id2", "id0"]
    assert [one.study.id for one in store.studies.recent(limit=5)] == ["id1"]
    assert store.studies.running(cluster="other") == ()


def test_a_study_with_a_proof_is_summarised_without_reading_its_trials(store):
    study = store.studies.open(sample_study())
    store.trials.add(study.id, sample_trial(0))
    store.studies.set_state(study.id, StudyState.DONE, "")
    assert store.studies.recent(limit=5)[0].best_us == pytest.approx(123.456)
    store.revisions.publish(sample_recommendation("a"))
    for (one,) in (store.studies.recent(limit=5), store.studies.page().items):
        assert (one.best_us, one.recommendation.id, one.trials) == (None, "a", 1)


def test_eras_count_the_revisions_of_each_fingerprint(store):
    base = sample_recommendation("a")
    store.revisions.publish(replace(base, created="2026-01-01"))
    store.revisions.publish(replace(base, id="b", created="2026-01-03"))
    store.revisions.publish(
        replace(base, id="c", created="2026-01-05", fingerprint=sample_cluster(nodes=4).fingerprint())
    )
    newest, oldest = store.recommendations.fingerprint_periods("pair")
    assert (oldest.revisions, oldest.first, oldest.last) == (2, "2026-01-01", "2026-01-03")
    assert newest.revisions == 1


def test_names_are_found_by_a_part_whatever_its_case(store):
    store.clusters.add(sample_cluster("Hall-A"))
    store.studies.open(sample_study("bert on the hall", id="feed01"))
    assert [(kind, key) for kind, key, _ in store.studies.search("hall")] == [
        ("cluster", "Hall-A"),
        ("study", "feed01"),
    ]
    assert [key for _, key, _ in store.studies.search("FEED")] == ["feed01"]
    assert store.studies.search("leonard")[0][1] == "leonardo"
    assert store.studies.search("  ") == ()
    assert store.studies.search("100%_") == ()


def test_names_of_one_cluster_are_its_own_and_every_workload(store):
    for name in ("hall-a", "hall-b"):
        store.clusters.add(sample_cluster(name))
    for cluster, names in (("hall-b", ["hall-b"]), ("x", [])):
        assert [key for _, key, _ in store.studies.search("hall", cluster=cluster)] == names
    assert ("workload", "bert", "bert") in store.studies.search("bert", cluster="x")


def test_names_that_begin_with_it_come_first(store):
    for name in ("a-hall", "hall-b", "hall-a", "other"):
        store.clusters.add(sample_cluster(name))
    assert [key for _, key, _ in store.studies.search("HALL")] == ["hall-a", "hall-b", "a-hall"]
    for name in ("a-toy", "toy-b", "toy-a"):
        store.workloads.add(sample_workload(name))
    assert [key for _, key, _ in store.studies.search("TOY")] == ["toy-a", "toy-b", "a-toy"]


def test_what_was_published_before_is_found_again_whatever_the_id_of_its_successor(store):
    kept = store.revisions.publish(sample_recommendation("b"))
    for successor in ("a", "c"):
        store.revisions.publish(sample_recommendation(successor))
        assert store.revisions.publish(sample_recommendation("b")) == kept, "the answer may have been lost"


def test_before_the_first_revision_nothing_was_recommended(store):
    kept = store.revisions.publish(replace(sample_recommendation("a"), created="2026-02-01T00:00:00+00:00"))
    assert store.recommendations.preferred_before("2026-01-01T00:00:00+00:00") == {}
    assert store.recommendations.preferred_before("2026-03-01T00:00:00+00:00") == {("pair", "toy"): kept}


def test_no_kind_floods_the_others(store):
    for number in range(MOST_FOUND + 5):
        store.studies.open(sample_study(f"leonardo {number}", id=f"x{number}"))
    found = store.studies.search("leonardo")
    assert [kind for kind, _, _ in found] == ["cluster", *["study"] * MOST_FOUND]
    assert found[1][2] == f"leonardo {MOST_FOUND + 4}"
