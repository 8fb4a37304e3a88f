"""The nodes that a resource manager has granted to this program: Slurm, PBS, LSF and Grid Engine say so in variables.

Sources: Altair PBS Professional and OpenPBS users' guide (PBS_NODEFILE), IBM Spectrum LSF reference (LSB_DJOB_HOSTFILE,
LSB_MCPU_HOSTS), Grid Engine `submit(1)` (PE_HOSTFILE). Not tried under PBS, LSF or Grid Engine themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ncclt.errors import InputError, reason
from ncclt.launch.slurm.allocation import allocation_of

_LISTS = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")
"""Name files whose lines begin with a host; one that gives several slots may stand there several times."""


def granted_hosts(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the granted nodes, each once, in the manager's order; empty = nobody granted any.

    Args:
        environment: of this program, as the job's script has it.

    Raises:
        InputError: the manager's list cannot be read.
        UsageError: Slurm's variables contradict each other.
    """
    if (allocation := allocation_of(environment)) is not None:
        return allocation.hosts
    for variable in _LISTS:
        if path := environment.get(variable):
            return tuple(dict.fromkeys(_first_words(path, variable)))
    # Host and number of slots in turn; LSF leaves it out where the list would be too long for a variable.
    return tuple(dict.fromkeys(environment.get("LSB_MCPU_HOSTS", "").split()[::2]))


def _first_words(path: str, variable: str) -> Iterable[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {path}, the list of nodes that {variable} names: {reason(error)}",
            hint="name the nodes by --hosts, or run this on the first node of the job",
        ) from error
    return (line.split()[0] for line in lines if line.split())
