"""Names of NCCL's kernels, and payloads that are none."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import Collective
from ncclt.profile.readers.nsys import agreed_dtypes, decode_blob, decode_json, parse_kernel_name, read_schemas


def test_kernels_tell_collective_and_dtype():
    """Over the generations of names; movers of bytes have no dtype."""
    for name, collective, dtype in [
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
    ]:
        kernel = parse_kernel_name(name)
        assert (kernel.collective, kernel.dtype) == (collective, dtype)


def test_other_kernels_are_not_ncclts():
    """Names that only look like it."""
    assert parse_kernel_name("void my_ncclish_thing(int)") is None


def test_algorithm_and_protocol_are_never_read():
    """A kernel called RING_LL runs whatever was chosen; nothing of it is kept."""
    ring = parse_kernel_name("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")
    tree = parse_kernel_name("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(x)")
    assert ring == tree


def test_one_unknown_dtype_spoils_the_agreement():
    """A reduction is of one dtype only when every kernel says so."""
    f32, bare = (
        parse_kernel_name("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"),
        parse_kernel_name("ncclDevKernel_AllReduce(x)"),
    )
    assert agreed_dtypes([f32, f32]) == {Collective.ALL_REDUCE: "float32"}
    assert agreed_dtypes([f32, bare]) == {}


@given(st.one_of(st.none(), st.binary(max_size=200), st.text(max_size=100), st.integers()))
def test_any_blob_is_decoded_or_none(blob):
    """Nothing in a payload column can do more than not be read."""
    schemas = read_schemas([(1, 5, "Message size [bytes]", 22, 2**40), (1, 5, "Rank", 5, -3)])
    assert decode_blob(blob, schemas) == {}


@given(st.one_of(st.text(max_size=200), st.just("[" * 60000), st.just('{"a":' * 12000), st.just("1" * 70000)))
def test_any_text_is_decoded_or_none(text):
    """Deep, long and senseless JSON alike."""
    assert decode_json(text) == {}


def test_numbers_that_are_none_tell_nothing():
    """A size is a whole number or is not known."""
    for value in ["1,23", "NaN", "-5", "1e9", None, True, [4096], 4096.5]:
        assert decode_json(json.dumps({"Message size [bytes]": value})) == {}
