"""Which NVIDIA driver the nodes have on which something is measured: asked where it runs, not where it is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.cluster import Cluster
from ncclt.errors import UsageError
from ncclt.measure.launched_testbed import launcher_of
from ncclt.measure.runner import asking
from ncclt.measure.target import Target
from ncclt.nccl.driver_version import DRIVER_FILE, drivers_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """What the nodes said.

    Attributes:
        versions: each once, sorted; several = nodes differ; empty = not known.
        why_unknown: one sentence, empty where there are versions.
    """

    versions: tuple[str, ...] = ()
    why_unknown: str = ""

    @property
    def text(self) -> str:
        """Return them as they are kept: `570.86.15`, or with commas where nodes differ."""
        return ", ".join(self.versions)


def drivers_of_nodes(
    cluster: Cluster, target: Target, *, environ: Mapping[str, str], root: Path = Path("/")
) -> Drivers:
    """Ask every node for its driver; never fails if one of them does not answer.

    Args:
        cluster: sized to the job.
        target: resolved.
        environ: the process environment.
        root: of the file system of this machine, another one in tests.
    """
    if target.launcher_class.shares_files:
        path = root / DRIVER_FILE.lstrip("/")
        try:
            return _drivers(path.read_text(encoding="utf-8", errors="replace"), f"{path} is of an unknown form")
        except OSError as error:
            return Drivers(why_unknown=f"{path} cannot be read: {error.strerror}")
    if target.launcher_class.chooses_nodes:
        return Drivers(why_unknown=f"nodes are not asked under --launcher {target.launcher}")
    try:
        launcher = launcher_of(cluster, target, target.hosts[: cluster.nodes], environ=environ)
    except UsageError as error:
        return Drivers(why_unknown=error.message)
    answer = asking(launcher)(["cat", DRIVER_FILE])
    return _drivers(answer.stdout, f"no node showed {DRIVER_FILE}")


def _drivers(text: str, why_not: str) -> Drivers:
    found = drivers_in(text)
    return Drivers(versions=found, why_unknown="" if found else why_not)
