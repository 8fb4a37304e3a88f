"""Starts one process for each rank through the mpirun of Open MPI, MPICH or Intel MPI.

Tested with Open MPI 4.1 and MPICH's Hydra on one machine; not tested on a GPU, nor with Intel MPI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any, Self, Unpack

from ncclt.errors import UsageError, reason
from ncclt.launch.argv import MPI_PROGRAMS
from ncclt.launch.hostfile import granted_hosts, parse_host
from ncclt.launch.launcher import MARK, NO_OPTIONS, PORT, JobShape, LaunchPlan, LaunchResult, ProcessOptions
from ncclt.launch.process.launcher import FORWARDED, ProcessLauncher, thread_variables
from ncclt.launch.process.process_tree import MARK_VARIABLE
from ncclt.launch.ranks import read_mpi_ending, wrap_rank_command

_VERSION_S = 20.0


class MpiFlavour(StrEnum):
    """The mpirun programs that ncclt can drive."""

    OPEN_MPI = "Open MPI"
    MPICH = "MPICH"
    """Includes every other MPI whose launcher is Hydra, such as MVAPICH."""
    INTEL_MPI = "Intel MPI"


_WORDS = (
    ("Intel(R) MPI Library", MpiFlavour.INTEL_MPI),
    ("HYDRA build details", MpiFlavour.MPICH),
    ("Open MPI", MpiFlavour.OPEN_MPI),
    ("OpenRTE", MpiFlavour.OPEN_MPI),
)
"""Words in the output of `--version`; Intel's is Hydra as well and therefore checked first."""


def mpi_flavour(version_output: str) -> MpiFlavour | None:
    """Return the MPI that prints this for `mpirun --version`; None = unknown."""
    return next((flavour for words, flavour in _WORDS if words in version_output), None)


def ask_mpi_flavour(program: str, *, environ: Mapping[str, str]) -> MpiFlavour:
    """Run a launcher with `--version` and return which MPI it belongs to.

    Raises:
        UsageError: it was not found, or is of an unknown MPI.
    """
    if shutil.which(program, path=environ.get("PATH")) is None:
        raise UsageError(
            f"{program} was not found", hint="load the MPI that nccl-tests was built with, or name its mpirun"
        )
    try:
        done = subprocess.run(
            [program, "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{program} --version does not work: {reason(error)}") from error
    flavour = mpi_flavour((done.stdout + done.stderr).decode(errors="replace"))
    if flavour is None:
        raise UsageError(
            f"{program} is not the launcher of a supported MPI",
            hint=f"supported: {', '.join(MpiFlavour)}; or use --launcher torchrun, slurm or ssh",
        )
    return flavour


_LIST = "mca_base_env_list"
_LIST_VARIABLE = f"OMPI_MCA_{_LIST}"
"""Lists what Open MPI forwards; it refuses to start where this is set and `-x` is given as well (seen with 4.1.4)."""

_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
"""Allow root, mostly in a container, to run Open MPI, which requires both."""


class MpirunLauncher(ProcessLauncher):
    """Starts ranks through mpirun.

    Args:
        flavour: MPI implementation of mpirun.
        program: name of or path to mpirun.
        as_root: this program runs as root.
        granted: nodes of the resource manager's job, in order; empty = unknown.
        process: without hosts in `shape` a resource manager (PBS, LSF) must give mpirun its nodes; `extra` are further
            options of mpirun.

    Raises:
        UsageError: a host is given with a user or a port, which mpirun would misread.
    """

    name = "mpirun"
    uses_allocation = True

    def __init__(
        self,
        *,
        flavour: MpiFlavour,
        program: str = "mpirun",
        as_root: bool = False,
        granted: Sequence[str] = (),
        **process: Unpack[ProcessOptions],
    ) -> None:
        super().__init__(**process)
        for host in map(parse_host, self.shape.hosts):
            if host.user or host.port:
                raise UsageError(
                    f"mpirun takes the bare names of hosts, not {host.label!r}",
                    hint="put user and port into ~/.ssh/config, which mpirun's ssh reads",
                )
        self._flavour = flavour
        self._program = program
        self._as_root = as_root
        self._granted = tuple(granted)

    @classmethod
    def create(
        cls,
        *,
        options: Mapping[str, Any] = NO_OPTIONS,
        program: str = "mpirun",
        **process: Unpack[ProcessOptions],
    ) -> Self:
        """Return the launcher for an mpirun of this machine, after finding out which MPI it belongs to.

        Raises:
            UsageError: it was not found, or is of an unknown MPI.
        """
        environ, shape = process.get("environment"), process.get("shape") or JobShape()
        environ = os.environ if environ is None else environ
        return cls(
            flavour=ask_mpi_flavour(program, environ=environ),
            program=program,
            as_root=os.geteuid() == 0,
            granted=granted_hosts(environ) if shape.nodes > 1 and not shape.hosts else (),
            **process,
        )

    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Decide how a command would be started; workers of torch get the address where they meet."""
        environment = self.environment
        # The first is where torch's ranks meet; it may not be known.
        hosts = self.shape.hosts or (("127.0.0.1",) if self.shape.nodes == 1 else self._granted)
        for_ranks = {
            **({"MASTER_ADDR": hosts[0], "MASTER_PORT": PORT} if hosts else {}),
            **thread_variables(environment, variables),
            **self.kept_variables(variables),
            **variables,
        }
        options = self._open_mpi(for_ranks) if self._flavour is MpiFlavour.OPEN_MPI else self._hydra(for_ranks)
        is_root_of_open_mpi = self._as_root and self._flavour is MpiFlavour.OPEN_MPI
        removed = set(self.removed_names(variables))
        if _LIST_VARIABLE in environment:
            removed.add(_LIST_VARIABLE)
        return LaunchPlan(
            argv=(self._program, *options, *self.extra, *wrap_rank_command(argv, for_ranks)),
            set_env=tuple((name, "1") for name in _AS_ROOT) if is_root_of_open_mpi else (),
            unset_env=tuple(sorted(removed)),
            timeout_s=timeout_s,
        )

    def read_ending(self, result: LaunchResult) -> LaunchResult:
        """Return the result of a launch that failed, with the exit code of the rank that failed first."""
        return read_mpi_ending(result)

    def _open_mpi(self, for_ranks: Mapping[str, str]) -> Iterable[str]:
        """Return the options of Open MPI.

        It counts a machine's cores as slots, which says nothing about GPUs, so more ranks than slots are allowed. Ranks
        are not bound to cores: NCCL binds its threads to what is near their GPU.
        """
        ppn = self.shape.processes_per_node
        yield from ("-np", str(self.shape.world_size))
        yield from ("--map-by", f"ppr:{ppn}:node:oversubscribe")
        yield from ("--bind-to", "none")
        if self.shape.hosts:
            yield from ("--host", ",".join(f"{host}:{ppn}" for host in self.shape.hosts))
        # Open MPI forwards no variable to other machines unless it is named by -x.
        listed = [entry.strip() for entry in self.environment.get(_LIST_VARIABLE, "").split(";")]
        wished = [entry for entry in listed if entry and not entry.startswith("NCCL_")]
        loading = [name for name in FORWARDED if name in self.environment]
        unchanged = [entry for entry in dict.fromkeys(loading + wished) if entry.partition("=")[0] not in for_ranks]
        for name in (MARK_VARIABLE, *unchanged):
            yield from ("-x", name)
        for name, value in sorted(for_ranks.items()):
            yield from ("-x", f"{name}={value}")

    def _hydra(self, for_ranks: Mapping[str, str]) -> Iterable[str]:
        """Return the options of Hydra, which forwards the whole environment anyway."""
        yield from ("-n", str(self.shape.world_size))
        yield from ("-ppn", str(self.shape.processes_per_node))
        if self.shape.hosts:
            yield from ("-hosts", ",".join(self.shape.hosts))
        if self._flavour is MpiFlavour.INTEL_MPI:
            yield from ("-genv", "I_MPI_PIN", "0")
        else:
            yield from ("-bind-to", "none")
        yield from ("-genv", MARK_VARIABLE, MARK)
        for name, value in sorted(for_ranks.items()):
            yield from ("-genv", name, value)


def is_open_mpi(program: str, *, environ: Mapping[str, str]) -> bool:
    """Return True if a program is Open MPI's launcher, from its `--version`; other launchers share its names."""
    if PurePath(program).name not in MPI_PROGRAMS:
        return False
    try:
        return ask_mpi_flavour(program, environ=environ) is MpiFlavour.OPEN_MPI
    except UsageError:
        return False  # whether it starts at all is seen when the command does


def forward_variables(
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
