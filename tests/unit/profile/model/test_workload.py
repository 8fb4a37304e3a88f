"""Messages from parameter shapes."""

import builtins
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclt.core.message import Collective
from ncclt.errors import MissingDependencyError, UsageError
from ncclt.profile.model.workload import (
    PERSISTENCE_ELEMENTS,
    REDUCE_BUCKET_ELEMENTS,
    FsdpUnit,
    buffer_messages,
    ddp_messages,
    fsdp_messages,
    zero3_messages,
)

MIB = 1024 * 1024


def _sizes(messages):
    return {(m.message.collective.value, m.message.dtype, m.message.size_bytes): m.calls_per_step for m in messages}


def test_tensor_that_reaches_the_cap_stays_in_its_bucket():
    """From the last parameter on: 1 MiB closes the first bucket, and 16 + 16 MiB overfill the second."""
    shapes = [("a", (4 * MIB,)), ("b", (4 * MIB,)), ("c", (4 * MIB,)), ("d", (MIB // 4,))]
    assert _sizes(ddp_messages(shapes, "float32")) == {
        ("all_reduce", "float32", MIB): 1,
        ("all_reduce", "float32", 32 * MIB): 1,
        ("all_reduce", "float32", 16 * MIB): 1,
    }


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 4 * MIB), min_size=1, max_size=20),
    dtype=st.sampled_from(["float32", "bfloat16", "float64"]),
    cap=st.floats(0.5, 30),
)
def test_buckets_carry_every_gradient_once(sizes, dtype, cap):
    """Whatever the cap, the bytes add up."""
    shapes = [(str(n), (size,)) for n, size in enumerate(sizes)]
    bytes_of = {"float32": 4, "bfloat16": 2, "float64": 8}
    messages = ddp_messages(shapes, dtype, bucket_cap_mb=cap)
    assert sum(m.bytes_per_step for m in messages) == sum(sizes) * bytes_of[dtype]


def test_buffers_are_one_broadcast_per_dtype():
    """Coalesced; a dtype without elements sends nothing."""
    assert _sizes(buffer_messages({"float32": 10, "int64": 2, "bool": 0})) == {
        ("broadcast", "float32", 40): 1,
        ("broadcast", "int64", 16): 1,
    }


@pytest.mark.shared
def test_llama_70b_is_as_in_the_public_trace(shared_data):
    """Figures of a TraceLens report; there the last layer stays gathered: 159 all_gathers of a layer, not 160."""
    facts = json.loads((shared_data / "traces" / "expected_models.json").read_text())["llama3-70b FSDP per-layer"]
    units = [
        FsdpUnit(name="layer", parameters=facts["layer_params"], count=80),
        FsdpUnit(name="root", parameters=facts["root_params"], is_root=True),
    ]
    assert _sizes(fsdp_messages(units, "bfloat16", "float32")) == {
        ("all_gather", "bfloat16", facts["ag_bytes_bf16"]): 159 + 1,
        ("reduce_scatter", "float32", facts["rs_bytes_fp32"]): 80,
        ("all_gather", "bfloat16", facts["root_ag_bf16"]): 1,
        ("reduce_scatter", "float32", facts["root_rs_fp32"]): 1,
    }


def test_nothing_to_send_is_a_usage_error():
    """Not an empty workload."""
    with pytest.raises(UsageError):
        ddp_messages([], "float32")
    with pytest.raises(UsageError):
        ddp_messages([("a", (1,))], "float32", bucket_cap_mb=0)
    with pytest.raises(UsageError):
        fsdp_messages([], "float32", "float32")


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    """The slim installation has none."""
    really = builtins.__import__

    def no_torch(name, *args, **kwargs):
        if name.split(".")[0] == "torch":
            raise ImportError("No module named 'torch'")
        return really(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_torch)
    with pytest.raises(MissingDependencyError) as caught:
        ddp_messages([("a", (1,))], "float32")
    assert "pip install 'ncclt[models]'" in caught.value.message


def test_large_parameters_are_gathered_twice_and_small_ones_once():
    large, small = PERSISTENCE_ELEMENTS + 1, PERSISTENCE_ELEMENTS
    assert _sizes(zero3_messages([large, small, large], [large, small], "bf16", "fp32")) == {
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


def test_nothing_to_shard_is_a_usage_error():
    with pytest.raises(UsageError):
        zero3_messages([5], [], "bf16", "bf16")
