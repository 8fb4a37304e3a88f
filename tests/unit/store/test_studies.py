"""Studies in pages."""

from dataclasses import replace

import pytest

from ncclt.errors import UsageError
from ncclt.store import open_store
from ncclt.testing.store_contract import sample_study


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/a.db") as opened:
        yield opened


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 8])
def test_pages_of_any_size_hold_every_study_once_and_the_newest_first(store, limit):
    for number in range(7):
        store.open_study(replace(sample_study(), id=f"id{number}", name=f"study{number}"))
    found, cursor = [], None
    for _ in range(-(-7 // limit)):
        page = store.studies(limit=limit, cursor=cursor)
        found += [row.study.name for row in page.items]
        cursor = page.next_cursor

    assert (found, cursor) == ([f"study{number}" for number in reversed(range(7))], None)


@pytest.mark.parametrize("limit", [0, 501])
def test_a_page_has_1_to_500_studies(store, limit):
    with pytest.raises(UsageError, match="the limit must be 1 to 500"):
        store.studies(limit=limit)
    assert store.studies(limit=500).items == ()
