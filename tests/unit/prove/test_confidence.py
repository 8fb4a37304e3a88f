"""Bets on log ratios: fair without a gain, whatever the tails and drifts, and quick with one."""

import math

import numpy as np
import pytest

from ncclt.prove.confidence import estimate_centre, estimate_interval, log_capital


def null_ratios(rng, studies, pairs, *, tails, drift=0.0):
    """Return log ratios of launches of one kind, two pairs to a block, with a drift that A B B A turns round."""
    draws = {
        "gaussian": lambda: rng.normal(0, 0.02, (studies, pairs)),
        "outliers": lambda: rng.normal(0, 0.02, (studies, pairs)) + (rng.random((studies, pairs)) < 0.05) * math.log(5),
        "cauchy": lambda: 0.02 * rng.standard_cauchy((studies, pairs)),
        "skewed": lambda: rng.exponential(0.05, (studies, pairs)),
    }
    sign = np.where(np.arange(pairs) % 2, 1.0, -1.0)
    return draws[tails]() - draws[tails]() + drift * sign


@pytest.mark.parametrize("tails", ["gaussian", "outliers", "cauchy", "skewed"])
@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_whoever_looks_after_every_block_is_still_hardly_ever_wrong(tails, drift):
    """1 % is promised for the whole way; the promise needs neither a variance nor a known shape."""
    ratios = null_ratios(np.random.default_rng(1), 2000, 40, tails=tails, drift=drift)

    ever = np.zeros(2000, dtype=bool)
    for blocks in range(4, 21):
        ever |= log_capital(ratios[:, : 2 * blocks]) >= math.log(100)

    assert ever.mean() <= 0.015


def test_eight_won_bets_are_enough_and_seven_are_not():
    assert log_capital(np.full(8, 0.1)) >= math.log(100) > log_capital(np.full(7, 0.1))


def test_one_outlier_costs_a_few_bets_and_not_the_proof():
    ratios = np.full(16, 0.05)
    ratios[3] = -math.log(5)

    assert log_capital(ratios) >= math.log(100)
    assert float(estimate_centre(ratios)) == pytest.approx(0.05)


def test_many_messages_are_bet_on_at_once_as_each_alone():
    ratios = np.random.default_rng(2).normal(0.01, 0.03, (3, 12))

    together = log_capital(ratios, 0.02)

    assert together == pytest.approx([float(log_capital(row, 0.02)) for row in ratios])


def test_less_is_won_against_a_higher_centre():
    ratios = np.random.default_rng(3).normal(0.05, 0.02, 12)

    capitals = [float(log_capital(ratios, centre)) for centre in np.linspace(-0.5, 0.5, 41)]

    assert capitals == sorted(capitals, reverse=True)


def test_an_interval_ends_where_the_bets_turn():
    ratios = np.random.default_rng(4).normal(0.05, 0.02, 16)
    interval = estimate_interval(list(ratios), error=0.05)

    assert float(log_capital(ratios, math.log(interval.low))) == pytest.approx(math.log(40), abs=1e-6)
    assert float(log_capital(-ratios, -math.log(interval.high))) == pytest.approx(math.log(40), abs=1e-6)
    assert interval.low < interval.estimate < interval.high


def test_few_pairs_bound_nothing():
    interval = estimate_interval([0.1, 0.1], error=0.05)

    assert (interval.low, interval.high) == (0.0, math.inf)
    assert interval.estimate == pytest.approx(math.exp(0.1))


def test_the_interval_covers_the_truth_at_every_look():
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(150):
        ratios = rng.normal(0.05, 0.03, 24)
        looks = (estimate_interval(list(ratios[:pairs]), error=0.05) for pairs in (8, 16, 24))
        missed += any(not look.low <= math.exp(0.05) <= look.high for look in looks)

    assert missed <= 12
