"""Sizes become sweeps, and few sweeps measure them all."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import Collective
from ncclt.measure.benchmarks.nccl_tests.sweep import (
    Sweep,
    alignment_bytes,
    bracket,
    plan_sweeps,
    requested_size,
    sweep_of,
)

ROOT = Path(__file__).parents[5]


def test_sequences_are_recognised(subtests):
    """Arithmetic and geometric ones; any two sizes are one."""
    cases = [
        ([1024], [("-b", "1024", "-e", "1024")]),
        ([1024, 2048, 4096, 8192], [("-b", "1024", "-e", "8192", "-f", "2")]),
        ([100, 300, 500, 700], [("-b", "100", "-e", "700", "-i", "200")]),
        ([8, 100], [("-b", "8", "-e", "100", "-i", "92")]),
        # Sizes that nobody asked for cost less than another start.
        ([8, 16, 32, 64, 100], [("-b", "8", "-e", "100", "-i", "4")]),
        ([1024, 4096, 16384, 32768], [("-b", "1024", "-e", "32768", "-f", "2")]),
        ([1000, 1300, 1500], [("-b", "1000", "-e", "1500", "-i", "100")]),
        # But they must not be many or large.
        ([4, 8, 3 << 30], [("-b", "4", "-e", "8", "-i", "4"), ("-b", "3221225472", "-e", "3221225472")]),
    ]
    for sizes, arguments in cases:
        with subtests.test(sizes=sizes):
            assert [sweep.arguments for sweep in plan_sweeps(sizes, alignment=4)] == arguments


SIZES = st.lists(st.integers(1, 1 << 28), min_size=1, max_size=20)


@given(SIZES, st.sampled_from([1, 4, 128]))
def test_all_sizes_are_measured_in_few_runs(sizes, alignment):
    """Each is in a sweep, nothing is asked for that nccl-tests would round, and any two sizes share a run."""
    wanted = {size * alignment for size in sizes}
    sweeps = plan_sweeps(wanted, alignment=alignment)
    measured = [size for sweep in sweeps for size in sweep.sizes]
    assert wanted <= set(measured)
    assert all(size % alignment == 0 for size in measured)
    assert max(measured) == max(wanted), "a larger one may not fit into the memory"
    assert len(sweeps) <= (len(wanted) + 1) // 2


@given(SIZES, st.sampled_from([1, 4, 128]))
def test_a_bracket_lies_around_all_sizes(sizes, alignment):
    """So nothing is ever extrapolated, and its end is not far above the largest."""
    wanted = {size * alignment for size in sizes}
    sweep = bracket(wanted, alignment=alignment)
    assert 0 < sweep.first <= min(wanted)
    assert max(wanted) <= sweep.last < 2 * max(wanted) + alignment
    assert all(size % alignment == 0 for size in sweep.sizes)


def test_the_many_sizes_of_an_unfused_model_need_few_runs():
    """39 gradients, as nasnetmobile has without fusion: a start costs more than a row."""
    document = json.loads((ROOT / "profiles" / "workloads" / "nasnetmobile-unfused.json").read_text())
    sizes = {int(row["size_bytes"]) for row in document["messages"]}
    assert len(sizes) == 39
    assert len(plan_sweeps(sizes, alignment=4)) <= 7


def test_options_are_read_back():
    """The result is looked for among the sizes that the command asked for."""
    for sweep in (Sweep(first=8, last=8), Sweep(first=8, last=64, factor=2), Sweep(first=8, last=24, step_bytes=8)):
        assert sweep_of(("all_reduce_perf", *sweep.arguments, "-d", "float")) == sweep


@given(st.integers(1, 1 << 40), st.integers(1, 4096))
def test_requested_size_is_aligned_and_near(size, alignment):
    """nccl-tests would round any other size down, possibly to nothing."""
    asked = requested_size(size, alignment)
    assert asked % alignment == 0
    assert asked > 0
    assert asked == alignment or abs(asked - size) * 2 <= alignment


def test_alignment_is_per_rank_for_what_is_split_over_ranks():
    """16 bytes for each rank, or one element."""
    assert alignment_bytes(Collective.ALL_GATHER, 8, 4) == 128
    assert alignment_bytes(Collective.ALL_REDUCE, 8, 4) == 4


def test_a_single_size_is_its_own_sweep():
    """No step is needed."""
    assert Sweep(first=8, last=8).sizes == (8,)
