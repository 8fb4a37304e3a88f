"""Known issues of NCCL's releases, for the doctor and for the way from one release to another."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import read_table
from ncclt.health.doctor.gpu_report import GpuModel, gpu_model

_THREAD = re.compile(r"([\w.-]+/[\w.-]+)(?:#| pull request )(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """Known issue of some releases, as in known_issues.toml.

    Attributes:
        since: first release that has it, or that it was reported with.
        until: first release that does not; empty = none is known.
        what: happens, a sentence without its end.
        where: names of conditions of the set-up that are all met where it occurs.
        fix: what to do.
        source: where it is known from.
        is_relative: it is slower than releases before `since` and otherwise works, so only an upgrade names it.
    """

    since: str
    until: str = ""
    what: str
    where: tuple[str, ...]
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
        return all(CONDITIONS[name](facts) for name in self.where)

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
    cpu = facts.log.cpu or facts.cpu or (facts.cluster.cpu if facts.cluster else "")
    return cpu == "arm" or any(model.arm for model in _models(facts))


def _direct_nvlink(facts: Facts) -> bool:
    """Return True if GPUs are connected by NVLink without a switch, as on nodes of four A100."""
    if facts.cluster and not facts.matrices:
        return facts.cluster.link_class == "nvlink" and facts.cluster.nics_per_node > 1
    best = max((model.nvlinks for model in _models(facts)), default=0)
    return any(
        matrix.nics and len(matrix.gpus) > 2 and any(0 < link.lanes < best for _, _, link in matrix.gpu_pairs())
        for matrix in facts.matrices
    )


def _profiler(facts: Facts) -> bool:
    plugin = facts.value("NCCL_PROFILER_PLUGIN")
    return plugin is not None and plugin.value not in ("", "none")


def _large_chunk(facts: Facts) -> bool:
    chunk = facts.value("NCCL_CHUNK_SIZE")
    return chunk is not None and chunk.value.isdecimal() and int(chunk.value) >= 1 << 20


def _has_capability(facts: Facts, least: int, below: int) -> bool:
    return any(least <= model.compute_capability < below for model in _models(facts))


CONDITIONS: dict[str, Callable[[Facts], bool]] = {
    "several_nodes": _several_nodes,
    "direct_nvlink": _direct_nvlink,
    "arm": _arm,
    "nvlink": lambda facts: any(matrix.has_nvlink for matrix in facts.matrices),
    "nvlink_sharp": lambda facts: any(m.compute_capability >= 90 and m.nvlinks for m in _models(facts)),
    "hopper": lambda facts: _has_capability(facts, 90, 100),
    "blackwell": lambda facts: _has_capability(facts, 100, 120),
    "blackwell_workstation": lambda facts: _has_capability(facts, 120, 200),
    "efa": lambda facts: bool(facts.cluster and facts.cluster.fabric == "efa"),
    "profiler": _profiler,
    "large_chunk": _large_chunk,
}
"""Name in known_issues.toml -> the condition of a set-up."""

KNOWN_ISSUES = tuple(
    KnownIssue(**{**issue, "where": tuple(issue["where"])}) for issue in read_table("known_issues.toml")["issue"]
)


def find_upgrade_issues(before: Facts, after: Facts) -> tuple[KnownIssue, ...]:
    """Return the known issues of the newer side, without those of speed that the older one has too.

    Args:
        before, after: the same set-up with either release.
    """
    return tuple(
        issue for issue in KNOWN_ISSUES if issue.applies(after) and not (issue.is_relative and issue.applies(before))
    )
