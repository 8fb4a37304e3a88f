"""Launchers: each plans a launch and then performs it.

A launcher is a class that keeps the contract of `ncclt.launch.launcher.Launcher`. The built-in ones are in `LAUNCHERS`;
those of third parties are found under the entry-point group `ncclt.launchers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclt.class_table import ClassTable

if TYPE_CHECKING:
    from ncclt.launch.launcher import Launcher

LAUNCHERS: dict[str, str] = {
    "local": "ncclt.launch.local:LocalLauncher",
    "torchrun": "ncclt.launch.torchrun:TorchrunLauncher",
    "mpirun": "ncclt.launch.mpi:MpirunLauncher",
    "ssh": "ncclt.launch.ssh.launcher:SshLauncher",
    "kubernetes": "ncclt.launch.kubernetes.launcher:KubernetesLauncher",
    "slurm": "ncclt.launch.slurm.launcher:SlurmLauncher",
}
"""The built-in launchers: name -> class."""

_TABLE = ClassTable(kind="launcher", group="ncclt.launchers", built_in=LAUNCHERS)


def launcher_names() -> tuple[str, ...]:
    """Return the names of all launchers, the built-in ones first; none is imported."""
    return _TABLE.names()


def launcher_class(name: str) -> type[Launcher]:
    """Import the class of a launcher.

    Raises:
        UsageError: no launcher has this name.
        MissingDependencyError: a third party's launcher cannot be imported.
    """
    launcher: type[Launcher] = _TABLE.load(name)
    return launcher


def load_launchers() -> dict[str, type[Launcher]]:
    """Return the classes of all launchers by name; a third party's that cannot be imported is reported and skipped."""
    return {name: launcher_class(name) for name in LAUNCHERS} | dict(_TABLE.load_third_party())
