"""Simulated trainings of bench/live_decisions.py, a few per case: the bench itself runs a thousand."""

import pytest

import live_decisions


def run(name, method="ncclt", jobs=10):
    return live_decisions.run_case(next(case for case in live_decisions.CASES if case.name == name), method, jobs)


@pytest.mark.parametrize("name", ["3%", "10%", "10% of 3 arms", "10%, interrupted"])
def test_gains_are_found_in_time(name):
    row = run(name)

    assert row["leading"] >= 0.8
    assert row["cost"] <= 0.005


def test_flat_jobs_keep_the_default_at_a_small_cost():
    row = run("flat, 3 arms")

    assert row["false_tuned"] == 0
    assert row["cost_max"] <= 0.015


def test_an_arm_whose_stalls_cost_more_than_it_gains_is_not_chosen():
    assert run("5%, 10.0% x2", jobs=5)["in_force"] == 0


def test_peers_find_a_gain_in_some_jobs():
    for method in live_decisions.METHODS:
        assert run("10%", method)["tuned"] > 0
