"""What must hold of any simulated cluster, whatever its constants."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ncclt.core.algorithms import LEGAL, Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.measure.simulated import SimulatedRunner
from ncclt.measure.simulated.expected import running_kernel
from ncclt.measure.simulated.link_model import build_link_model
from ncclt.measure.simulated.transfer_time import SimulatedKernel, kernel_us
from ncclt.store.shipped import named_clusters, profiles_folder

DGX = Cluster(
    name="d",
    nodes=2,
    gpus_per_node=8,
    gpu="A100",
    compute_capability=80,
    link_class="nvswitch",
    link_gbps=300.0,
    fabric="infiniband",
    nics_per_node=8,
    nic_gbps=25.0,
    gpudirect=True,
    nccl_version="2.21.5",
)
EFA = replace(DGX, name="e", link_class="shm", link_gbps=32.0, fabric="efa", nics_per_node=4, nic_gbps=12.5)
H100 = replace(DGX, name="h", compute_capability=90, link_gbps=450.0, nic_gbps=50.0, nccl_version="2.28.9")
RING = Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE)
SHIPPED = named_clusters(profiles_folder())
CLUSTERS = st.sampled_from([DGX, EFA, H100, replace(DGX, nodes=1), replace(H100, nodes=1), replace(EFA, nodes=4)])
SIZES = st.integers(10, 30).map(lambda power: 1 << power)
COLLECTIVES = st.sampled_from([Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST])


def expected(cluster: Cluster, size: int, setting: Setting = DEFAULT, collective=Collective.ALL_REDUCE) -> float:
    message = Message(collective=collective, dtype="float32", size_bytes=size)
    return SimulatedRunner(cluster, seed=0, sigma=0).expected_us(setting, message)


PAIRS = [(a, p) for a in (Algorithm.RING, Algorithm.TREE, Algorithm.NVLS) for p in Protocol]
FORCED = [Setting(algorithm=a, protocol=p, channels=c) for a, p in PAIRS for c in (None, 1, 4, 8, 32)]
QUANTISED = 1.015
"""Share by which more nodes may seem faster: two have other channels than one, and NCCL halves the chunk of an LL128
tree as the tree gets deeper."""


def runs(cluster: Cluster, setting: Setting, message: Message) -> bool:
    tunable = message.collective.is_tunable
    if not tunable or setting.algorithm not in LEGAL[message.collective]:
        return False
    return not SimulatedRunner(cluster, seed=0, sigma=0).refusal(setting, message)


def is_in_force(cluster: Cluster, setting: Setting, message: Message) -> bool:
    """Return True if NCCL uses the forced pair. Without NVLS it chooses by message size."""
    kernel = running_kernel(cluster, setting, message)
    return (kernel.algorithm, kernel.protocol) == (setting.algorithm, setting.protocol)


@st.composite
def cases(draw: st.DrawFn, *, nodes: Sequence[int] = (1, 2, 3, 8, 32)) -> tuple[Cluster, Message, Setting]:
    """Return a shipped cluster, a message and a setting that runs there."""
    names = [name for name, one in SHIPPED.items() if one.nics_per_node or 1 in nodes]
    cluster = SHIPPED[draw(st.sampled_from(names))]
    cluster = replace(cluster, nodes=draw(st.sampled_from(nodes)) if cluster.nics_per_node else 1)
    message = Message(collective=draw(st.sampled_from(list(Collective))), dtype="float32", size_bytes=draw(SIZES))
    possible = [DEFAULT, *(one for one in FORCED if runs(cluster, one, message))]
    return cluster, message, draw(st.sampled_from(possible))


def time_us(cluster: Cluster, message: Message, setting: Setting) -> float:
    return SimulatedRunner(cluster, seed=0, sigma=0).expected_us(setting, message)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_one_algorithm_protocol_and_number_of_channels_has_one_time(case):
    cluster, message, setting = case
    assume(message.collective.is_tunable)
    kernel = running_kernel(cluster, setting, message)
    forced = Setting(algorithm=kernel.algorithm, protocol=kernel.protocol, channels=kernel.channels)
    again = running_kernel(cluster, forced, message)
    if again.channels == kernel.channels:  # a forced number is a cap
        assert again == kernel


@settings(max_examples=60, deadline=None)
@given(cases(nodes=(2, 3, 8, 32)), st.sampled_from([2, 3]))
def test_more_ports_are_never_slower(case, more):
    cluster, message, setting = case
    wider = replace(cluster, nics_per_node=cluster.nics_per_node * more)
    assert time_us(wider, message, setting) <= time_us(cluster, message, setting) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(cases())
@example(
    (
        replace(SHIPPED["aws-g6e"], nodes=2),
        Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=32768),
        Setting(algorithm=Algorithm.NVLS, protocol=Protocol.LL),
    )
)
@example(
    (
        replace(SHIPPED["aws-p4d"], nodes=3),
        Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=65536),
        Setting(algorithm=Algorithm.RING, protocol=Protocol.LL),
    )
)
def test_twice_the_size_and_more_nodes_are_never_faster_under_a_forced_setting(case):
    """Where NCCL opens more channels for the larger message (1 -> 5 on three nodes at 128 KiB), it may be faster."""
    cluster, message, setting = case
    assume(setting is not DEFAULT)
    assume(is_in_force(cluster, setting, message))
    here = time_us(cluster, message, setting)
    larger = replace(message, size_bytes=2 * message.size_bytes)
    channels = running_kernel(cluster, setting, message).channels
    if running_kernel(cluster, setting, larger).channels <= channels:
        assert time_us(cluster, larger, setting) >= here * (1 - 1e-9)
    wide = replace(cluster, nodes=cluster.nodes * 2) if cluster.nics_per_node else cluster
    if runs(wide, setting, message) and is_in_force(wide, setting, message):
        is_quantised = cluster.nodes == 1 or (setting.algorithm, setting.protocol) == (Algorithm.TREE, Protocol.LL128)
        assert time_us(wide, message, setting) * (QUANTISED if is_quantised else 1 + 1e-9) >= here


@settings(max_examples=60, deadline=None)
@given(cases())
def test_no_rate_exceeds_a_link_on_its_way(case):
    """What a GPU and a node must receive crosses their links once, whatever the algorithm."""
    cluster, message, setting = case
    seconds = time_us(cluster, message, setting) / 1e6
    ranks, nodes = cluster.world_size, cluster.nodes
    algbw = message.size_bytes / seconds / 1e9
    one_sends = message.collective is Collective.SEND_RECV
    if nodes > 1:
        senders = 1 if one_sends else cluster.gpus_per_node
        ports = min(cluster.nics_per_node * cluster.nic_gbps, senders * cluster.pcie_gbps)
        arriving = {
            Collective.ALL_REDUCE: 2 * (nodes - 1) / nodes,
            Collective.ALL_TO_ALL: cluster.gpus_per_node * (nodes - 1) / nodes,
            Collective.BROADCAST: 1.0,
            Collective.REDUCE: 1.0,
            Collective.SEND_RECV: 1.0,
        }.get(message.collective, (nodes - 1) / nodes)
        assert algbw * arriving <= ports
    elif ranks > 1 and setting.algorithm is not Algorithm.NVLS and cluster.link_class != "nvswitch":
        whole = replace(message, group_size=ranks)
        assert whole.busbw_gbps(seconds * 1e6) <= cluster.link_gbps


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.SEND_RECV])
def test_one_gpu_of_a_node_has_its_own_ports_and_pcie_link(collective):
    """DGX H100: 8 ports of 50 GB/s belong to 8 GPUs, each behind PCIe 5 x16 of 64 GB/s."""
    message = Message(collective=collective, dtype="float32", size_bytes=1 << 30)
    dgx = SHIPPED["dgx-h100"].sized(nodes=2)
    one = message.busbw_gbps(time_us(dgx.sized(gpus_per_node=1), message, DEFAULT))
    assert one <= 50.0
    if collective is Collective.ALL_REDUCE:
        two = message.busbw_gbps(time_us(dgx.sized(gpus_per_node=2), message, DEFAULT))
        assert two == pytest.approx(2 * one, rel=0.15)


def test_what_has_no_model_is_refused():
    send = Message(collective=Collective.SEND_RECV, dtype="float32", size_bytes=1 << 24)
    runner = SimulatedRunner(DGX, seed=0, sigma=0)
    refused = runner.measure(Setting(parameters=(("IB_QPS_PER_CONNECTION", 4),)), [send], repeat=0)
    assert refused.outcome is Outcome.INVALID
    assert "no model of NCCL_IB_QPS_PER_CONNECTION" in refused.detail
    smaller = Setting(parameters=(("P2P_NET_CHUNKSIZE", 65536),))
    assert runner.expected_us(smaller, send) > runner.expected_us(DEFAULT, send)


@settings(max_examples=60, deadline=None)
@given(
    CLUSTERS,
    SIZES,
    COLLECTIVES,
    st.sampled_from([DEFAULT, RING, replace(RING, channels=8)]),
    st.sampled_from([("link_gbps", 100.0, 300.0), ("link_gbps", 300.0, 900.0), ("nic_gbps", 12.5, 50.0)]),
)
def test_more_nominal_bandwidth_is_never_slower(cluster, size, collective, setting, change):
    field, less, more = change
    slower, faster = (replace(cluster, **{field: gbps}) for gbps in (less, more))
    message = Message(collective=collective, dtype="float32", size_bytes=size)
    # By its cost model NCCL may choose another algorithm for faster links, and be wrong by little.
    assume(running_kernel(slower, setting, message) == running_kernel(faster, setting, message))
    assert time_us(faster, message, setting) <= time_us(slower, message, setting) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(CLUSTERS, SIZES, COLLECTIVES, st.integers(1, 32), st.floats(1.0, 8.0), st.data())
def test_time_grows_with_size(cluster, size, collective, channels, times, data):
    algorithms = [a for a in (Algorithm.RING, Algorithm.TREE) if a in LEGAL[collective]]
    kernel = SimulatedKernel(
        collective=collective,
        size_bytes=size,
        algorithm=data.draw(st.sampled_from(algorithms)),
        protocol=data.draw(st.sampled_from(list(Protocol))),
        channels=channels,
    )
    larger = replace(kernel, size_bytes=int(size * times))
    assert kernel_us(larger, build_link_model(cluster)) >= kernel_us(kernel, build_link_model(cluster)) * (1 - 1e-9)


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
    busbw = size * 2 * (ranks - 1) / ranks / kernel_us(kernel, build_link_model(cluster)) / 1e3
    ports = cluster.nics_per_node * cluster.nic_gbps if cluster.nodes > 1 else math.inf
    assert busbw <= min(cluster.link_gbps, ports)


def test_a_ring_grows_linearly_with_ranks_and_a_tree_with_their_logarithm():
    one_per_node = replace(DGX, gpus_per_node=1, nics_per_node=1)
    counts = (64, 128, 256, 512)

    def small(algorithm: Algorithm) -> list[float]:
        kernel = SimulatedKernel(
            collective=Collective.ALL_REDUCE, size_bytes=1024, algorithm=algorithm, protocol=Protocol.LL, channels=1
        )
        return [kernel_us(kernel, build_link_model(one_per_node.sized(nodes=n))) for n in counts]

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
