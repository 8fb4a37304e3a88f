"""What must hold of any simulated cluster, whatever its constants."""

import math
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ncclt.core.algorithms import LEGAL, Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.measure.simulated import SimulatedRunner
from ncclt.measure.simulated.physics import physics_of
from ncclt.measure.simulated.truth import SimulatedKernel, kernel_us

DGX = Cluster(
    name="d", nodes=2, gpus_per_node=8, gpu="A100", compute_capability=80, link_class="nvswitch", link_gbps=300.0,
    fabric="infiniband", nics_per_node=8, nic_gbps=25.0, gpudirect=True, nccl_version="2.21.5",
)  # fmt: skip
EFA = replace(DGX, name="e", link_class="shm", link_gbps=32.0, fabric="efa", nics_per_node=4, nic_gbps=12.5)
H100 = replace(DGX, name="h", compute_capability=90, link_gbps=450.0, nic_gbps=50.0, nccl_version="2.28.9")
RING = Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE)
CLUSTERS = st.sampled_from([DGX, EFA, H100, replace(DGX, nodes=1), replace(H100, nodes=1), replace(EFA, nodes=4)])
SIZES = st.integers(10, 30).map(lambda power: 1 << power)
COLLECTIVES = st.sampled_from([Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST])


def expected(cluster: Cluster, size: int, setting: Setting = DEFAULT, collective=Collective.ALL_REDUCE) -> float:
    message = Message(collective=collective, dtype="float32", size_bytes=size)
    return SimulatedRunner(cluster, seed=0, sigma=0).expected_us(setting, message)


@settings(max_examples=60, deadline=None)
@given(
    CLUSTERS, SIZES, COLLECTIVES, st.sampled_from([DEFAULT, RING, replace(RING, channels=8)]),
    st.sampled_from(["link_gbps", "nic_gbps"]), st.floats(0.3, 3.0), st.floats(1.0, 4.0),
)  # fmt: skip
def test_more_bandwidth_is_never_slower(cluster, size, collective, setting, field, scale, more):
    less = replace(cluster, **{field: getattr(cluster, field) * scale})
    wider = replace(less, **{field: getattr(less, field) * more})
    slow, fast = expected(less, size, setting, collective), expected(wider, size, setting, collective)
    assert fast <= slow * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(CLUSTERS, SIZES, COLLECTIVES, st.integers(1, 32), st.floats(1.0, 8.0), st.data())
def test_time_grows_with_size(cluster, size, collective, channels, times, data):
    algorithms = [a for a in (Algorithm.RING, Algorithm.TREE) if a in LEGAL[collective]]
    kernel = SimulatedKernel(
        collective=collective, size_bytes=size, algorithm=data.draw(st.sampled_from(algorithms)),
        protocol=data.draw(st.sampled_from(list(Protocol))), channels=channels,
    )  # fmt: skip
    larger = replace(kernel, size_bytes=int(size * times))
    assert kernel_us(larger, physics_of(cluster)) >= kernel_us(kernel, physics_of(cluster)) * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(CLUSTERS, SIZES, st.integers(1, 32), st.sampled_from(list(Protocol)))
def test_a_ring_stays_below_the_limit_of_its_links(cluster, size, channels, protocol):
    kernel = SimulatedKernel(
        collective=Collective.ALL_REDUCE,
        size_bytes=size,
        algorithm=Algorithm.RING,
        protocol=protocol,
        channels=channels,
    )
    ranks = cluster.world_size
    busbw = size * 2 * (ranks - 1) / ranks / kernel_us(kernel, physics_of(cluster)) / 1e3
    ports = cluster.nics_per_node * cluster.nic_gbps if cluster.nodes > 1 else math.inf
    assert busbw <= min(cluster.link_gbps, ports)


def test_a_ring_grows_linearly_with_ranks_and_a_tree_with_their_logarithm():
    one_per_node = replace(DGX, gpus_per_node=1, nics_per_node=1)
    counts = (64, 128, 256, 512)

    def small(algorithm: Algorithm) -> list[float]:
        kernel = SimulatedKernel(
            collective=Collective.ALL_REDUCE, size_bytes=1024, algorithm=algorithm, protocol=Protocol.LL, channels=1
        )
        return [kernel_us(kernel, physics_of(one_per_node.sized(nodes=n))) for n in counts]

    ring, tree = small(Algorithm.RING), small(Algorithm.TREE)
    steps = [(b - a) / (n - m) for a, b, m, n in zip(ring, ring[1:], counts, counts[1:], strict=False)]
    assert max(steps) <= 1.05 * min(steps), "each rank adds the same"
    doublings = [b - a for a, b in pairwise(tree)]
    assert max(doublings) <= 1.05 * min(doublings), "each doubling adds the same"
    assert tree[-1] < ring[-1] / 10


@given(st.integers(0, 1000), st.integers(0, 20))
def test_the_same_seed_has_the_same_noise_in_any_order_of_messages(seed, repeat):
    messages = [Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=1 << p) for p in (12, 20)]
    first = SimulatedRunner(DGX, seed=seed).measure(RING, messages, repeat=repeat)
    second = SimulatedRunner(DGX, seed=seed).measure(RING, messages[::-1], repeat=repeat)
    assert first.measurements == second.measurements[::-1]
    other = SimulatedRunner(DGX, seed=seed + 1).measure(RING, messages, repeat=repeat)
    assert first.measurements != other.measurements
