"""Command lines of launchers: their programs, and the options between a launcher and what it starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

MPI_PROGRAMS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
"""Names of the launchers of Open MPI, MPICH and Intel MPI; `mpi.ask_mpi_flavour` tells whose a program is."""

TORCHRUN_PROGRAMS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})

NODE_LAUNCHERS = TORCHRUN_PROGRAMS | {"accelerate"}
"""Commands that run on every node and only start its own processes."""

MANY_NODES_LAUNCHERS = frozenset(
    MPI_PROGRAMS
    | {"srun", "prun", "flux", "jsrun", "lrun", "aprun", "palsrun"}
    | {"ssh", "pdsh", "clush", "kubectl", "deepspeed", "horovodrun"}
)
"""Commands that start the processes of all nodes from one node."""

_PROGRAMS = re.compile(r".*/.*|python[0-9.]*|(?:ba|da|z)?sh|.*\.(?:py|sh)|\w+_perf(?:_mpi)?")
_TWO_VALUES = frozenset({"--mca", "-mca", "--gmca", "--prtemca", "--pmixmca", "-genv", "-env"})
_ONE_VALUE = frozenset(
    {"-x", "--hostfile", "-hostfile", "--default-hostfile", "--machinefile", "-machinefile", "-f", "--rankfile"}
    | {"-rankfile", "--prefix", "-prefix", "--wdir", "-wdir", "--wd", "-wd", "--output-filename", "--tune"}  # mpirun
    | {"-D", "--chdir", "-o", "--output", "-e", "--error", "-i", "--input", "--task-prolog", "--task-epilog"}  # srun
    | {"--container-image", "--container-mounts", "--container-workdir"}  # pyxis
    | {"--log-dir", "--log_dir"}  # torchrun
)
"""Options whose value may look like a program, for example a path."""


def launcher_options(argv: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return a launcher and its options, without its program: the `-n 4` of `train.py -n 4` is not the launcher's."""
    start = next((at for at, word in enumerate(argv) if PurePath(word).name in names), None)
    if start is None:
        return []
    options = [argv[start]]
    values, are_certain = 0, False  # words that may still belong to the preceding option, and whether they must
    for word in argv[start + 1 :]:
        if word.startswith("-"):
            values = 0 if "=" in word else 2 if word in _TWO_VALUES else 1
            are_certain = word in _TWO_VALUES | _ONE_VALUE
        elif values and (are_certain or not _PROGRAMS.fullmatch(word)):
            values -= 1
        else:
            break
        options.append(word)
    return options


def option_value(words: Sequence[str], names: Sequence[str]) -> str:
    """Return the value of an option as `--name value`, `--name=value` or `-N2`; empty = it is not given."""
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else "".join(words[position + 1 : position + 2])
        if word[:2] in names and word[2:].isdecimal():
            return word[2:]
    return ""


def parse_count(text: str) -> int:
    """Return a count above 0; 0 if the text is not one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
