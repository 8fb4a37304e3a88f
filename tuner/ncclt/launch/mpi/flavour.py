"""Which MPI a program called mpirun belongs to: they share their names and no options."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from enum import StrEnum

from ncclt.errors import UsageError, reason

_VERSION_S = 20.0


class MpiFlavour(StrEnum):
    """The launchers that ncclt can talk to."""

    OPEN_MPI = "Open MPI"
    MPICH = "MPICH"
    """And every other MPI whose launcher is Hydra, such as MVAPICH."""
    INTEL_MPI = "Intel MPI"


_WORDS = (
    ("Intel(R) MPI Library", MpiFlavour.INTEL_MPI),
    ("HYDRA build details", MpiFlavour.MPICH),
    ("Open MPI", MpiFlavour.OPEN_MPI),
    ("OpenRTE", MpiFlavour.OPEN_MPI),
)
"""What `--version` prints; Intel's is Hydra as well and asked for first."""


def mpi_flavour(version_output: str) -> MpiFlavour | None:
    """Return whose launcher prints this for `--version`; None = nobody's that is known."""
    return next((flavour for words, flavour in _WORDS if words in version_output), None)


def ask_mpi_flavour(program: str, *, environ: Mapping[str, str]) -> MpiFlavour:
    """Ask a launcher for its version.

    Raises:
        UsageError: it is not there, or it is none that is known.
    """
    if shutil.which(program, path=environ.get("PATH")) is None:
        raise UsageError(
            f"{program} is not here", hint="load the MPI that nccl-tests was built with, or name its mpirun"
        )
    try:
        told = subprocess.run(
            [program, "--version"], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_VERSION_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{program} --version does not work: {reason(error)}") from error
    flavour = mpi_flavour((told.stdout + told.stderr).decode(errors="replace"))
    if flavour is None:
        raise UsageError(
            f"{program} is the launcher of no MPI that ncclt knows",
            hint=f"known are {', '.join(MpiFlavour)}; or use --launcher torchrun, slurm or ssh",
        )
    return flavour
