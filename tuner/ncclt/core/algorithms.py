"""NCCL's algorithms and protocols by collective, and the conditions under which ncclt may force them.

Source: nccl device/generate.py (algos_of_coll) and graph/tuning.cc of 2.30.7.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion


class Algorithm(StrEnum):
    """NCCL's algorithms, in the spelling of its tuner table."""

    TREE = "tree"
    RING = "ring"
    COLLNET_DIRECT = "collnet_direct"
    COLLNET_CHAIN = "collnet_chain"
    NVLS = "nvls"
    NVLS_TREE = "nvls_tree"
    PAT = "pat"


class Protocol(StrEnum):
    """NCCL's protocols, in the spelling of its tuner table."""

    LL = "ll"
    LL128 = "ll128"
    SIMPLE = "simple"


ALGORITHM_SINCE: dict[Algorithm, NcclVersion] = {
    Algorithm.TREE: NcclVersion(2, 4),
    Algorithm.RING: NcclVersion(2, 0),
    Algorithm.COLLNET_DIRECT: NcclVersion(2, 14),
    Algorithm.COLLNET_CHAIN: NcclVersion(2, 14),
    Algorithm.NVLS: NcclVersion(2, 17),
    Algorithm.NVLS_TREE: NcclVersion(2, 18),
    Algorithm.PAT: NcclVersion(2, 23),
}
"""First version that accepts each algorithm in NCCL_ALGO."""

_ALL_PROTOCOLS = frozenset(Protocol)
_SIMPLE = frozenset({Protocol.SIMPLE})

LEGAL: dict[Collective, dict[Algorithm, frozenset[Protocol]]] = {
    Collective.ALL_REDUCE: {
        Algorithm.TREE: _ALL_PROTOCOLS,
        Algorithm.RING: _ALL_PROTOCOLS,
        Algorithm.COLLNET_DIRECT: _SIMPLE,
        Algorithm.COLLNET_CHAIN: _SIMPLE,
        Algorithm.NVLS: _SIMPLE,
        Algorithm.NVLS_TREE: _SIMPLE,
    },
    Collective.ALL_GATHER: {
        Algorithm.RING: _ALL_PROTOCOLS,
        Algorithm.COLLNET_DIRECT: _SIMPLE,
        Algorithm.NVLS: _SIMPLE,
        Algorithm.PAT: _SIMPLE,
    },
    Collective.REDUCE_SCATTER: {
        Algorithm.RING: _ALL_PROTOCOLS,
        Algorithm.COLLNET_DIRECT: _SIMPLE,
        Algorithm.NVLS: _SIMPLE,
        Algorithm.PAT: _SIMPLE,
    },
    Collective.BROADCAST: {Algorithm.RING: _ALL_PROTOCOLS},
    Collective.REDUCE: {Algorithm.RING: _ALL_PROTOCOLS},
    Collective.ALL_TO_ALL: {},
    Collective.SEND_RECV: {},
}
"""Choices of NCCL: collective -> algorithm -> protocols. For all_to_all and send_recv there is none."""


def is_legal(
    collective: Collective, algorithm: Algorithm | None, protocol: Protocol | None, *, version: NcclVersion
) -> bool:
    """Return True if this version of NCCL implements the combination (None = left to NCCL)."""
    algorithms = LEGAL[collective]
    if algorithm is None:
        return protocol is None or any(protocol in legal for legal in algorithms.values())
    if version < ALGORITHM_SINCE[algorithm] or algorithm not in algorithms:
        return False
    return protocol is None or protocol in algorithms[algorithm]


def serves_every_call(collective: Collective, algorithm: Algorithm) -> bool:
    """Return True if an algorithm supports every call of a collective: any dtype, operation, size and communicator.

    If variables leave a collective without such an algorithm, the calls that no enabled one supports fail with
    `no algorithm/protocol available` (NCCL src/enqueue.cc, 2.18 to 2.32). Ring supports all, and so does Tree for
    all_reduce. NVLS and NVLSTree lack data types and operations (fp8, products; float32 has sums only) and
    communicators without multicast, PAT averages and communicators with several ranks per node, CollNet what the
    network's plugin does not support.
    """
    return algorithm is Algorithm.RING or (algorithm is Algorithm.TREE and collective is Collective.ALL_REDUCE)


def ll128_is_automatic(cluster: Cluster) -> bool:
    """Return True if NCCL itself enables LL128 on this cluster; only then may ncclt choose it.

    LL128 relies on 128-byte stores staying whole. NCCL's rule (graph/tuning.cc:515-537) needs compute capability
    70, NVLink between the GPUs of a node, and a network path no further than PXB, which GPUDirect implies.
    """
    within = cluster.link_class in ("nvlink", "nvswitch") or cluster.gpus_per_node == 1
    between = cluster.nodes == 1 or (cluster.gpudirect and cluster.fabric != "ethernet")
    hopper_cuda_118_pair = cluster.compute_capability == 90 and cluster.world_size == 2
    return cluster.compute_capability >= 70 and within and between and not hopper_cuda_118_pair


def available_algorithms(collective: Collective, cluster: Cluster) -> tuple[Algorithm, ...]:
    """Return the algorithms that NCCL would accept for a collective on a cluster, in NCCL's order.

    CollNet needs a SHARP plugin that ncclt cannot see, so it is never proposed. PAT runs with one rank per node
    only; NVLS needs NVSwitch and compute capability 90; NVLS for all_gather and reduce_scatter, and for several
    nodes, needs more than we can know, so there only NVLS_TREE for all_reduce is proposed.
    """
    available = []
    for algorithm in LEGAL[collective]:
        if cluster.version < ALGORITHM_SINCE[algorithm]:
            continue
        nvls_here = cluster.link_class == "nvswitch" and cluster.compute_capability >= 90
        match algorithm:
            case Algorithm.COLLNET_DIRECT | Algorithm.COLLNET_CHAIN:
                continue
            case Algorithm.NVLS if not (nvls_here and cluster.nodes == 1):
                continue
            case Algorithm.NVLS_TREE if not (nvls_here and cluster.nodes > 1):
                continue
            case Algorithm.PAT if not (cluster.gpus_per_node == 1 and cluster.nodes > 1):
                continue
        available.append(algorithm)
    return tuple(available)


def available_protocols(collective: Collective, algorithm: Algorithm, cluster: Cluster) -> tuple[Protocol, ...]:
    """Return the protocols that may be chosen with an algorithm on a cluster; LL128 only where NCCL enables it."""
    legal = LEGAL[collective].get(algorithm, frozenset())
    ll128 = ll128_is_automatic(cluster)
    return tuple(p for p in Protocol if p in legal and (p is not Protocol.LL128 or ll128))


def choices(collectives: Iterable[Collective], cluster: Cluster) -> tuple[tuple[Algorithm, Protocol], ...]:
    """Return every (algorithm, protocol) that may be chosen for at least one of the collectives."""
    pairs: dict[tuple[Algorithm, Protocol], None] = {}
    for collective in sorted(collectives):
        for algorithm in available_algorithms(collective, cluster):
            for protocol in available_protocols(collective, algorithm, cluster):
                pairs[algorithm, protocol] = None
    return tuple(pairs)
