"""Releases of NCCL with known trouble, and where it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.gpu_models import GpuModel, gpu_model
from ncclt.health.doctor.link import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTrouble:
    """What is wrong with some releases.

    Attributes:
        since: first release that has it.
        until: first release that does not.
        what: happens, a sentence without its end.
        where: returns whether this set-up is affected.
        fix: what to do.
        source: where it is known from.
    """

    since: str
    until: str
    what: str
    where: Callable[[Facts], bool]
    fix: str
    source: str

    def applies(self, facts: Facts) -> bool:
        """Return whether a set-up is affected."""
        version = facts.nccl
        if version is None or not NcclVersion.parse(self.since) <= version < NcclVersion.parse(self.until):
            return False
        return self.where(facts)


def _models(facts: Facts) -> list[GpuModel]:
    names = [*facts.gpu_models, *([facts.cluster.gpu] if facts.cluster else [])]
    return [model for name in names if (model := gpu_model(name))]


def _several_nodes(facts: Facts) -> bool:
    logged = [start.nodes for start in facts.log.starts if start.nodes]
    return max(logged) > 1 if logged else facts.cluster is None or facts.cluster.nodes > 1


def _arm(facts: Facts) -> bool:
    known = facts.log.cpu or facts.cpu or (facts.cluster.cpu if facts.cluster else "")
    return known == "arm" or any(model.arm for model in _models(facts))


def _nvlink_sharp(facts: Facts) -> bool:
    return any(model.compute_capability >= 90 and model.nvlinks for model in _models(facts))


def _direct_nvlink(facts: Facts) -> bool:
    """Return whether GPUs are joined by NVLink without a switch, as on nodes of four A100."""
    if facts.cluster and not facts.matrices:
        return facts.cluster.link_class == "nvlink" and facts.cluster.nics_per_node > 1
    best = max((model.nvlinks for model in _models(facts)), default=0)
    return any(
        matrix.nics and len(matrix.gpus) > 2 and any(0 < link.lanes < best for _, _, link in matrix.gpu_pairs())
        for matrix in facts.matrices
    )


def _blackwell_board(facts: Facts) -> bool:
    return any(model.compute_capability >= 120 for model in _models(facts))


def _blackwell(facts: Facts) -> bool:
    return any(100 <= model.compute_capability < 120 for model in _models(facts))


def _nvlink(facts: Facts) -> bool:
    return any(link.path is Path.NVLINK for matrix in facts.matrices for _, _, link in matrix.gpu_pairs())


KNOWN_TROUBLES = (
    KnownTrouble(
        since="2.25",
        until="2.29",
        where=lambda facts: _direct_nvlink(facts) and _several_nodes(facts),
        what="the search finds no balanced tree on nodes with direct NVLink and several NICs: all_reduce on two nodes "
        "fell from 50 to 7 GB/s",
        fix="use NCCL 2.22 or 2.29 and newer, and compare",
        source="NVIDIA/nccl#1876, NVIDIA/nccl-tests#352 (maintainers: introduced in 2.25.1, fixed in the release "
        "after 2.28)",
    ),
    KnownTrouble(
        since="2.0",
        until="2.29.3",
        where=_arm,
        what="on Arm (Grace) the proxy loses slots and the job stops without an error",
        fix="use NCCL 2.29.3 or newer",
        source="NCCL 2.29.3 release notes; marin-community/marin#7344",
    ),
    KnownTrouble(
        since="2.29.2",
        until="2.29.3",
        where=lambda _facts: True,
        what="it hangs where 2.28 did not",
        fix="use NCCL 2.29.3 or newer",
        source="pytorch/pytorch pull request 174338",
    ),
    KnownTrouble(
        since="2.27",
        until="2.29",
        where=_nvlink_sharp,
        what="when NVLink SHARP resources run out on some ranks only, these silently do without and the job hangs",
        fix="use NCCL 2.29 or newer, or set NCCL_NVLS_ENABLE=0 if it hangs at the start",
        source="NCCL user guide, NCCL_NVLS_ENABLE",
    ),
    KnownTrouble(
        since="2.17",
        until="2.18",
        where=_nvlink_sharp,
        what="NVLink SHARP hangs now and then",
        fix="use NCCL 2.18 or newer",
        source="NVIDIA/JAX-Toolbox pull request 331",
    ),
    KnownTrouble(
        since="2.18",
        until="2.19.3",
        where=lambda facts: _nvlink_sharp(facts) and _several_nodes(facts),
        what="NVLSTree between nodes has been seen to give wrong results",
        fix="use NCCL 2.19.3 or newer, and check results with `-c 1`",
        source="NVIDIA/nccl-tests#167",
    ),
    KnownTrouble(
        since="2.18.5",
        until="2.20",
        where=lambda facts: _nvlink_sharp(facts) and _several_nodes(facts),
        what="NVLS with dual-port NICs writes beyond its memory: crash or hang",
        fix="use NCCL 2.20 or newer",
        source="NVIDIA/nccl#1043",
    ),
    KnownTrouble(
        since="2.19.4",
        until="2.20",
        where=lambda facts: bool(facts.cluster and facts.cluster.fabric == "efa"),
        what="it is slower on EFA than the releases around it",
        fix="use NCCL 2.20.3 or newer",
        source="awslabs/awsome-distributed-ai pull request 217",
    ),
    KnownTrouble(
        since="2.0",
        until="2.25.1",
        where=_blackwell,
        what="it does not know Blackwell: crashes on larger jobs",
        fix="use NCCL 2.25.1 or newer",
        source="NVIDIA/nccl#1611",
    ),
    KnownTrouble(
        since="2.0",
        until="2.26.2",
        where=_blackwell_board,
        what="direct access between boards of this generation fails",
        fix="use NCCL 2.26.2 or newer",
        source="NVIDIA/nccl#1637, NVIDIA/nccl-tests#291",
    ),
    KnownTrouble(
        since="2.0",
        until="2.11",
        where=_nvlink,
        what="data is corrupted when an NVLink is down",
        fix="use a newer NCCL, and check `nvidia-smi nvlink -s`",
        source="NVIDIA/nccl#596",
    ),
)
"""From release notes and statements of maintainers; rumours and retracted reports are not included."""
