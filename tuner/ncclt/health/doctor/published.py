"""NCCL variables that vendors have published for their machines, to compare a job with."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import read_table
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


_MACHINES: dict[str, Callable[[Facts], bool]] = {
    "has_fastrak": _has_fastrak,
    "is_azure_h100": _is_azure_h100,
    "is_coreweave_infiniband": _is_coreweave_infiniband,
    "is_arm_on_slingshot": _is_arm_on_slingshot,
}
"""Name in published.toml -> the facts show this machine."""

PUBLISHED = tuple(
    PublishedSettings(**{**settings, "is_here": _MACHINES[settings["is_here"]]})
    for settings in read_table("published.toml")["settings"]
)
"""Network, GPU and CPU are those of the machine; another machine may have the same."""


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
    values: dict[str, list[str]] = defaultdict(list)
    rows = tuple(settings)
    read = {row.name for row in rows if row.processes}
    for row in rows:
        if row.processes or row.name not in read:
            values[row.name].append(row.value)
    comparisons = []
    for published in PUBLISHED:
        if not published.is_here(facts):
            continue
        equal = [
            name
            for name, value in published.values.items()
            if values[name] and {text.lower() for text in values[name]} <= {*value.lower().split("|")}
        ]
        different = [
            (name, value.partition("|")[0], " and ".join(values[name]))
            for name, value in published.values.items()
            if name not in equal
        ]
        comparisons.append(
            PublishedComparison(
                machine=published.machine, source=published.source, same=tuple(equal), different=tuple(different)
            )
        )
    return tuple(comparisons)
