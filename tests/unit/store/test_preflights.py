"""Preflights are kept, and found newest first."""

from dataclasses import replace

import pytest
from full_records import fill_record

from ncclt.core.preflight import Preflight, State
from ncclt.errors import StoreError

SAMPLE = fill_record(Preflight, state=State.DEGRADED)


def test_one_is_stored_once_and_comes_back_whole(store):
    for _ in range(2):  # the answer may have been lost
        store.records.add_preflight(SAMPLE)
    assert store.records.preflights() == (SAMPLE,)
    with pytest.raises(StoreError, match="already stored"):
        store.records.add_preflight(replace(SAMPLE, findings=2 * SAMPLE.findings))


def test_the_newest_come_first_of_one_cluster_or_of_all(store):
    for number in range(22):
        cluster = "dgx" if number % 2 else "other"
        store.records.add_preflight(replace(SAMPLE, id=f"p{number}", cluster=cluster))
    assert [preflight.id for preflight in store.records.preflights()] == [f"p{number}" for number in range(21, 1, -1)]
    assert [preflight.id for preflight in store.records.preflights(limit=2)] == ["p21", "p20"]
    assert [preflight.id for preflight in store.records.preflights(cluster="dgx", limit=2)] == ["p21", "p19"]
