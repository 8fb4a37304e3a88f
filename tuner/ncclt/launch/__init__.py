"""Where it runs: a launcher plans a launch and then performs it.

A launcher is one module with a function `create(**options) -> Launcher`. The built-in ones are in `LAUNCHERS`; others
are found under the entry-point group `ncclt.launchers`, whose value is such a module. A module is imported on demand.
"""

from __future__ import annotations

from types import ModuleType

from ncclt.errors import NotFoundError

LAUNCHERS: dict[str, str] = {
    "local": "ncclt.launch.local",
    "torchrun": "ncclt.launch.torchrun",
    "mpirun": "ncclt.launch.mpi",
    "ssh": "ncclt.launch.ssh.launcher",
    "kubernetes": "ncclt.launch.kubernetes.launcher",
    "slurm": "ncclt.launch.slurm.launcher",
}
"""The built-in launchers: name -> module."""


def launcher_modules() -> dict[str, str]:
    """Return every installed launcher, name -> module; a third party cannot replace a built-in one."""
    from importlib.metadata import entry_points

    return {point.name: point.module for point in entry_points(group="ncclt.launchers")} | LAUNCHERS


def launcher_module(name: str) -> ModuleType:
    """Import the module of a launcher.

    Raises:
        NotFoundError: no launcher has that name.
    """
    from importlib import import_module

    modules = launcher_modules()
    if name not in modules:
        raise NotFoundError(f"unknown launcher {name!r}", hint=f"known are {', '.join(sorted(modules))}")
    return import_module(modules[name])
