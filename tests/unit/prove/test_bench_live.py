"""Simulated trainings of bench/live_decisions.py, a few per case: the bench itself runs a thousand."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

import live_decisions


def find_case(name):
    return next(case for case in (*live_decisions.FLAT, *live_decisions.GAINS) if case.name == name)


@pytest.mark.parametrize(("name", "found"), [("3%", 0.8), ("10%", 0.7)])
def test_gains_are_found_in_time(name, found):
    row = live_decisions.run_case(find_case(name), "ncclt", 20)

    assert row["found_in_time"] >= found
    assert row["cost"] <= 0.005


def test_the_best_of_three_arms_is_found():
    assert live_decisions.run_case(find_case("10% of 3 arms"), "ncclt", 20)["found"] >= 0.8


def test_flat_jobs_keep_the_default_at_a_small_cost():
    row = live_decisions.run_case(find_case("flat, 3 arms"), "ncclt", 20)

    assert row["false_tuned"] == 0
    assert row["cost_p95"] <= 0.005


def test_peers_find_a_gain_in_some_jobs():
    for method in live_decisions.METHODS:
        assert live_decisions.run_case(find_case("10%"), method, 20)["found"] > 0
