"""Known issues of NCCL's releases, for the doctor and for the way from one release to another."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.gpu_report import GpuModel, gpu_model

_THREAD = re.compile(r"([\w.-]+/[\w.-]+)(?:#| pull request )(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """Known issue of some releases.

    Attributes:
        since: first release that has it, or that it was reported with.
        until: first release that does not; empty = none is known.
        what: happens, a sentence without its end.
        where: returns whether this set-up is affected.
        fix: what to do.
        source: where it is known from.
        is_relative: it is slower than releases before `since` and otherwise works, so only an upgrade names it.
    """

    since: str
    until: str = ""
    what: str
    where: Callable[[Facts], bool]
    fix: str
    source: str
    is_relative: bool = False

    def applies(self, facts: Facts) -> bool:
        """Return True if a set-up is affected."""
        version = facts.nccl
        if version is None or version < NcclVersion.parse(self.since):
            return False
        if self.until and version >= NcclVersion.parse(self.until):
            return False
        return self.where(facts)

    @property
    def link(self) -> str:
        """Return the address of the thread that reports it; empty where the source is none."""
        thread = _THREAD.search(self.source)
        # GitHub leads from /issues/ to a pull request of that number.
        return f"https://github.com/{thread[1]}/issues/{thread[2]}" if thread else ""

    def __str__(self) -> str:
        """Return the issue with its fix and its thread, as one sentence."""
        return f"{self.what}; {self.fix}: {self.link or self.source}"

    def to_document(self) -> dict[str, str | None]:
        """Return it as a JSON object."""
        return {"what": self.what, "fix": self.fix, "source": self.source, "link": self.link or None}


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
    """Return True if GPUs are connected by NVLink without a switch, as on nodes of four A100."""
    if facts.cluster and not facts.matrices:
        return facts.cluster.link_class == "nvlink" and facts.cluster.nics_per_node > 1
    best = max((model.nvlinks for model in _models(facts)), default=0)
    return any(
        matrix.nics and len(matrix.gpus) > 2 and any(0 < link.lanes < best for _, _, link in matrix.gpu_pairs())
        for matrix in facts.matrices
    )


def _hopper(facts: Facts) -> bool:
    return any(90 <= model.compute_capability < 100 for model in _models(facts))


def _profiler(facts: Facts) -> bool:
    plugin = facts.value("NCCL_PROFILER_PLUGIN")
    return plugin is not None and plugin.value not in ("", "none")


def _large_chunk(facts: Facts) -> bool:
    chunk = facts.value("NCCL_CHUNK_SIZE")
    return chunk is not None and chunk.value.isdecimal() and int(chunk.value) >= 1 << 20


KNOWN_ISSUES = (
    KnownIssue(
        since="2.25",
        until="2.29",
        where=lambda facts: _direct_nvlink(facts) and _several_nodes(facts),
        what="the search finds no balanced tree on nodes with direct NVLink and several NICs: all_reduce on two nodes "
        "fell from 50 to 7 GB/s",
        fix="use NCCL 2.22 or 2.29 and newer, and compare",
        source="NVIDIA/nccl#1876, NVIDIA/nccl-tests#352 (maintainers: introduced in 2.25.1, fixed in the release "
        "after 2.28)",
    ),
    KnownIssue(
        since="2.0",
        until="2.29.3",
        where=_arm,
        what="on Arm (Grace) the proxy loses slots and the job stops without an error",
        fix="use NCCL 2.29.3 or newer",
        source="NCCL 2.29.3 release notes; marin-community/marin#7344",
    ),
    KnownIssue(
        since="2.29.2",
        until="2.29.3",
        where=lambda _facts: True,
        what="it hangs where 2.28 did not",
        fix="use NCCL 2.29.3 or newer",
        source="pytorch/pytorch pull request 174338",
    ),
    KnownIssue(
        since="2.27",
        until="2.29",
        where=_nvlink_sharp,
        what="when NVLink SHARP resources run out on some ranks only, these silently do without and the job hangs",
        fix="use NCCL 2.29 or newer, or set NCCL_NVLS_ENABLE=0 if it hangs at the start",
        source="NCCL user guide, NCCL_NVLS_ENABLE",
    ),
    KnownIssue(
        since="2.17",
        until="2.18",
        where=_nvlink_sharp,
        what="NVLink SHARP hangs now and then",
        fix="use NCCL 2.18 or newer",
        source="NVIDIA/JAX-Toolbox pull request 331",
    ),
    KnownIssue(
        since="2.18",
        until="2.19.3",
        where=lambda facts: _nvlink_sharp(facts) and _several_nodes(facts),
        what="NVLSTree between nodes has been seen to give wrong results",
        fix="use NCCL 2.19.3 or newer, and check results with `-c 1`",
        source="NVIDIA/nccl-tests#167",
    ),
    KnownIssue(
        since="2.18.5",
        until="2.20",
        where=lambda facts: _nvlink_sharp(facts) and _several_nodes(facts),
        what="NVLS with dual-port NICs writes beyond its memory: crash or hang",
        fix="use NCCL 2.20 or newer",
        source="NVIDIA/nccl#1043",
    ),
    KnownIssue(
        since="2.19.4",
        until="2.20",
        where=lambda facts: bool(facts.cluster and facts.cluster.fabric == "efa"),
        what="it is slower on EFA than the releases around it",
        fix="use NCCL 2.20.3 or newer",
        source="awslabs/awsome-distributed-ai pull request 217",
    ),
    KnownIssue(
        since="2.0",
        until="2.25.1",
        where=lambda facts: any(100 <= model.compute_capability < 120 for model in _models(facts)),
        what="it does not know Blackwell: crashes on larger jobs",
        fix="use NCCL 2.25.1 or newer",
        source="NVIDIA/nccl#1611",
    ),
    KnownIssue(
        since="2.0",
        until="2.26.2",
        where=lambda facts: any(model.compute_capability >= 120 for model in _models(facts)),
        what="direct access between boards of this generation fails",
        fix="use NCCL 2.26.2 or newer",
        source="NVIDIA/nccl#1637, NVIDIA/nccl-tests#291",
    ),
    KnownIssue(
        since="2.0",
        until="2.11",
        where=lambda facts: any(matrix.has_nvlink for matrix in facts.matrices),
        what="data is corrupted when an NVLink is down",
        fix="use a newer NCCL, and check `nvidia-smi nvlink -s`",
        source="NVIDIA/nccl#596",
    ),
    KnownIssue(
        since="2.12",
        where=_large_chunk,
        what="send_recv and all_to_all give wrong data with NCCL_CHUNK_SIZE of 1 MiB and more, which is not clamped to "
        "the buffer (reported with 2.31.2)",
        fix="unset NCCL_CHUNK_SIZE",
        source="NVIDIA/nccl#2408, NVIDIA/nccl pull request 2410; src/proxy.cc of 2.12.12, src/enqueue.cc of 2.30.7",
    ),
    KnownIssue(
        since="2.31.2",
        where=_profiler,
        what="a profiler plugin with KernelCh events slows all_reduce of 128 KiB to 4 MiB by 4 to 13 %, and by 1 % at "
        "most with 2.29.7 (8 A100)",
        fix="measure without NCCL_PROFILER_PLUGIN, or without bit 64 of NCCL_PROFILE_EVENT_MASK",
        source="NVIDIA/nccl#2355, NVIDIA/nccl pull request 2357",
    ),
    KnownIssue(
        since="2.29.7",
        where=_hopper,
        is_relative=True,
        what="all_reduce of 1 to 32 KiB is slower than with 2.28 (reported for 8 H100)",
        fix="compare sizes up to 64 KiB on your nodes",
        source="NVIDIA/nccl#2094",
    ),
    KnownIssue(
        since="2.24",
        where=_hopper,
        is_relative=True,
        what="ring/simple all_reduce of float32 is slower than with 2.22, because its kernel spills to local memory "
        "(reported for 2 H200 with 2.24 and 2.29)",
        fix="compare large sizes on your nodes",
        source="NVIDIA/nccl#1997",
    ),
    KnownIssue(
        since="2.29.7",
        until="2.30.7",
        where=_hopper,
        is_relative=True,
        what="all_reduce, all_gather and reduce_scatter on symmetric memory are slower than with 2.29.2",
        fix="use NCCL 2.30.7 or newer, or leave symmetric memory off",
        source="NVIDIA/nccl#2058; ld.acquire.sys in ll_a2a__funcs.h of 2.29.7 to 2.30.4, not of 2.30.7",
    ),
    KnownIssue(
        since="2.29.3",
        until="2.30",
        where=_nvlink_sharp,
        is_relative=True,
        what="all_gather by copy engines does not overlap with the forward pass (Megatron FSDP with user buffers)",
        fix="use NCCL 2.30 or newer, or leave copy engines off",
        source="NVIDIA-NeMo/Megatron-Bridge#3391",
    ),
)
"""From release notes and statements of maintainers; rumours and retracted reports are not included."""


def find_upgrade_issues(before: Facts, after: Facts) -> tuple[KnownIssue, ...]:
    """Return the known issues of the newer side, without those of speed that the older one has too.

    Args:
        before, after: the same set-up with either release.
    """
    return tuple(
        issue for issue in KNOWN_ISSUES if issue.applies(after) and not (issue.is_relative and issue.applies(before))
    )
