"""Within a limit of runs the most important sizes are measured, and the others lie between measured ones."""

from hypothesis import given
from hypothesis import strategies as st

from ncclt.measure.benchmarks.nccl_tests.sweep import plan_runs

ODD = ((50_000_012, 3_000_004, 700_000, 33_333_332, 1_000_000, 16_000_036), 4)


def test_without_a_limit_every_size_is_measured():
    """And none twice, although sweeps may meet the same size."""
    (runs,) = plan_runs([ODD], max_runs=None)
    covered = [size for _, covers in runs for size in covers]
    assert sorted(covered) == sorted(ODD[0])
    assert all(covers <= set(sweep.sizes) for sweep, covers in runs)


def test_a_limit_that_suffices_changes_nothing():
    """Interpolation is the last resort."""
    exact = plan_runs([ODD], max_runs=None)
    assert plan_runs([ODD], max_runs=len(exact[0])) == exact


def test_beyond_the_limit_the_most_important_sizes_stay_exact():
    """Two runs: one for the first two sizes, one that spans the rest."""
    (runs,) = plan_runs([ODD], max_runs=2)
    (exact, covers), (spanning, others) = runs
    assert {50_000_012, 3_000_004} <= covers <= set(exact.sizes)
    assert spanning.factor == 2
    assert spanning.first <= min(others)
    assert spanning.last >= max(others)


def test_every_kind_keeps_a_run():
    """Another collective or dtype cannot share one, so a limit below their number cannot be kept."""
    kinds = [ODD, ((8,), 8), ((8, 64, 100, 9000), 4)]
    assert [len(runs) for runs in plan_runs(kinds, max_runs=1)] == [1, 1, 1]
    assert sum(len(runs) for runs in plan_runs(kinds, max_runs=4)) == 4


@given(st.lists(st.integers(1, 1 << 26), min_size=1, max_size=12), st.integers(1, 6))
def test_each_size_has_exactly_one_run_that_reaches_around_it(sizes, limit):
    """Whatever the limit: covered once, within the ends of its sweep."""
    wanted = tuple(size * 4 for size in sizes)
    (runs,) = plan_runs([(wanted, 4)], max_runs=limit)
    assert sorted(size for _, covers in runs for size in covers) == sorted(set(wanted))
    assert all(sweep.first <= size <= sweep.sizes[-1] for sweep, covers in runs for size in covers)
    assert all(covers for _, covers in runs), "a run without a message would cost a start for nothing"
    assert len(runs) <= max(limit, 1)
