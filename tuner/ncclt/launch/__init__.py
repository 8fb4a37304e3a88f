"""Where it runs: a launcher plans a launch and then performs it.

A launcher is one module with a function `create(**options) -> Launcher`. Ours stand in `LAUNCHERS`; others are found
under the entry-point group `ncclt.launchers`, whose value is such a module. Nothing is imported before it is asked
for.
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
"""Our launchers: name -> module."""


def launcher_modules() -> dict[str, str]:
    """Return every launcher that is installed, name -> module; a third party cannot replace one of ours."""
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
