"""Names of NCCL's kernels, and payloads that are none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import Collective
from ncclt.profile.readers.nsys import agreed_dtypes, kernel_of, payload_of_blob, payload_of_json, schemas_of


@pytest.mark.parametrize(
    ("name", "collective", "dtype"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce", "float32"),
        ("ncclKernel_AllReduce_RING_LL_Sum___nv_bfloat16(ncclDevComm*)", "all_reduce", "bfloat16"),
        (
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "reduce_scatter",
            "bfloat16",
        ),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "all_gather", None),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", "all_gather", None),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv", None),
        ("ncclDevKernel_Generic(ncclDevComm*)", None, None),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_Sum_f32(ncclSymkDevWorkArgs)", "all_reduce", "float32"),
        ("ncclSymDevKernel_ReduceScatter_LL_Sum_f16(ncclSymDevArgs)", "reduce_scatter", "float16"),
    ],
)
def test_kernels_tell_collective_and_dtype(name, collective, dtype):
    """Over the generations of names; movers of bytes have no dtype."""
    kernel = kernel_of(name)
    assert (kernel.collective, kernel.dtype) == (collective, dtype)


def test_other_kernels_are_not_ncclts():
    """Names that only look like it."""
    assert kernel_of("void my_ncclish_thing(int)") is None


def test_algorithm_and_protocol_are_never_read():
    """A kernel called RING_LL runs whatever was chosen; nothing of it is kept."""
    ring = kernel_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")
    tree = kernel_of("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(x)")
    assert ring == tree


def test_one_unknown_dtype_spoils_the_agreement():
    """A reduction is of one dtype only when every kernel says so."""
    f32, bare = kernel_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"), kernel_of("ncclDevKernel_AllReduce(x)")
    assert agreed_dtypes([f32, f32]) == {Collective.ALL_REDUCE: "float32"}
    assert agreed_dtypes([f32, bare]) == {}


@given(st.one_of(st.none(), st.binary(max_size=200), st.text(max_size=100), st.integers()))
def test_any_blob_is_decoded_or_none(blob):
    """Nothing in a payload column can do more than not be read."""
    schemas = schemas_of([(1, 5, "Message size [bytes]", 22, 2**40), (1, 5, "Rank", 5, -3)])
    assert payload_of_blob(blob, schemas) is None


@given(st.one_of(st.text(max_size=200), st.just("[" * 60000), st.just('{"a":' * 12000), st.just("1" * 70000)))
def test_any_text_is_decoded_or_none(text):
    """Deep, long and senseless JSON alike."""
    assert payload_of_json(text) is None


@pytest.mark.parametrize("value", ["1,23", "NaN", "-5", "1e9", None, True, [4096], 4096.5])
def test_numbers_that_are_none_tell_nothing(value):
    """A size is a whole number or is not known."""
    assert payload_of_json(json.dumps({"Message size [bytes]": value})) is None
