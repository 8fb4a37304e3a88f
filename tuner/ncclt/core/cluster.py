"""Cluster record and the fingerprint of a recommendation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import InputError, UsageError

LINK_CLASSES = ("nvswitch", "nvlink", "pcie", "shm")
"""Links between the GPUs of one node: NVSwitch, direct NVLink, PCIe peer to peer, staged through the host."""

FABRICS = ("none", "infiniband", "roce", "efa", "slingshot", "ethernet")
"""Networks between the nodes; `ethernet` = TCP sockets."""

NO_GPU = "CPUs (gloo)"
"""In the place of the GPU where gloo ran instead of NCCL: its times say nothing about NCCL."""

MOST_NODES = 1_000_000
"""Nodes of a job, and GPUs of a node, at most; a larger number is a typing error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Documented):
    """One kind of node and how many there are.

    Attributes:
        name: short name, as in `--cluster NAME`.
        nodes: nodes used without `--nodes`.
        gpus_per_node: GPUs of one node.
        gpu: model name, for example `A100-SXM4-80GB`.
        compute_capability: 80 for A100, 90 for H100, 89 for L40S, ...
        link_class: one of nvswitch, nvlink, pcie, shm.
        link_gbps: bandwidth out of one GPU towards its peers in the node, 1e9 bytes/s, one direction.
        fabric: one of none, infiniband, roce, efa, slingshot, ethernet.
        nics_per_node: network ports of one node.
        nic_gbps: bandwidth of one port, 1e9 bytes/s (HDR100 = 12.5).
        gpudirect: whether NICs read GPU memory directly.
        cpu: `intel`, `amd` or `arm`; NCCL's cost model distinguishes AMD.
        nccl_version: version installed there, `2.28.9`.
        topology_hash: hash of the topology, empty where it was not examined.
        driver: NVIDIA driver, `570.86.15`; empty = unknown.
        description: one sentence.
        sources: references for the figures.
        site_variables: NCCL_* variables of the site that trials had, name -> value; empty = none, or nothing was
            launched.
    """

    SHAPE: ClassVar = Shape(
        name="a cluster file",
        hint="see `ncclt cluster show leonardo --toml`",
        schema=1,
        bare=True,
        closed=True,
        omitted=("driver", "site_variables"),
        retired=("gpu_path", "calibration"),
        pairs=("site_variables",),
    )

    name: str
    nodes: int = 1
    gpus_per_node: int
    gpu: str
    compute_capability: int
    link_class: str
    link_gbps: float
    fabric: str = "none"
    nics_per_node: int = 0
    nic_gbps: float = 0.0
    gpudirect: bool = False
    cpu: str = "intel"
    nccl_version: str
    topology_hash: str = ""
    driver: str = ""
    description: str = ""
    sources: tuple[str, ...] = ()
    site_variables: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        NcclVersion.parse(self.nccl_version)
        if not (1 <= self.nodes <= MOST_NODES and 1 <= self.gpus_per_node <= MOST_NODES):
            raise UsageError(f"cluster {self.name!r} needs 1 to {MOST_NODES:,} nodes, and GPUs per node")
        if self.link_class not in LINK_CLASSES:
            raise InputError(f"unknown link class {self.link_class!r}", hint=f"one of {', '.join(LINK_CLASSES)}")
        if self.fabric not in FABRICS:
            raise InputError(f"unknown fabric {self.fabric!r}", hint=f"one of {', '.join(FABRICS)}")
        if self.link_gbps <= 0:
            raise InputError(f"cluster {self.name!r} needs link_gbps above 0")
        if self.nodes > 1 and (self.fabric == "none" or self.nics_per_node < 1 or self.nic_gbps <= 0):
            raise InputError(
                f"cluster {self.name!r} has {self.nodes} nodes and no network",
                hint="give fabric, nics_per_node and nic_gbps, or use 1 node",
            )

    @property
    def version(self) -> NcclVersion:
        """Return the NCCL version, parsed."""
        return NcclVersion.parse(self.nccl_version)

    @property
    def world_size(self) -> int:
        """Return nodes x gpus_per_node."""
        return self.nodes * self.gpus_per_node

    @property
    def recorded_label(self) -> str:
        """Return the mark of results that were recorded here: system and source."""
        return ", ".join((f"recorded: {self.description or self.name}", *self.sources[:1]))

    def sized(
        self, *, nodes: int | None = None, gpus_per_node: int | None = None, nccl_version: str | None = None
    ) -> Cluster:
        """Return the part of the cluster that a job uses.

        A job on part of a node has the network ports of its GPUs, rounded up, and over direct NVLinks only those
        between its GPUs.

        Raises:
            UsageError: fewer than 1 node or GPU, or several nodes where the cluster has no network.
        """
        if nodes is not None and not 1 <= nodes <= MOST_NODES:
            raise UsageError(f"--nodes must be 1 to {MOST_NODES:,}, not {nodes}")
        if gpus_per_node is not None and not 1 <= gpus_per_node <= self.gpus_per_node:
            raise UsageError(f"--gpus-per-node must be 1 to {self.gpus_per_node} on {self.name}, not {gpus_per_node}")
        gpus = self.gpus_per_node if gpus_per_node is None else gpus_per_node
        is_direct = self.link_class == "nvlink" and gpus > 1
        try:
            return replace(
                self,
                nodes=self.nodes if nodes is None else nodes,
                gpus_per_node=gpus,
                nics_per_node=-(-self.nics_per_node * gpus // self.gpus_per_node),
                link_gbps=self.link_gbps * (gpus - 1) / (self.gpus_per_node - 1) if is_direct else self.link_gbps,
                nccl_version=self.nccl_version if nccl_version is None else str(NcclVersion.parse(nccl_version)),
            )
        except InputError as error:
            raise UsageError(error.message, hint=error.hint) from error

    def as_recorded(
        self, *, nodes: int | None, gpus_per_node: int | None, nccl_version: str | None, why: str = ""
    ) -> Cluster:
        """Return this recorded cluster for a job of the shape that was recorded.

        Args:
            nodes, gpus_per_node, nccl_version: of the job; None = as recorded.
            why: this cluster is replayed; empty = it is a recorded one.

        Raises:
            UsageError: it was recorded with another number of nodes or GPUs, or another NCCL.
        """
        wanted = self.sized(nodes=nodes, gpus_per_node=gpus_per_node, nccl_version=nccl_version)
        for field in ("nodes", "gpus_per_node", "nccl_version"):
            if getattr(wanted, field) != getattr(self, field):
                option = f"--{field.replace('_', '-')}"
                raise UsageError(
                    f"{self.name} was recorded with {option} {getattr(self, field)}, not {getattr(wanted, field)} "
                    f"({why or f'{self.name} is a recorded cluster'})",
                    hint=f"leave {option} out, name another recorded cluster (`ncclt landscape show`), or simulate "
                    "one: --launcher simulate --cluster leonardo",
                )
        return self

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of a recommendation measured on this cluster."""
        shared = {field.name: getattr(self, field.name) for field in fields(Fingerprint)}
        fabric = self.fabric if self.nodes > 1 else "none"
        return Fingerprint(**shared | {"fabric": fabric, "nccl_version": str(self.version)})


PER_RANK = frozenset(
    f"NCCL_{name}"
    for name in (
        "SOCKET_IFNAME", "OOB_NET_IFNAME", "IB_HCA", "IB_GID_INDEX", "HOSTID", "DEBUG", "DEBUG_FILE", "DEBUG_SUBSYS",
        "TOPO_FILE", "TOPO_DUMP_FILE", "TOPO_DUMP_FILE_RANK", "GRAPH_DUMP_FILE", "GRAPH_DUMP_FILE_RANK", "RAS_ADDR",
        "MNNVL_CLIQUE_ID", "CONF_FILE",
    )
)  # fmt: skip
"""Variables that may differ between the ranks of a job."""


def hash_site(variables: Iterable[tuple[str, str]], *, equal_on_nodes: bool = False) -> str:
    """Return a short hash of the site's variables, for requests.

    Args:
        variables: as `ncclt.nccl.variables.site_variables` returns them, which masks those of plugins.
        equal_on_nodes: leave out those that may differ by node, so that nodes which decide for themselves send the
            same hash.
    """
    hashed = [
        (name, value)
        for name, value in sorted(variables)
        if not (equal_on_nodes and (name in PER_RANK or value.startswith("sha256:")))
    ]
    return hashlib.sha256(json.dumps(hashed).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint(Documented):
    """Conditions under which a recommendation is valid; it is not served under any other.

    Attributes:
        driver: NVIDIA driver of the measurement; empty = unknown. A launcher may not know it, so it is not part
            of a request; a check that finds another one makes the recommendation stale.
        site_variables: NCCL_* variables of the site that trials had, name -> value. A request may say their hash, and
            `ncclt run` compares them with the job's.
    """

    SHAPE: ClassVar = Shape(omitted=("driver", "site_variables"), pairs=("site_variables",))

    gpu: str
    link_class: str
    fabric: str
    nodes: int
    gpus_per_node: int
    nccl_version: str
    topology_hash: str = ""
    driver: str = ""
    site_variables: tuple[tuple[str, str], ...] = ()

    @property
    def version(self) -> NcclVersion:
        """Return the NCCL version, parsed."""
        return NcclVersion.parse(self.nccl_version)

    @property
    def world_size(self) -> int:
        """Return nodes x gpus_per_node."""
        return self.nodes * self.gpus_per_node

    @property
    def sites(self) -> frozenset[str]:
        """Return the hashes of the site's variables, of all and of those that are equal on all nodes of a job."""
        return frozenset(hash_site(self.site_variables, equal_on_nodes=equal) for equal in (False, True))

    def mismatches(self, fingerprint: Fingerprint) -> tuple[str, ...]:
        """Name every field in which `other` differs, but for the site's variables.

        An unknown topology or driver on either side matches any.
        """
        differences = []
        for field in fields(self):
            measured, asked = getattr(self, field.name), getattr(fingerprint, field.name)
            if field.name == "site_variables" or (
                field.name in ("topology_hash", "driver") and not (measured and asked)
            ):
                continue
            if measured != asked:
                differences.append(f"{field.name}: measured on {measured}, asked for {asked}")
        return tuple(differences)

    def digest(self) -> str:
        """Return a short hash of all fields but the driver: revisions count on across its updates."""
        left_out = {"driver"} if self.site_variables else {"driver", "site_variables"}
        hashed = {name: value for name, value in asdict(self).items() if name not in left_out}
        return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:12]
