"""NCCL's chunk arithmetic, by hand and against a machine on which a loop can be counted."""

import csv
import statistics
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.measure.simulated.transfer_time import SimulatedKernel, chunk_bytes, loops

AR = Collective.ALL_REDUCE
RING, TREE = Algorithm.RING, Algorithm.TREE
LOOP_US = 4367.0


def chunk(algorithm=RING, protocol=Protocol.SIMPLE, size=1 << 30, collective=AR, **changes) -> float:
    shape = {name: changes.pop(name) for name in ("nodes", "per_node", "by_depth") if name in changes}
    kernel = SimulatedKernel(
        collective=collective, algorithm=algorithm, protocol=protocol, size_bytes=size, **{"channels": 4, **changes}
    )
    return chunk_bytes(kernel, **{"nodes": 2, "per_node": 4, **shape})


def test_chunks_by_hand():
    """Steps are an eighth of the buffer; ring Simple takes four, LL carries half, LL128 120 bytes of 128."""
    assert chunk() == 2 * 1024 * 1024
    assert chunk(collective=Collective.BROADCAST) == 512 * 1024
    assert chunk(TREE) == 512 * 1024
    assert chunk(protocol=Protocol.LL) == 32 * 1024
    assert chunk(protocol=Protocol.LL128) == 576000
    assert chunk(buffsize=1 << 20) == 512 * 1024


def test_buffsize_sizes_simple_alone():
    assert chunk(protocol=Protocol.LL, buffsize=1 << 20) == chunk(protocol=Protocol.LL)


def test_an_ll128_tree_takes_smaller_chunks_for_smaller_messages():
    chunks = [chunk(TREE, Protocol.LL128, size) for size in (1 << 16, 1 << 22, 1 << 26, 1 << 32)]
    assert chunks == sorted(chunks)
    assert chunks[0] < chunks[-1]


def test_a_simple_tree_of_rccl_takes_smaller_chunks_for_smaller_messages():
    """Two nodes of four: a depth of 4, so 8, 4 and 1 times 4 chunks per channel are wanted before one may be larger."""
    sizes = (1 << 18, 1 << 21, 1 << 22, 1 << 25, 1 << 26)
    assert [chunk(TREE, size=size, by_depth=True) / 1024 for size in sizes] == [32, 64, 64, 256, 512]


@given(size=st.integers(1, 1 << 36), channels=st.integers(1, 64), ranks=st.integers(1, 64))
def test_loops_cover_the_message_and_no_more(size, channels, ranks):
    count = loops(RING, size, 65536.0, channels=channels, ranks=ranks)
    per_loop = channels * ranks * 65536
    assert (count - 1) * per_loop < size or count == 1
    assert count * per_loop >= size


@pytest.mark.shared
@pytest.mark.parametrize(
    ("protocol", "channels", "least", "within"),
    [("LL", 4, 1 << 19, 0.01), ("LL128", 4, 1 << 24, 0.01), ("Simple", 2, 1 << 20, 0.01)],
)
def test_loops_reproduce_two_ranks_that_share_a_gpu(shared_data, protocol, channels, least, within):
    """There a loop costs one time slice: rtx5090 data, ring at two ranks (simulator reference, section 1)."""
    times = defaultdict(list)
    with (shared_data / "measurements" / "rtx5090_single_gpu_socket_loopback.csv").open() as file:
        for row in csv.DictReader(file):
            ring = row["algo"] in ("", "Ring") and row["other_env"] in ("", "prior run")
            simple = protocol == "Simple" and row["other_env"].startswith("Config 7:")
            if simple or (ring and protocol != "Simple" and row["proto"] == protocol):
                times[int(row["size_bytes"])].append(float(row["time_us"]))
    sizes = [size for size in times if size >= least]
    assert len(sizes) >= 4
    # The 32 MiB LL128 row and short Simple rows carry up to 1 % of transfer beside the slices.
    for size in sizes:
        data = chunk(protocol=Protocol(protocol.lower()), size=size, channels=channels, per_node=1)
        count = loops(RING, size, data, channels=channels, ranks=2)
        assert count * LOOP_US == pytest.approx(statistics.median(times[size]), rel=within), size
