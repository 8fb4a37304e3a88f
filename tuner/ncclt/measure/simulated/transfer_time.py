"""The kernel that runs on the simulated hardware, and its time without noise.

The kernel is the NCCL default for a message, or the one that a setting forces. Every algorithm is latency plus a
pipeline of chunks: the rates are those of `LinkModel`, and the chunk arithmetic is NCCL's own (NVIDIA/nccl 2.30.7
enqueue.cc calcCollChunking :2182-2318, init.cc computeBuffSizes, collectives.h:19-34). On the public times of two ranks
that share one GPU, where a loop costs a whole time slice of 4.367 ms, `loops` reproduces the times of LL, LL128 and
two-channel Simple rings within 1 %. Bandwidth saturates over channels as ((b c)^-q + B^-q)^(-1/q), with q = 3 fitted to
the MI355X grid and the RTX 4090 channel sweep; a port saturates more sharply, with q = 5 (estimate: two channels fill
it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import Setting, max_channels
from ncclt.measure.simulated.link_model import LinkModel
from ncclt.nccl.cost_model.model import Choice, cell_channels, most_threads, nccl_choice, ring_steps
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.nccl.p2p_chunk import BETWEEN_NODES, CHUNKS_IN_NODE, STEPS, find_chunk, net_ratio

BUFFER_BYTES = {Protocol.LL: 524288, Protocol.LL128: 4915200, Protocol.SIMPLE: 4194304}
"""Default buffer per channel and peer (LL_BUFFSIZE, LL128_BUFFSIZE, BUFFSIZE)."""

_DATA_SHARE = {Protocol.LL: 1 / 2, Protocol.LL128: 120 / 128, Protocol.SIMPLE: 1.0}
"""Bytes of data per byte in the buffer: LL keeps a flag beside every word, LL128 one per 128 bytes."""

_RING_STEPS_PER_CHUNK = 4
"""ALLREDUCE_CHUNKSTEPS and its equivalents for all_gather and reduce_scatter: NCCL_STEPS / 2; the others use 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedKernel:
    """Kernel of one message: everything that determines its time besides the hardware."""

    collective: Collective
    size_bytes: int
    algorithm: Algorithm = Algorithm.RING
    protocol: Protocol = Protocol.SIMPLE
    channels: int = 1
    threads: int = 512
    buffsize: int = BUFFER_BYTES[Protocol.SIMPLE]
    p2p: tuple[tuple[str, int], ...] = ()


def chunk_bytes(kernel: SimulatedKernel, *, nodes: int, per_node: int, by_depth: bool = False) -> float:
    """Return the data that one channel moves in one step, bytes.

    Args:
        kernel: what runs; its `buffsize` is the buffer of Simple only.
        nodes, per_node: shape of the communicator; the chunk of an LL128 tree depends on it.
        by_depth: whether a tree with Simple takes smaller chunks for smaller messages, as old versions of NCCL do
            (enqueue.cc, computeColl) and, by its times on MI355X, RCCL 2.28; NCCL 2.29 on L40S does not.
    """
    algorithm, protocol = kernel.algorithm, kernel.protocol
    buffer = kernel.buffsize if protocol is Protocol.SIMPLE else BUFFER_BYTES[protocol]
    chunk = buffer / STEPS * _DATA_SHARE[protocol]
    ring_sum = kernel.collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    if algorithm is Algorithm.RING and protocol is Protocol.SIMPLE and ring_sum:
        return chunk * _RING_STEPS_PER_CHUNK
    if algorithm is Algorithm.TREE and protocol is Protocol.LL128:
        steps = 1 + int(math.log2(nodes)) + 0.1 * per_node
        for factor, floor in ((64, 131072), (16, 32768)):
            while kernel.size_bytes / (kernel.channels * chunk) < steps * factor / per_node and chunk > floor:
                chunk /= 2
    if by_depth and algorithm is Algorithm.TREE and protocol is Protocol.SIMPLE:
        depth = per_node - 1 + int(math.log2(nodes))
        for factor, floor in ((8, 131072), (4, 65536), (1, 32768)):
            while kernel.size_bytes / (kernel.channels * chunk) < depth * factor and chunk > floor:
                chunk /= 2
    return chunk


def loops(algorithm: Algorithm, size_bytes: int, chunk: float, *, channels: int, ranks: int) -> int:
    """Return the number of loops of the kernel over its chunks.

    Args:
        algorithm: a ring moves one chunk for each rank per loop, anything else one chunk.
        size_bytes: the whole message.
        chunk: result of `chunk_bytes`.
        ranks: ranks of the communicator; 1 for a ring that only passes data along (broadcast, reduce).
    """
    per_loop = channels * chunk * (ranks if algorithm is Algorithm.RING else 1)
    return max(1, math.ceil(size_bytes / per_loop))


_CUT_THROUGH = {Protocol.LL: 0.6, Protocol.LL128: 0.2, Protocol.SIMPLE: 1.0}
"""Share of a chunk that a tree waits for before passing it on: Simple whole steps (L40S, tree of 2 ranks: one chunk
per hop exactly), LL128 little (MI355X, one channel), LL in between (4-16 KiB on L40S and on two nodes of A100)."""

_OVERLAP = {Protocol.LL: 1.7, Protocol.LL128: 1.1, Protocol.SIMPLE: 1.0}
"""Exponent that combines latency and transfer of a step: 1 = sequential (Simple fences), more = overlapped. LL on L40S
is between a sum and a maximum."""

_NVLS_CHUNK_BYTES = 131072
_NVLS_CHANNEL_GBPS = 34.0
"""One NVLS channel (algorithm bandwidth): 16 of them saturate an H100 node."""

_P2P_LL_THRESHOLD = 16384

_P2P_CHANNELS = 8
"""Channels per peer of send/recv are an estimate."""

MODELLED = frozenset({"BUFFSIZE", "NTHREADS", "P2P_LL_THRESHOLD", BETWEEN_NODES, *CHUNKS_IN_NODE})
"""Process-wide parameters whose effect is simulated."""


def kernel_us(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return the time of one call, µs."""
    return links.extra_us + _call_us(kernel, links)


def _call_us(kernel: SimulatedKernel, links: LinkModel) -> float:
    if links.graph.ranks == 1:
        # A copy within one GPU, at an eighth of a microsecond per 200 KB (HBM at about 1.6e12 bytes/s).
        return links.base_us[Protocol.LL] / 2 + kernel.size_bytes / 1.6e6
    if not kernel.collective.is_tunable:
        return _peer_to_peer_us(kernel, links)
    launch = (kernel.channels - 1) * links.launch_us
    match kernel.algorithm:
        case Algorithm.NVLS | Algorithm.NVLS_TREE:
            return launch + _nvls_us(kernel, links)
        case Algorithm.TREE:
            return launch + _tree_us(kernel, links)
        case Algorithm.PAT:
            return launch + _pat_us(kernel, links)
        case _ if kernel.collective in (Collective.BROADCAST, Collective.REDUCE):
            return launch + _chain_us(kernel, links)
        case _:
            return launch + _ring_us(kernel, links)


def _saturating(one: float, all_of_them: float, channels: int, *, sharpness: int = 3) -> float:
    """Return the bandwidth of `channels` channels on a link."""
    return float(((one * channels) ** -sharpness + all_of_them**-sharpness) ** (-1 / sharpness))


def _slower(first: float, second: float) -> float:
    """Return a smooth minimum of two rates that limit the same stream."""
    return float((first**-6 + second**-6) ** (-1 / 6))


def _intra_gbps(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return the rate of one channel within the node; a tree reaches less of the link, but its channels carry more."""
    # Fewer threads keep fewer loads in flight; above 512 nothing is gained.
    threads = min(1.0, kernel.threads / 512) ** 0.6
    tree = kernel.algorithm is Algorithm.TREE
    one = links.channel_gbps[kernel.protocol] * threads * (links.tree_channel if tree else 1.0)
    link = links.link_gbps * links.link_share[kernel.protocol] * (links.tree_share if tree else 1.0)
    crowd = 1 + links.crowding * max(0, kernel.channels - 8)
    return _saturating(one, link, kernel.channels) / kernel.channels / crowd


def _net_gbps(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return the rate of one channel between nodes."""
    share = links.net_share[kernel.protocol]
    crowd = 1 + links.crowding * max(0, kernel.channels - 8)
    one, ports = links.net_channel_gbps[kernel.protocol], links.net_gbps * share
    total = _saturating(one, ports, kernel.channels, sharpness=5)
    tree = links.net_tree_share if kernel.algorithm is Algorithm.TREE else 1.0
    return total * tree / kernel.channels / crowd


def _hop_us(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return one hop between nodes: the progress thread of a GPU serves its channels one after the other."""
    return links.inter_us[kernel.protocol] + _proxy_us(kernel, links)


def _proxy_us(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return the time of a GPU's progress thread for the messages of its other channels in one step, µs."""
    return links.proxy_us * max(0.0, kernel.channels / links.graph.per_node - 1)


def _chunk(kernel: SimulatedKernel, links: LinkModel) -> float:
    by_depth = links.graph.cluster.gpu.startswith("MI")
    return chunk_bytes(kernel, nodes=links.graph.nodes, per_node=links.graph.per_node, by_depth=by_depth)


def _ring_us(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return the time of a ring: what a rank passes on crosses every link of the ring in turn.

    Of as many hops as the ring has steps, nodes / ranks are between nodes. There a progress thread sends a message per
    channel and step, however small: with more channels it, and not the port, limits the steps (2 x 8 MI355X at 4 MiB:
    109 µs with 16 channels, 233 with 48).

    The first loop has latency and transfer of every step; in later loops the second half of a chunk hides the latency
    of the first, and only the synchronisation remains.
    """
    graph, protocol, channels = links.graph, kernel.protocol, kernel.channels
    steps = ring_steps(kernel.collective, graph.ranks)
    crossings = steps * graph.nodes / graph.ranks
    rate = _intra_gbps(kernel, links) if graph.per_node > 1 else math.inf
    hop, sync, busy_us = links.intra_us[protocol], links.sync_us, 0.0
    if graph.nodes > 1:
        net = _net_gbps(kernel, links)
        rate = _slower(rate, net) if graph.per_node > 1 else net
        hop += (links.inter_us[protocol] - hop) * crossings / steps
        busy_us = _proxy_us(kernel, links)
        sync += (links.net_sync_us - sync) * crossings / steps
    chunk = _chunk(kernel, links)
    # A last loop that is not full costs its share: with more ranks a whole one less would make a call faster.
    count = max(1.0, kernel.size_bytes / (channels * graph.ranks * chunk))
    per_rank = kernel.size_bytes / (graph.ranks * channels)
    first_us = min(chunk, per_rank) / rate / 1e3
    power = _OVERLAP[protocol]
    # A smooth maximum, because the two overlap.
    sent_us = float((first_us**4 + busy_us**4) ** (1 / 4)) if busy_us else first_us
    first_step = float((sent_us**power + hop**power) ** (1 / power))
    rest = per_rank / rate / 1e3 - first_us
    # A later loop costs no more than the first: otherwise more ranks, with fewer loops, would be faster.
    exposed = min(max(0.0, hop - first_us / 2) + sync, first_step - first_us)
    return links.base_us[protocol] + steps * (first_step + rest + (count - 1) * exposed)


def _chain_us(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return the time of broadcast or reduce: chunks follow each other along the ring, from or to the root.

    Calls in a row, as benchmarks and trainings make them, follow each other as well: the root is through long before
    the last rank is, so that most of the chain is hidden (2 x 8 MI355X: 19 µs at 4 KiB with LL, where an all_gather
    of as many hops takes 50).
    """
    graph = links.graph
    hops = graph.ranks - 1
    crossings = graph.nodes - 1
    intra = _intra_gbps(kernel, links) if graph.per_node > 1 else math.inf
    rate = _slower(intra, _net_gbps(kernel, links)) if graph.nodes > 1 and graph.per_node > 1 else intra
    if graph.per_node == 1:
        rate = _net_gbps(kernel, links)
    latency = (hops - crossings) * links.intra_us[kernel.protocol]
    if crossings:
        latency += crossings * _hop_us(kernel, links)
    chunk = min(_chunk(kernel, links), kernel.size_bytes / kernel.channels)
    count = math.ceil(kernel.size_bytes / kernel.channels / chunk)
    fill = (hops - 1) * chunk * _CUT_THROUGH[kernel.protocol] / rate / 1e3
    sync = links.net_sync_us if crossings else links.sync_us
    stream = kernel.size_bytes / kernel.channels / rate / 1e3 + (count - 1) * sync
    return links.base_us[kernel.protocol] + links.chain_share * (latency + fill) + stream


def _tree_us(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return the time of a tree for all_reduce: up and down a chain in each node and a double tree over nodes.

    Within a node every GPU but the ends of the chain sends twice. Between nodes a node sends 2 (N - 1) / N times the
    message: once for two nodes, where a tree therefore needs half of what a ring takes from the ports.
    """
    graph, channels = links.graph, kernel.channels
    levels = math.ceil(math.log2(graph.nodes))
    steep = 2 * (graph.per_node - 1)
    latency, fill_us_per_byte, slowest = 0.0, 0.0, math.inf
    if graph.per_node > 1:
        intra = _intra_gbps(kernel, links)
        sends = 2.0 if graph.nodes > 1 else 2 * (graph.ranks - 1) / graph.ranks
        simple = kernel.protocol is Protocol.SIMPLE
        latency += steep * links.intra_us[kernel.protocol] * (links.tree_hop_share if simple else 1.0)
        fill_us_per_byte += steep / intra / 1e3
        slowest = intra / sends
    if graph.nodes > 1:
        net = _net_gbps(kernel, links)
        latency += 2 * levels * _hop_us(kernel, links)
        fill_us_per_byte += 2 * levels / net / 1e3
        through = net * graph.nodes / (2 * (graph.nodes - 1))
        slowest = _slower(slowest, through) if graph.per_node > 1 else through
    chunk = min(_chunk(kernel, links), kernel.size_bytes / channels)
    count = loops(Algorithm.TREE, kernel.size_bytes, chunk, channels=channels, ranks=graph.ranks)
    # The last hop of the filling is the first chunk of the stream.
    fill = fill_us_per_byte * chunk * _CUT_THROUGH[kernel.protocol]
    sync = links.net_sync_us if graph.nodes > 1 else links.sync_us
    per_chunk = sync if kernel.protocol is Protocol.SIMPLE else sync / 4
    stream = (kernel.size_bytes / channels - chunk * _CUT_THROUGH[kernel.protocol]) / slowest / 1e3
    return links.base_us[kernel.protocol] + latency + fill + max(0.0, stream) + (count - 1) * per_chunk


def _nvls_us(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return the time of NVLS: the switch reduces and multicasts, over nodes as a tree of the node results."""
    graph = links.graph
    rate = _saturating(_NVLS_CHANNEL_GBPS, links.nvls_gbps, kernel.channels)
    if graph.nodes == 1:
        return links.nvls_us + kernel.size_bytes / rate / 1e3
    levels = 2 * math.ceil(math.log2(graph.nodes))
    net = _net_gbps(kernel, links) * kernel.channels
    chunk = min(_NVLS_CHUNK_BYTES * kernel.channels, kernel.size_bytes)
    # Not more than a ring gets out of the ports, on two nodes either: 2 x 8 H100 over 1,600 Gb/s reach 179 GB/s.
    rate = _slower(rate, net * graph.ranks / (2 * (graph.ranks - 1)))
    latency = links.nvls_us + levels * _hop_us(kernel, links)
    return latency + (kernel.size_bytes / rate + levels * chunk * 0.2 / net) / 1e3


def _pat_us(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return the time of PAT, one rank per node: a logarithmic number of hops, at three quarters of the ports."""
    ranks = links.graph.ranks
    rate = 0.75 * _net_gbps(kernel, links) * kernel.channels
    hops = math.ceil(math.log2(ranks))
    moved = kernel.size_bytes * (ranks - 1) / ranks
    return links.base_us[Protocol.SIMPLE] + hops * _hop_us(kernel, links) + moved / rate / 1e3


def _peer_to_peer_us(kernel: SimulatedKernel, links: LinkModel) -> float:
    """Return the time of send_recv or all_to_all: no algorithm, LL up to 16 KiB per peer, own channels and chunks.

    The model of the chunk is simple and was never compared with times of another chunk than NCCL's own. Each chunk but
    the first costs one synchronisation, so large chunks are cheap. The first one is copied into a buffer before it is
    sent, and the last out of it, while the link waits, so small chunks start sooner. The buffer has 8 chunks, which are
    sent within one round trip at most, so small chunks cannot fill a long link.
    """
    graph = links.graph
    peers = graph.ranks - 1 if kernel.collective is Collective.ALL_TO_ALL else 1
    per_peer = kernel.size_bytes / graph.ranks if kernel.collective is Collective.ALL_TO_ALL else kernel.size_bytes
    parameters = {"P2P_LL_THRESHOLD": _P2P_LL_THRESHOLD} | dict(kernel.p2p)
    protocol = Protocol.LL if per_peer <= parameters["P2P_LL_THRESHOLD"] else Protocol.SIMPLE
    away = graph.ranks - graph.per_node if kernel.collective is Collective.ALL_TO_ALL else int(graph.nodes > 1)
    path = "NET" if graph.nodes > 1 else "NVL" if graph.nvlink else "PCI"
    limits = {**dict(kernel.p2p), "BUFFSIZE": kernel.buffsize}
    chunk = find_chunk(f"P2P_{path}_CHUNKSIZE", limits, ratio=net_ratio(graph.cluster))
    one = links.channel_gbps[protocol]
    inside = _saturating(one, links.link_gbps * links.link_share[protocol], _P2P_CHANNELS * min(peers, 3))
    transfer = (peers - away) * per_peer / inside / 1e3
    latency = links.intra_us[protocol] * math.ceil(math.log2(peers + 1))
    filled = 0.0
    if away:
        # Each GPU has its share of the ports; within and between nodes overlap.
        port = links.net_gbps * links.net_share[protocol] / graph.per_node
        in_flight = STEPS * chunk * _P2P_CHANNELS * min(peers, 3)
        port = min(port, in_flight / (2 * links.inter_us[protocol]) / 1e3)
        transfer = max(transfer, away * per_peer / port / 1e3)
        latency += links.inter_us[protocol] + links.proxy_us * (away - 1)
        filled = 2 * min(chunk, per_peer / _P2P_CHANNELS) / one / 1e3
    sync = links.net_sync_us if away else links.sync_us
    chunks = math.ceil(per_peer / (chunk * _P2P_CHANNELS))
    return links.base_us[protocol] + latency + transfer + filled + (chunks - 1) * sync


def find_choice(cluster: Cluster, setting: Setting, message: Message) -> Choice | None:
    """Return the forced choice if the setting applies to the collective, else NCCL's own."""
    reaching = setting.applied_to(message.collective, version=cluster.version)
    return nccl_choice(
        message.collective,
        message.size_bytes,
        build_topology(cluster, message.group_size, message.spans_nodes),
        algorithm=reaching.algorithm,
        protocol=reaching.protocol,
        max_threads=dict(reaching.parameters).get("NTHREADS"),
    )


def select_kernel(cluster: Cluster, setting: Setting, message: Message) -> SimulatedKernel:
    """Return the kernel that runs for a message under a setting.

    Raises:
        UsageError: the group is larger than the cluster.
    """
    buffsize = dict(setting.parameters).get("BUFFSIZE", BUFFER_BYTES[Protocol.SIMPLE])
    choice = find_choice(cluster, setting, message)
    if choice is None:
        return SimulatedKernel(
            collective=message.collective, size_bytes=message.size_bytes, buffsize=buffsize, p2p=setting.parameters
        )
    graph = build_topology(cluster, message.group_size, message.spans_nodes)
    return SimulatedKernel(
        collective=message.collective,
        size_bytes=message.size_bytes,
        algorithm=choice.algorithm,
        protocol=choice.protocol,
        channels=_channels(cluster, setting, message, choice),
        # NCCL takes fewer for messages that leave some of them idle, which costs nothing.
        threads=most_threads(choice.algorithm, choice.protocol, graph, dict(setting.parameters).get("NTHREADS")),
        buffsize=buffsize,
    )


def _channels(cluster: Cluster, setting: Setting, message: Message, choice: Choice) -> int:
    graph = build_topology(cluster, message.group_size, message.spans_nodes)
    if setting.channels is None:
        factor = cluster.calibration.channels if cluster.calibration else 1.0
        return min(max(1, round(choice.channels * factor)), max_channels(cluster.version))
    nvls = choice.algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE)
    own = graph.nvls_channels if nvls else graph.channels
    # Launches that force more (NCCL_MIN_CTAS) get more, as the times of a calibration show.
    most = min(setting.channels, max(own, cluster.calibration.most_channels if cluster.calibration else 0))
    return cell_channels(message.collective, choice.protocol, message.size_bytes, graph.ranks, most)
