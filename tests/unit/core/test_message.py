"""One kind of message: its limits, its bandwidths (nccl-tests, doc/PERFORMANCE.md), its words."""

import re

import pytest

from ncclt.core.message import DTYPE_SIZES, Collective, Message, bus_factor, format_bytes
from ncclt.errors import InputError


def test_bus_bandwidth_is_what_the_slowest_link_carries(subtests):
    for collective, ranks, factor in [
        (Collective.ALL_REDUCE, 8, 1.75),
        (Collective.ALL_GATHER, 8, 0.875),
        (Collective.REDUCE_SCATTER, 4, 0.75),
        (Collective.ALL_TO_ALL, 2, 0.5),
        (Collective.BROADCAST, 8, 1.0),
        (Collective.REDUCE, 8, 1.0),
        (Collective.SEND_RECV, 2, 1.0),
        (Collective.ALL_REDUCE, 1, 1.0),
        (Collective.ALL_GATHER, 0, 1.0),
    ]:
        with subtests.test(collective=collective, ranks=ranks, factor=factor):
            assert bus_factor(collective, ranks) == factor


def test_a_dtype_has_as_many_bytes_as_its_name_says():
    bits = {dtype: int(re.search(r"\d+|$", dtype)[0] or 8) for dtype in DTYPE_SIZES}
    assert {dtype: 8 * size for dtype, size in DTYPE_SIZES.items()} == bits


def test_what_cannot_be_sent_is_refused(subtests):
    for wrong in [{"dtype": "float7"}, {"size_bytes": 0}, {"size_bytes": 2**53 + 1}, {"group_size": -1}]:
        with subtests.test(wrong=wrong), pytest.raises(InputError, match=str(next(iter(wrong.values())))):
            Message(**{"collective": Collective.ALL_REDUCE, "dtype": "int8", "size_bytes": 1, **wrong})


def test_the_smallest_and_the_largest_message_and_a_group_of_the_whole_job_are_messages():
    """The largest is the last up to which a double, as in JSON, holds every whole number."""
    sizes = [
        Message(collective=Collective.ALL_REDUCE, dtype="int8", size_bytes=size, group_size=0).size_bytes
        for size in (1, 2**53)
    ]
    assert sizes == [1, 2**53]


def test_bandwidths_are_those_that_nccl_tests_prints():
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=8_000_000, group_size=8)
    assert message.algbw_gbps(400.0) == 20.0
    assert message.busbw_gbps(400.0) == 35.0


def test_sizes_are_written_with_binary_units(subtests):
    for size, text in [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.50 KiB"),
        (2**20, "1 MiB"),
        (28351488, "27.04 MiB"),
        (2**30, "1 GiB"),
        (2**41, "2 TiB"),
        (2**51, "2048 TiB"),
    ]:
        with subtests.test(size=size, text=text):
            assert format_bytes(size) == text


def test_alignment_is_that_of_the_bytes_per_rank(subtests):
    """A part begins at a multiple of its own size, so an odd shard puts all parts but the first off 16 bytes."""
    for collective, size, ranks, per_rank, padded in [
        (Collective.ALL_GATHER, 67_108_944, 8, 8_388_618, 67_108_992),
        (Collective.REDUCE_SCATTER, 67_108_992, 8, 8_388_624, 67_108_992),
        (Collective.ALL_TO_ALL, 1024, 6, 1024 / 6, 1056),
        (Collective.ALL_GATHER, 8, 4, 2, 64),
        (Collective.ALL_REDUCE, 4008, 8, 4008, 4016),
        (Collective.SEND_RECV, 4096, 2, 4096, 4096),
    ]:
        with subtests.test(collective=collective, size=size):
            one = Message(collective=collective, dtype="bfloat16", size_bytes=size, group_size=ranks)
            assert (one.rank_bytes, one.padded_bytes, one.is_aligned) == (per_rank, padded, padded == size)
