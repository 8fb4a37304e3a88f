"""The chunk and the channels of send_recv and all_to_all, and the process-wide parameters that change nothing.

NCCL computes one chunk for each communicator (init.cc computeBuffSizes; 2.30.7: 829-852; the same rule since 2.19):
P2P_NET_CHUNKSIZE between nodes, P2P_NVL_CHUNKSIZE in a node whose GPUs all reach each other by NVLink, else
P2P_PCI_CHUNKSIZE; then at most a step of the buffer, BUFFSIZE / 8. Since 2.29.2 the chunk between nodes is doubled on
Arm hosts with compute capability 100 or more. A communicator that shares the resources of its parent (ncclCommSplit
with splitShare) takes no more than its parent, which no parameter shows.

Data is right with every value (from source and NVIDIA/nccl#2408, where only NCCL_CHUNK_SIZE corrupts; not tried on a
GPU): the buffers have as many slots of a chunk as NCCL uses, and a call's chunk is rounded down (bitops.h u32fpEncode).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message, format_bytes
from ncclt.core.nccl_version import NcclVersion
from ncclt.nccl.parameters import searchable

STEPS = 8
"""NCCL_STEPS: slots of the buffer between two ranks (device.h)."""

DEFAULTS = {
    "BUFFSIZE": 4 << 20,
    "P2P_NET_CHUNKSIZE": 128 << 10,
    "P2P_NVL_CHUNKSIZE": 512 << 10,
    "P2P_PCI_CHUNKSIZE": 128 << 10,
}
"""NCCL's own values (init.cc)."""

BETWEEN_NODES, CHUNKS_IN_NODE = "P2P_NET_CHUNKSIZE", ("P2P_NVL_CHUNKSIZE", "P2P_PCI_CHUNKSIZE")

DOUBLED_SINCE = NcclVersion(2, 29, 2)
"""First version that doubles P2P_NET_CHUNKSIZE on some hosts."""

FITTED_SINCE = NcclVersion(2, 29, 2)
"""First version that fits the channels of a peer to the P2P channels and the number of ranks."""

P2P_CHANNELS = (LEAST, MOST, PER_PEER) = ("MIN_P2P_NCHANNELS", "MAX_P2P_NCHANNELS", "NCHANNELS_PER_NET_PEER")
"""Parameters of the number of channels of send_recv and all_to_all."""

_MOST_CHANNELS, _PEERS_PER_BATCH = 64, 8
"""NCCL's MAXCHANNELS and NCCL_MAX_DEV_WORK_P2P_PER_BATCH (device.h)."""

_TUNABLE_ONLY = ("BUFFSIZE", "NTHREADS")
"""Parameters without an effect of their own on send_recv and all_to_all.

BUFFSIZE limits their chunk and does nothing else: buffers to the network have 16 chunks (net.cc
sharedNetBuffersInit), the kernel uses 8 (device/sendrecv.h). Their kernel always has 512 threads (enqueue.cc
finishPlan), and NTHREADS only sets those of a ring (graph/tuning.cc).
"""


def chunk_names(cluster: Cluster, messages: Iterable[Message]) -> tuple[str, ...]:
    """Return the parameters that set the chunk of some messages; none where no message has such a chunk.

    The GPUs of a node with NVLink but no NVSwitch may lack a link between some of them, so either of two may count.
    """
    places = {
        message.spans_nodes if message.group_size else cluster.nodes > 1
        for message in messages
        if not message.collective.is_tunable
    }
    in_node = {"nvswitch": CHUNKS_IN_NODE[:1], "nvlink": CHUNKS_IN_NODE}.get(cluster.link_class, CHUNKS_IN_NODE[1:])
    return (*((BETWEEN_NODES,) if True in places else ()), *(in_node if False in places else ()))


def default_process_wide(cluster: Cluster, messages: Iterable[Message]) -> tuple[str, ...]:
    """Return the process-wide parameters that a study searches unless others are asked for, sorted.

    BUFFSIZE, and the parameters of the chunk of send_recv and all_to_all, which BUFFSIZE limits. In a node with NVLink
    the chunk over PCIe is left out: searching both would double the arms for nodes that lack links.
    """
    names = {parameter.name for parameter in searchable(cluster.version)}
    chunks = chunk_names(cluster, messages)
    left_out = set(CHUNKS_IN_NODE[1:] if CHUNKS_IN_NODE[0] in chunks else ())
    return tuple(sorted(names.intersection(("BUFFSIZE", *chunks)) - left_out))


def find_chunk(name: str, parameters: Mapping[str, int], *, ratio: int = 1) -> int:
    """Return the chunk that NCCL uses where one parameter sets it.

    Args:
        name: the parameter, one of `chunk_names`.
        parameters: process-wide ones that are set, without `NCCL_`.
        ratio: result of `net_ratio` for `P2P_NET_CHUNKSIZE`.
    """
    values = {**DEFAULTS, **parameters}
    return min((ratio if name == BETWEEN_NODES else 1) * values[name], values["BUFFSIZE"] // STEPS)


def serves_all_peers(parameters: Mapping[str, int], cluster: Cluster) -> bool:
    """Return True if the channels reach every rank of the job in one round, as those that NCCL chooses do.

    Between nodes NCCL halves the channels of a peer until channels per peer x ceil(ranks / 8) are no more than its P2P
    channels (graph/paths.cc:993-1001, since `FITTED_SINCE`), but not where NCHANNELS_PER_NET_PEER is set. Both
    published hangs are of a number per peer that was set: 32 with 16 ranks (NVIDIA/nccl#1915), 4 with 64 to 90
    (NVIDIA/nccl#1835). The P2P channels of a communicator are known only from MIN_P2P_NCHANNELS. A smaller group needs
    no more than the job.

    Args:
        parameters: that are set, without `NCCL_`.
        cluster: sized.
    """
    rounds = -(-cluster.world_size // _PEERS_PER_BATCH)
    if PER_PEER in parameters:
        return parameters[PER_PEER] * rounds <= parameters.get(LEAST, 1)
    return MOST not in parameters or rounds == 1 or cluster.version >= FITTED_SINCE


def net_ratio(cluster: Cluster) -> int:
    """Return the factor that NCCL puts before P2P_NET_CHUNKSIZE on a cluster."""
    doubled = cluster.cpu == "arm" and cluster.compute_capability >= 100 and cluster.version >= DOUBLED_SINCE
    return 2 if doubled else 1


def effective(parameters: Mapping[str, int], cluster: Cluster, messages: Collection[Message]) -> dict[str, int]:
    """Return the effect of process-wide parameters on some messages: equal effects are equal launches.

    Args:
        parameters: that are set, without `NCCL_`.
        cluster: sized.
        messages: of the workload; one of a group of unknown size counts as one of the whole job.
    """
    elsewhere = (BETWEEN_NODES, *CHUNKS_IN_NODE, *P2P_CHANNELS)
    effects = {name: value for name, value in parameters.items() if name not in elsewhere}
    if all(not message.collective.is_tunable for message in messages):
        effects = {name: value for name, value in effects.items() if name not in _TUNABLE_ONLY}
    elif effects.get("BUFFSIZE") == DEFAULTS["BUFFSIZE"]:
        del effects["BUFFSIZE"]
    ratio, chunks = net_ratio(cluster), chunk_names(cluster, messages)
    if chunks and not {LEAST, MOST}.isdisjoint(parameters):
        # The least overrules the most (graph/paths.cc:984-985).
        least = parameters.get(LEAST, 1)
        effects |= {LEAST: least, MOST: max(least, parameters.get(MOST, _MOST_CHANNELS))}
    if BETWEEN_NODES in chunks and PER_PEER in parameters:
        effects[PER_PEER] = parameters[PER_PEER]
    return effects | {name: find_chunk(name, parameters, ratio=ratio) for name in chunks}


def find_chunk_problem(
    parameters: Mapping[str, int], logged: Iterable[tuple[int, int]], *, ratio: int | None = None
) -> str:
    """Return the difference between the requested chunks and those that NCCL logged; empty = none.

    Without a requested chunk, and where `find_chunk_doubt` finds doubt, there is no difference.

    Args:
        parameters: process-wide ones that were requested, without `NCCL_`.
        logged: nodes of a communicator, 0 = not logged, and its chunk in bytes (`P2P Chunksize set to`).
        ratio: result of `net_ratio`; None = unknown, as from a log, which does not name the CPU.
    """
    asked = [name for name in (BETWEEN_NODES, *CHUNKS_IN_NODE) if name in parameters]
    if not asked:
        return ""
    between = {
        find_chunk(BETWEEN_NODES, parameters, ratio=factor) for factor in ((1, 2) if ratio is None else (ratio,))
    }
    in_node = {find_chunk(name, parameters) for name in CHUNKS_IN_NODE}
    for nodes, chunk in sorted(set(logged)):
        # A parameter that is not set asks for nothing.
        asked_here = [n for n in asked if not nodes or (n == BETWEEN_NODES) == (nodes > 1)]
        fits = (between if nodes != 1 else set()) | (in_node if nodes <= 1 else set())
        if asked_here and chunk not in fits:
            place = "" if not nodes else " between nodes" if nodes > 1 else " in a node"
            wanted = " ".join(f"NCCL_{name}={parameters[name]}" for name in asked_here)
            return f"NCCL used a P2P chunk of {format_bytes(chunk)}{place} despite {wanted}"
    return ""


def find_chunk_doubt(parameters: Mapping[str, int], logged: Iterable[tuple[int, int]]) -> str:
    """Return the doubt about P2P_NET_CHUNKSIZE that a logged chunk leaves while the CPU is unknown; empty = none.

    The requested value gives this chunk on one kind of CPU, and the NCCL default gives it on the other.

    Args:
        parameters, logged: as for `find_chunk_problem`.
    """
    if BETWEEN_NODES not in parameters:
        return ""
    unset = {name: value for name, value in parameters.items() if name != BETWEEN_NODES}
    used = {ratio: find_chunk(BETWEEN_NODES, parameters, ratio=ratio) for ratio in (1, 2)}
    for nodes, chunk in sorted(set(logged)):
        for ratio in (1, 2) if nodes != 1 else ():
            if chunk == used[ratio] != used[3 - ratio] and chunk == find_chunk(BETWEEN_NODES, unset, ratio=3 - ratio):
                kinds = ("Arm with Blackwell", "other hosts") if ratio == 2 else ("other hosts", "Arm with Blackwell")
                return (
                    f"cannot tell whether NCCL used NCCL_{BETWEEN_NODES}={parameters[BETWEEN_NODES]}: the logged chunk "
                    f"of {format_bytes(chunk)} results from it on {kinds[0]}, and from NCCL's default on {kinds[1]}"
                )
    return ""
