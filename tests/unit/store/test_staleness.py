"""When a recommendation stops being served: what its newest check says, and whether its workload is still the same."""

from dataclasses import replace

import pytest
from full_records import fill_record

from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import Request, select
from ncclt.core.revision import Action
from ncclt.core.trial import TimesOrigin
from ncclt.errors import NotFoundError, StaleRecommendationError, StoreError
from ncclt.store import open_store, published
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_study, sample_workload


def sample_check(id, *, stale=True, recommendation="r1"):
    return fill_record(
        Recheck,
        id=id,
        recommendation=recommendation,
        cluster="pair",
        model="toy",
        freshness=Freshness.STALE if stale else Freshness.FRESH,
        reasons=("the gain is lost",) if stale else (),
        created="2026-01-02T03:04:05.678",
    )


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        opened.studies.open(sample_study())
        opened.revisions.publish(sample_recommendation("r1"))
        yield opened


def chosen(url, model):
    """What a job of the shape that was measured gets."""
    found = published(url, cluster="pair", model=model)
    measured = found[0].fingerprint
    shape = {part: getattr(measured, part) for part in ("nodes", "gpus_per_node", "nccl_version")}
    return select(found, Request(cluster="pair", model=model, allowed=frozenset(TimesOrigin), **shape))


def both_ways(store, url):
    """Return the recommendation's staleness as the store and as the fast reader of `ncclt env` tell it."""
    (slow,), (fast,) = store.recommendations.find(model="toy"), published(url, cluster="pair", model="toy")
    assert slow == fast
    return slow.stale


def test_the_newest_check_decides(store, url):
    assert both_ways(store, url) == ""

    store.records.add_recheck(sample_check("c1"))
    assert both_ways(store, url) == "the recheck of 2026-01-02 03:04 found: the gain is lost"
    assert store.recommendations.get("r1").stale
    assert store.studies.page().items[0].recommendation.stale

    store.records.add_recheck(sample_check("c2", stale=False))
    assert both_ways(store, url) == ""
    assert [check.id for check in store.records.rechecks("r1")] == ["c2", "c1"]
    assert store.records.rechecks("r1")[1] == sample_check("c1")


def test_a_new_revision_is_fresh(store, url):
    store.records.add_recheck(sample_check("c1"))
    store.revisions.publish(sample_recommendation("r2"))

    assert chosen(url, "toy").id == "r2"


def test_a_stale_one_is_refused_with_its_reason(store, url):
    store.revisions.publish(sample_recommendation("r0"))
    store.records.add_recheck(sample_check("c1", recommendation="r0"))

    with pytest.raises(StaleRecommendationError, match="the gain is lost") as caught:
        chosen(url, "toy")

    assert "ncclt tune" in caught.value.hint


def test_a_workload_that_was_replaced_makes_it_stale(store, url):
    first = sample_workload("mine")
    store.workloads.add(first)
    store.revisions.publish(replace(sample_recommendation("r2", model="mine"), source_digest=first.digest()))
    assert chosen(url, "mine").id == "r2"

    store.workloads.add(sample_workload("mine", messages=3), replace=True)

    (slow,), (fast,) = store.recommendations.find(model="mine"), published(url, cluster="pair", model="mine")
    assert "was replaced" in slow.stale
    assert slow == fast


def test_a_shipped_workload_is_compared_too(store, url):
    shipped = store.workloads.get("bert")
    store.revisions.publish(replace(sample_recommendation("r2", model="bert"), source_digest=shipped.digest()))
    store.revisions.publish(replace(sample_recommendation("r3", model="bert", nodes=1), source_digest="another"))

    slow, fast = (
        store.recommendations.newest(cluster="pair", model="bert"),
        published(url, cluster="pair", model="bert"),
    )

    assert slow == fast
    assert [bool(r.stale) for r in slow] == [True, False]


def test_a_check_counts_as_a_change(store):
    before, _ = store.recommendations.changes(0)
    store.records.add_recheck(sample_check("c1"))
    assert store.recommendations.changes(before)[1] == {("pair", "toy")}


def test_a_check_belongs_to_a_recommendation_and_is_stored_once(store):
    with pytest.raises(NotFoundError):
        store.records.add_recheck(sample_check("c1", recommendation="nobody"))
    store.records.add_recheck(sample_check("c1"))
    store.records.add_recheck(sample_check("c1"))  # its answer may have been lost
    with pytest.raises(StoreError, match="already stored"):
        store.records.add_recheck(sample_check("c1", stale=False))


@pytest.mark.parametrize("field", ["gpu", "link_class", "fabric"])
def test_a_cluster_that_is_defined_anew_makes_its_revisions_stale_and_back(store, url, field):
    """A job says its nodes, GPUs and NCCL, and nothing of the GPUs' kind: that is the cluster's."""
    measured = store.recommendations.get("r1").fingerprint
    parts = ("gpu", "link_class", "fabric", "nodes", "gpus_per_node", "topology_hash")
    place = replace(sample_cluster("pair"), **{part: getattr(measured, part) for part in parts})
    store.clusters.add(place)
    assert both_ways(store, url) == ""
    seen = store.recommendations.changes(0)[0]
    other = {"gpu": "H100-SXM5-80GB", "link_class": "nvswitch", "fabric": "roce"}[field]
    store.clusters.add(replace(place, **{field: other}), replace=True)
    said = f"{field}: measured on {getattr(measured, field)}, now {other}"
    assert both_ways(store, url) == f"the cluster 'pair' has changed since it was tuned: {said}"
    with pytest.raises(StaleRecommendationError, match="has changed since it was tuned"):
        chosen(url, "toy")
    assert store.recommendations.changes(seen)[1] == {("pair", "toy")}  # services drop their answers
    newest = store.revisions.history()[0]
    assert (newest.action, newest.recommendation) == (Action.STALE, "r1")
    store.clusters.add(replace(place, nccl_version="2.29.1", driver="999.1"), replace=True)
    assert both_ways(store, url) == ""  # these are the job's own, or a check's
    assert len([event for event in store.revisions.history() if event.action is Action.STALE]) == 1


def test_a_cluster_that_is_smaller_now_refuses_by_its_numbers(store, url):
    store.clusters.add(replace(sample_cluster(), name="pair", gpus_per_node=1, gpu="other"))
    assert both_ways(store, url) == ""
