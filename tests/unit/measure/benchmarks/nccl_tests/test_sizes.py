"""Within a limit of runs the most important sizes are measured, and the others lie between measured ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclt.measure.benchmarks.nccl_tests.sweep import Sizes, plan_runs

ODD = Sizes(wanted=(50_000_012, 3_000_004, 700_000, 33_333_332, 1_000_000, 16_000_036), alignment=4)


def test_without_a_limit_every_size_is_measured():
    """And none twice, although sweeps may meet the same size."""
    (runs,) = plan_runs([ODD], max_runs=None)
    covered = [size for run in runs for size in run.covers]
    assert sorted(covered) == sorted(ODD.wanted)
    assert all(run.covers <= set(run.sweep.sizes) for run in runs)


def test_a_limit_that_suffices_changes_nothing():
    """Interpolation is the last resort."""
    exact = plan_runs([ODD], max_runs=None)
    assert plan_runs([ODD], max_runs=len(exact[0])) == exact


def test_beyond_the_limit_the_most_important_sizes_stay_exact():
    """Two runs: one for the first two sizes, one that spans the rest."""
    (runs,) = plan_runs([ODD], max_runs=2)
    exact, spanning = runs
    assert {50_000_012, 3_000_004} <= exact.covers <= set(exact.sweep.sizes)
    assert spanning.sweep.factor == 2
    assert spanning.sweep.first <= min(spanning.covers)
    assert spanning.sweep.last >= max(spanning.covers)


def test_every_kind_keeps_a_run():
    """Another collective or dtype cannot share one, so a limit below their number cannot be kept."""
    kinds = [ODD, Sizes(wanted=(8,), alignment=8), Sizes(wanted=(8, 64, 100, 9000), alignment=4)]
    assert [len(runs) for runs in plan_runs(kinds, max_runs=1)] == [1, 1, 1]
    assert sum(len(runs) for runs in plan_runs(kinds, max_runs=4)) == 4


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 1 << 26), min_size=1, max_size=12), st.integers(1, 6))
def test_each_size_has_exactly_one_run_that_reaches_around_it(sizes, limit):
    """Whatever the limit: covered once, within the ends of its sweep."""
    wanted = tuple(size * 4 for size in sizes)
    (runs,) = plan_runs([Sizes(wanted=wanted, alignment=4)], max_runs=limit)
    assert sorted(size for run in runs for size in run.covers) == sorted(set(wanted))
    assert all(run.sweep.first <= size <= run.sweep.sizes[-1] for run in runs for size in run.covers)
    assert len(runs) <= max(limit, 1)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_run_is_empty(limit):
    """A run without a message would cost a start for nothing."""
    (runs,) = plan_runs([ODD], max_runs=limit)
    assert all(run.covers for run in runs)
