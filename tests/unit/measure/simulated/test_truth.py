"""The mechanisms: each one moves the time the way it moves it on real machines."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import LEGAL, Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.measure.simulated.link_model import build_link_model
from ncclt.measure.simulated.transfer_time import SimulatedKernel, kernel_us

AR = Collective.ALL_REDUCE
RING, TREE = Algorithm.RING, Algorithm.TREE
LL, LL128, SIMPLE = Protocol.LL, Protocol.LL128, Protocol.SIMPLE

LEONARDO = Cluster(
    name="leo",
    nodes=4,
    gpus_per_node=4,
    gpu="A100",
    compute_capability=80,
    link_class="nvlink",
    link_gbps=300.0,
    fabric="infiniband",
    nics_per_node=4,
    nic_gbps=12.5,
    gpudirect=True,
    nccl_version="2.22.3",
)
H100 = Cluster(
    name="h",
    gpus_per_node=8,
    gpu="H100",
    compute_capability=90,
    link_class="nvswitch",
    link_gbps=450.0,
    nccl_version="2.28.9",
)
SHM = Cluster(
    name="s",
    gpus_per_node=8,
    gpu="L40S",
    compute_capability=89,
    link_class="shm",
    link_gbps=32.0,
    nccl_version="2.28.9",
)
TCP = Cluster(
    name="t",
    nodes=2,
    gpus_per_node=1,
    gpu="T4",
    compute_capability=75,
    link_class="pcie",
    link_gbps=16.0,
    fabric="ethernet",
    nics_per_node=1,
    nic_gbps=12.5,
    nccl_version="2.28.9",
)


def time_us(cluster: Cluster, size: int, algorithm=RING, protocol=SIMPLE, channels=8, **changes) -> float:
    kernel = SimulatedKernel(
        collective=changes.pop("collective", AR),
        size_bytes=size,
        algorithm=algorithm,
        protocol=protocol,
        channels=channels,
        **changes,
    )
    return kernel_us(kernel, build_link_model(cluster))


def busbw(cluster: Cluster, **changes) -> float:
    size = 1 << 30
    n = cluster.world_size
    return size * 2 * (n - 1) / n / time_us(cluster, size, **changes) / 1e3


def test_saturated_bandwidths_are_those_measured():
    """H100 ring 367 at 4 GPUs (waynehacking8), NVLS 359 at 4 and 443 at 6; L40S pair 15.7 GB/s; within 6 %."""
    four, six = H100.sized(gpus_per_node=4), H100.sized(gpus_per_node=6)
    assert busbw(four, channels=24) == pytest.approx(355, rel=0.06)
    assert busbw(four, algorithm=Algorithm.NVLS, channels=16) == pytest.approx(371, rel=0.06)
    assert busbw(six, algorithm=Algorithm.NVLS, channels=16) == pytest.approx(424, rel=0.06)
    assert busbw(SHM.sized(gpus_per_node=2), channels=2) == pytest.approx(15.7, rel=0.06)


def test_nvls_is_slower_than_a_ring_on_two_gpus():
    two = H100.sized(gpus_per_node=2)
    assert busbw(two, algorithm=Algorithm.NVLS, channels=16) < 0.75 * busbw(two, channels=24)


def test_protocols_reach_their_measured_share_of_simple(subtests):
    cases = [
        (H100, LL, 0.43),
        (H100, LL128, 0.92),
        (SHM, LL, 0.40),
        (SHM, LL128, 0.62),
        (LEONARDO.sized(nodes=1), LL, 0.39),
    ]
    for cluster, protocol, ratio in cases:
        with subtests.test(cluster=cluster):
            assert busbw(cluster, protocol=protocol, channels=24) == pytest.approx(
                ratio * busbw(cluster, channels=24), rel=0.12
            )


def test_an_l40s_tree_of_two_ranks_pays_one_chunk_per_hop():
    """CS244C data, Tree at 2 ranks: 87, 152, 216, 334 µs at 512 KiB to 4 MiB, where the ring takes 56 to 291."""
    pair = SHM.sized(gpus_per_node=2)
    for size, measured in ((1 << 19, 87.4), (1 << 20, 152.2), (1 << 21, 216.1), (1 << 22, 333.9)):
        assert time_us(pair, size, TREE, channels=2, threads=640) == pytest.approx(measured, rel=0.2)
        assert time_us(pair, size, RING, channels=2) < 0.9 * measured


def test_a_tree_gets_twice_a_ring_out_of_the_ports_of_two_nodes_and_the_same_of_many():
    """A node of a tree sends 2 (N - 1) / N messages, of a ring 2 (n - 1) / n: Alps 158 GB/s at 2, 92 from 4 on."""
    two, many = LEONARDO.sized(nodes=2), LEONARDO.sized(nodes=16)
    assert busbw(two, algorithm=TREE, channels=16) > 1.3 * busbw(two, channels=16)
    assert busbw(many, algorithm=TREE, channels=16) < 1.1 * busbw(many, channels=16)


def test_a_tree_has_fewer_hops_between_nodes_than_a_ring_in_small_messages():
    assert time_us(LEONARDO, 1024, TREE, LL, channels=1) < time_us(LEONARDO, 1024, RING, LL, channels=1)


def test_a_tree_grows_by_about_ten_microseconds_per_doubling_of_nodes():
    """ABCI, Polaris and Alps: 9.7 to 12 µs per doubling up to 256 GPUs."""
    two, four = (time_us(LEONARDO.sized(nodes=n), 8, TREE, LL, channels=1) for n in (2, 4))
    assert four - two == pytest.approx(10.5, abs=1.5)


def test_channels_saturate_and_then_cost():
    times = {c: time_us(SHM, 1 << 28, channels=c) for c in (1, 2, 8, 32)}
    assert times[1] > times[2] > times[8]
    assert times[32] > times[8]


def test_small_messages_between_nodes_suffer_from_many_channels_over_sockets():
    assert time_us(TCP, 1 << 18, channels=16) > time_us(TCP, 1 << 18, channels=2)


def test_buffsize_shapes_the_pipeline_of_a_tree():
    """A smaller chunk fills the tree sooner; a large message through a ring gains from a larger one."""
    two = LEONARDO.sized(nodes=2)
    tree = [time_us(two, 8 << 20, TREE, threads=640, buffsize=b) for b in (1 << 20, 4 << 20)]
    ring = [time_us(two, 1 << 30, RING, buffsize=b) for b in (1 << 18, 4 << 20, 8 << 20)]
    assert tree[0] < tree[1]
    assert ring[0] > ring[1] > ring[2]


def test_fewer_threads_move_less():
    assert time_us(H100, 1 << 28, channels=8, threads=64) > time_us(H100, 1 << 28, channels=8, threads=512)


def test_shared_host_memory_slows_eight_gpus_more_than_four():
    four = busbw(SHM.sized(gpus_per_node=4), channels=4)
    assert busbw(SHM, channels=4) < 0.6 * four


def test_one_rank_only_copies():
    assert time_us(SHM.sized(gpus_per_node=1), 8) < 5


@pytest.mark.parametrize("collective", [Collective.ALL_TO_ALL, Collective.SEND_RECV])
def test_peer_to_peer_ignores_algorithm_protocol_and_channels(collective):
    mine = time_us(LEONARDO, 1 << 20, TREE, LL, channels=1, collective=collective)
    assert mine == time_us(LEONARDO, 1 << 20, RING, SIMPLE, channels=16, collective=collective)
    assert time_us(LEONARDO, 1 << 28, collective=collective, buffsize=1 << 18) > time_us(
        LEONARDO, 1 << 28, collective=collective
    )


_CHOICES = [(c, a, p) for c in Collective for a, ps in LEGAL[c].items() if "collnet" not in a for p in sorted(ps)]


@given(
    choice=st.sampled_from(_CHOICES),
    cluster=st.sampled_from([LEONARDO, LEONARDO.sized(nodes=2), LEONARDO.sized(gpus_per_node=1), TCP]),
    size=st.integers(1, 1 << 33),
    channels=st.integers(1, 64),
)
def test_times_are_finite_and_never_shorter_than_the_wire_allows(choice, cluster, size, channels):
    """No setting beats the ports: what must leave a node divided by what its ports carry."""
    collective, algorithm, protocol = choice
    if "nvls" in algorithm:
        cluster = H100
    us = time_us(cluster, size, algorithm, protocol, channels, collective=collective)
    assert math.isfinite(us)
    assert us > 0
    must_leave = size / cluster.nodes if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) else size
    if cluster.nodes > 1:
        assert us >= must_leave / (cluster.nics_per_node * cluster.nic_gbps) / 1e3
