"""Launchers: each plans a launch and then performs it.

A launcher is a class that keeps the contract of `ncclt.launch.launcher.Launcher`. The built-in ones are in `LAUNCHERS`;
others are found under the entry-point group `ncclt.launchers`. A module is imported on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclt.errors import NotFoundError

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


def launcher_classes() -> dict[str, str]:
    """Return every installed launcher, name -> class; a third party cannot replace a built-in one."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group="ncclt.launchers")} | LAUNCHERS


def launcher_class(name: str) -> type[Launcher]:
    """Import the class of a launcher.

    Raises:
        NotFoundError: no launcher has that name.
    """
    from importlib import import_module

    classes = LAUNCHERS if name in LAUNCHERS else launcher_classes()
    if name not in classes:
        raise NotFoundError(f"unknown launcher {name!r}", hint=f"known are {', '.join(sorted(classes))}")
    module, _, attribute = classes[name].partition(":")
    found: type[Launcher] = getattr(import_module(module), attribute)
    return found
