"""NCCL variables that vendors have published for their machines, to compare a job with; a difference is not an error.

A row has only values that its source states. For AWS EFA and GCP's gIB no page with values was found: a plugin and a
script on the machine set them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.settings import SetVariable

_H100_SXM = "H100 80GB HBM3"
"""Name of the SXM board in nvidia-smi; others are `H100 PCIe` and `H100 NVL`."""


def _has_fastrak(facts: Facts) -> bool:
    return any(process.network and process.network.value == "FasTrak" for process in facts.log.processes)


def _is_azure_h100(facts: Facts) -> bool:
    file = facts.value("NCCL_TOPO_FILE")
    is_azure = facts.vendor == "Microsoft Corporation" or (file is not None and "ndv5" in file.value)
    logged = (layer for process in facts.log.processes for layer in process.adapters.values())
    layers = {*logged, *(adapter.link_layer for adapter in facts.adapters)}
    return is_azure and _has_h100(facts) and not layers.isdisjoint({"IB", "InfiniBand"})


def _is_coreweave_infiniband(facts: Facts) -> bool:
    logged = (name for process in facts.log.processes for name in process.adapters)
    names = (*logged, *(adapter.name for adapter in facts.adapters))
    return _has_h100(facts) and any(re.fullmatch(r"ibp\d", name) for name in names)


def _has_h100(facts: Facts) -> bool:
    return any(_H100_SXM in model for model in facts.gpu_models)


def _is_arm_on_slingshot(facts: Facts) -> bool:
    has_slingshot = any(process.provider and process.provider.value == "cxi" for process in facts.log.processes)
    return has_slingshot and (facts.log.cpu or facts.cpu) == "arm"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSettings:
    """Settings for one kind of machine.

    Attributes:
        machine: that they are for.
        source: the page that states them.
        is_here: returns whether the facts show this machine.
        values: variable -> value; `|` is between values that the source takes for the same.
    """

    machine: str
    source: str
    is_here: Callable[[Facts], bool]
    values: dict[str, str]


PUBLISHED = (
    PublishedSettings(
        machine="GCP A3 Mega, GPUDirect-TCPXO",
        source="https://docs.nvidia.com/dgx-cloud/run-ai/1.2/appendix-gcp.html",
        is_here=_has_fastrak,
        values={
            "NCCL_ALGO": "Ring,Tree",
            "NCCL_BUFFSIZE": "8388608",
            "NCCL_CROSS_NIC": "0",
            "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
            "NCCL_FASTRAK_CTRL_DEV": "eth0",
            "NCCL_FASTRAK_ENABLE_CONTROL_CHANNEL": "0",
            "NCCL_FASTRAK_ENABLE_HOTPATH_LOGGING": "0",
            "NCCL_FASTRAK_IFNAME": "eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8",
            "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "/dev/aperture_devices",
            "NCCL_FASTRAK_NUM_FLOWS": "2",
            "NCCL_FASTRAK_PLUGIN_ACCEPT_TIMEOUT_MS": "600000",
            "NCCL_FASTRAK_USE_LLCM": "1",
            "NCCL_FASTRAK_USE_SNAP": "1",
            "NCCL_MIN_NCHANNELS": "4",
            "NCCL_NET_GDR_LEVEL": "PIX",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_P2P_NET_CHUNKSIZE": "524288",
            "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
        },
    ),
    PublishedSettings(
        machine="Azure ND H100 v5",
        source="https://github.com/Azure/azhpc-images/blob/master/customizations/ndv5.sh",
        is_here=_is_azure_h100,
        values={
            "NCCL_IB_PCI_RELAXED_ORDERING": "1",
            "NCCL_TOPO_FILE": "/opt/microsoft/ndv5/topo.xml|/opt/microsoft/ndv5-topo.xml",
        },
    ),
    PublishedSettings(
        machine="CoreWeave H100, InfiniBand",
        source="https://github.com/coreweave/nccl-tests/blob/master/slurm/nccl-test-distributed-h100-64-enroot.slurm",
        is_here=_is_coreweave_infiniband,
        values={"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "ibp", "NCCL_COLLNET_ENABLE": "0"},
    ),
    PublishedSettings(
        machine="Isambard-AI, GH200 on Slingshot",
        source="https://docs.isambard.ac.uk/user-documentation/guides/example-data/nccl/env_vars.sh",
        is_here=_is_arm_on_slingshot,
        values={
            "NCCL_NET": "AWS Libfabric",
            "NCCL_SOCKET_IFNAME": "hsn",
            "NCCL_NET_GDR_LEVEL": "PHB",
            "NCCL_CROSS_NIC": "1",
            "NCCL_MIN_NCHANNELS": "4",
            "NCCL_GDRCOPY_ENABLE": "1",
            "NCCL_NET_FORCE_FLUSH": "0",
        },
    ),
)
"""Read on 2026-11-27. Network, GPU and CPU are those of the machine; another machine may have the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedComparison(Documented):
    """Settings of a job next to the published ones.

    Attributes:
        machine, source: as published.
        same: variables with the published value.
        different: (variable, published value, value here; empty = not set, or not in the log).
    """

    SHAPE: ClassVar = Shape()

    machine: str
    source: str
    same: tuple[str, ...]
    different: tuple[tuple[str, str, str], ...]


def compare_with_published(facts: Facts, settings: Iterable[SetVariable]) -> tuple[PublishedComparison, ...]:
    """Return the comparison with each publication for a machine that the facts show.

    Values that NCCL has read take precedence over values that are only set.
    """
    here: dict[str, list[str]] = {}
    rows = tuple(settings)
    read = {row.name for row in rows if row.processes}
    for row in rows:
        if row.processes or row.name not in read:
            here.setdefault(row.name, []).append(row.value)
    found = []
    for published in PUBLISHED:
        if not published.is_here(facts):
            continue
        same, different = [], []
        for name, value in published.values.items():
            values = here.get(name, [])
            if values and all(one.lower() in value.lower().split("|") for one in values):
                same.append(name)
            else:
                different.append((name, value.partition("|")[0], " and ".join(values)))
        found.append(
            PublishedComparison(
                machine=published.machine, source=published.source, same=tuple(same), different=tuple(different)
            )
        )
    return tuple(found)
