"""Studies in pages."""

from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.printed_costs import PrintedCost, PrintedCosts, PrintedTable
from ncclt.errors import UsageError
from ncclt.store.leases import this_worker
from ncclt.testing.samples import sample_study


def test_pages_of_any_size_hold_every_study_once_and_the_newest_first(store):
    for number in range(51):
        store.studies.open(replace(sample_study(), id=f"id{number}", name=f"study{number}"))
    assert len(store.studies.page().items) == 50
    for limit in (1, 7, 50, 51, 500):
        found, cursor = [], None
        for _ in range(-(-51 // limit)):
            page = store.studies.page(limit=limit, cursor=cursor)
            found += [row.study.name for row in page.items]
            cursor = page.next_cursor
        assert (found, cursor) == ([f"study{number}" for number in reversed(range(51))], None)
    for limit in (0, 501):
        with pytest.raises(UsageError, match="the limit must be 1 to 500"):
            store.studies.page(limit=limit)


def test_what_no_page_gave_out_is_no_cursor(store, subtests):
    for cursor in ["", "x", "-1", "1.0", "²", "1" * 19]:
        with subtests.test(cursor=cursor), pytest.raises(UsageError, match="is not a cursor"):
            store.studies.page(limit=1, cursor=cursor)


def test_the_longest_cursor_is_one(store):
    store.studies.open(sample_study())
    assert len(store.studies.page(limit=1, cursor="9" * 18).items) == 1
    assert store.studies.page(limit=1, cursor="1").items == ()


def test_studies_are_counted_by_state_and_one_whose_workers_are_dead_is_interrupted(store):
    gone = f"{this_worker().rsplit('/', 2)[0]}/{2**31}/1"  # no process has this number
    for number, cluster in enumerate(["pair", "pair", "pair", "hall"]):
        study = sample_study(f"s{number}", id=f"id{number}")
        store.studies.open(replace(study, cluster=replace(study.cluster, name=cluster)))
    assert store.counts()["studies"] == {("pair", "running"): 3, ("hall", "running"): 1}
    store.leases.enter("id0", this_worker())
    for id in ("id1", "id2", "id3"):
        store.leases.enter(id, gone)
    counted = {place: count for place, count in store.counts()["studies"].items() if count}
    assert counted == {("pair", "running"): 1, ("pair", "interrupted"): 2, ("hall", "interrupted"): 1}
    listed = [row.study.state.value for row in store.studies.page().items]
    assert listed == ["interrupted", "interrupted", "interrupted", "running"]


def test_a_study_keeps_the_cost_tables_that_it_began_from(store):
    row = PrintedCost(Collective.ALL_REDUCE, Algorithm.RING, Protocol.SIMPLE, 10.0, 100.0)
    costs = PrintedCosts(version="2.27.3", tables=(PrintedTable(ranks=8, nodes=2, costs=(row,)),))
    without = sample_study("without", id="w")
    store.studies.open(without)
    printed = store.studies.open(replace(sample_study("with", id="p"), printed_costs=costs))
    assert store.studies.open(without).printed_costs is None
    assert store.studies.open(replace(printed, printed_costs=None)).printed_costs == costs
    for study, there in ((without, "none"), (printed, "others")):
        asked = replace(study, printed_costs=replace(costs, version="2.28.9"))
        with pytest.raises(UsageError, match=f"NCCL's cost tables: stored {there}, asked for those of a log"):
            store.studies.open(asked)
