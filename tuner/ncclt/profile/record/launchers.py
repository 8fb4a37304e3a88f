"""How variables get from the command to its ranks.

torchrun, srun (unless `--export` says otherwise) and MPI launchers built on Hydra (MPICH, Intel MPI) hand their whole
environment on. Open MPI does so on its own host alone; on others it sets what `-x` names, and it refuses to start with
both `-x` and the parameter `mca_base_env_list` (seen with 4.1.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from ncclt.errors import UsageError
from ncclt.launch.mpi import MpiFlavour, ask_mpi_flavour

_MPI_LAUNCHERS = frozenset({"mpirun", "mpiexec", "orterun", "prterun"})

_LIST = "mca_base_env_list"
_LIST_VARIABLE = f"OMPI_MCA_{_LIST}"


def is_open_mpi(program: str, *, environ: Mapping[str, str]) -> bool:
    """Return whether a program is Open MPI's launcher, from its `--version`; other launchers share its names."""
    if PurePath(program).name not in _MPI_LAUNCHERS:
        return False
    try:
        return ask_mpi_flavour(program, environ=environ) is MpiFlavour.OPEN_MPI
    except UsageError:
        return False  # whether it starts at all is seen when the command does


def forwarded(
    argv: tuple[str, ...], names: Sequence[str], *, environ: Mapping[str, str], open_mpi: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command with the options that forward some variables, and the variables that these options need.

    Args:
        argv: the command.
        names: variables that must reach the ranks.
        environ: the environment of the command.
        open_mpi: the command is Open MPI's launcher.
    """
    if not open_mpi:
        return argv, {}
    if _LIST in argv[:-1]:
        place = argv.index(_LIST) + 1
        return (*argv[:place], ";".join((argv[place], *names)), *argv[place + 1 :]), {}
    if environ.get(_LIST_VARIABLE):
        return argv, {_LIST_VARIABLE: ";".join((environ[_LIST_VARIABLE], *names))}
    options = [word for name in names for word in ("-x", name)]
    words = [argv[0], *options]
    for word in argv[1:]:
        # Open MPI takes every lone colon for the beginning of another program with options of its own.
        words += [word, *options] if word == ":" else [word]
    return tuple(words), {}
