"""What ZeRO stage 3 sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import Collective
from ncclt.errors import UsageError
from ncclt.profile.model.workload import PERSISTENCE_ELEMENTS, REDUCE_BUCKET_ELEMENTS, zero3_messages


def _rows(messages):
    return {(m.message.collective.value, m.message.dtype, m.message.size_bytes): m.calls_per_step for m in messages}


def test_large_parameters_are_gathered_twice_and_small_ones_once():
    large, small = PERSISTENCE_ELEMENTS + 1, PERSISTENCE_ELEMENTS
    assert _rows(zero3_messages([large, small, large], [large, small], "bf16", "fp32")) == {
        ("all_gather", "bfloat16", 2 * large): 4.0,
        ("all_gather", "bfloat16", 2 * small): 1.0,
        ("reduce_scatter", "float32", 4 * (large + small)): 1.0,
    }


def test_a_gradient_that_would_overfill_a_bucket_opens_the_next():
    """From the last parameter on: 300 M alone, for 250 M more would exceed 500 M; then 250 + 250 M."""
    million = 1_000_000
    messages = zero3_messages([], [250 * million, 250 * million, 300 * million], "bf16", "bf16")
    assert [m.message.size_bytes for m in messages] == [600 * million, 1000 * million]


@given(st.lists(st.integers(1, 2 * REDUCE_BUCKET_ELEMENTS), min_size=1, max_size=20))
def test_every_gradient_is_reduced_once(elements):
    messages = zero3_messages(elements, elements, "bf16", "bf16")
    reduced = sum(m.bytes_per_step for m in messages if m.message.collective is Collective.REDUCE_SCATTER)
    assert reduced == 2 * sum(elements)
    assert all(
        m.message.size_bytes <= 2 * max(REDUCE_BUCKET_ELEMENTS, *elements)
        for m in messages
        if m.message.collective is Collective.REDUCE_SCATTER
    )


def test_nothing_to_train_is_a_usage_error():
    with pytest.raises(UsageError):
        zero3_messages([5], [], "bf16", "bf16")
