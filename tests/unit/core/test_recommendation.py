"""Which published revision a request gets."""

from dataclasses import replace

import pytest

from functools import partial

import ncclt.core.recommendation
from ncclt.core.recommendation import Request
from ncclt.errors import NoRecommendationError, StaleRecommendationError
from ncclt.testing.store_contract import sample_recommendation

ANY = Request(cluster="pair", model="toy")
FIRST = replace(sample_recommendation("first"), created="2026-01-01", simulated=False)
OTHER_NCCL = replace(FIRST.fingerprint, nccl_version="2.99.1")


def test_a_stale_one_of_another_nccl_takes_nothing_away():
    """A request that names no NCCL fits both; only of its own fingerprint a stale one is the last word."""
    stranger = replace(FIRST, id="stranger", fingerprint=OTHER_NCCL, created="2026-02-01", stale="NCCL is another one")
    assert select([FIRST, stranger], ANY) == FIRST
    assert select([FIRST, replace(stranger, stale="")], ANY).id == "stranger"
    with pytest.raises(StaleRecommendationError):
        select([FIRST, replace(stranger, fingerprint=FIRST.fingerprint)], ANY)
    with pytest.raises(StaleRecommendationError):
        select([FIRST, stranger], replace(ANY, nccl_version="2.99.1"))


def test_a_simulated_one_never_takes_the_place_of_a_measured_one():
    """Not even where the measured one is stale, or of another NCCL."""
    simulated = replace(FIRST, id="simulated", simulated=True, created="2026-03-01")
    assert select([simulated, FIRST], ANY) == FIRST
    for fingerprint in (FIRST.fingerprint, OTHER_NCCL):
        with pytest.raises(StaleRecommendationError):
            select([replace(FIRST, stale="slower"), replace(simulated, fingerprint=fingerprint)], ANY)


def test_another_driver_is_no_other_fingerprint():
    """What was measured under the older driver is not served again when the newer one is stale."""
    newer = replace(
        FIRST, id="newer", created="2026-02-01", stale="slower", fingerprint=replace(FIRST.fingerprint, driver="570.86")
    )
    with pytest.raises(StaleRecommendationError):
        select([FIRST, newer], ANY)
