"""Sizes become sweeps, and a sweep measures these sizes and no others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import Collective
from ncclt.measure.nccl_tests_sweep import Sweep, alignment_bytes, plan_sweeps, requested_size


@pytest.mark.parametrize(
    ("sizes", "arguments"),
    [
        ([1024], [("-b", "1024", "-e", "1024")]),
        ([1024, 2048, 4096, 8192], [("-b", "1024", "-e", "8192", "-f", "2")]),
        ([100, 300, 500, 700], [("-b", "100", "-e", "700", "-i", "200")]),
        ([8, 100], [("-b", "8", "-e", "100", "-i", "92")]),
        ([8, 16, 32, 64, 100], [("-b", "8", "-e", "64", "-f", "2"), ("-b", "100", "-e", "100")]),
    ],
)
def test_sequences_are_recognised(sizes, arguments):
    """Arithmetic and geometric ones; any two sizes are one."""
    assert [sweep.arguments for sweep in plan_sweeps(sizes)] == arguments


@given(st.lists(st.integers(1, 1 << 30), min_size=1, max_size=25))
def test_exactly_the_sizes_are_measured(sizes):
    """Each once, none else, in at most half as many runs."""
    sweeps = plan_sweeps(sizes)
    assert sorted(size for sweep in sweeps for size in sweep.sizes) == sorted(set(sizes))
    assert len(sweeps) <= (len(set(sizes)) + 1) // 2


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
