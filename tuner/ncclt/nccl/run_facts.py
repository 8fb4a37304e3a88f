"""Command lines and NCCL's lines in a text, and what they state about the run: ranks, variables, versions."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from pathlib import PurePath

from ncclt.launch.argv import MPI_PROGRAMS, TORCHRUN_PROGRAMS, launcher_options, option_value, parse_count

_PROGRAM = re.compile(r"\b([a-z]\w{1,40}_perf)(?:_mpi)?\b")
_ASSIGNED = re.compile(r"""(?<![A-Za-z0-9_])(NCCL_[A-Z0-9_]+)=("[^"]*"|'[^']*'|(?:(?!,[A-Za-z_]+=)[^\s"';])*)""")
_HYDRA = re.compile(r"-g?env (NCCL_[A-Z0-9_]+) (\S+)")  # MPICH, Intel MPI
_EXPORTED = re.compile(r"(?:\++ ?)?(?:export |declare -x )?(?=NCCL_[A-Z0-9_]+=)")  # scripts (set -x), `export`, `env`
_TRACED = re.compile(r"(?:\[[\d,]{1,20}\]<std\w{3}>:\s?|\d{1,6}: )?\++ (\S.*)")
"""Line of `set -x`, also with the rank that Open MPI or srun puts in front."""
_UNSET = re.compile(r"(?:\++ ?)?unset (NCCL_[A-Z0-9_]+)$")
_LOGGED_VARIABLE = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]+) set (?:by environment )?to (\S+?)\.?$")
_LOGGED_VERSION = re.compile(r"\bNCCL version (\d{1,2}\.\d{1,3}(?:\.\d{1,3})?)\b")  # with NCCL_DEBUG=VERSION or more

_WORLD_SIZE = re.compile(r"(?:^|[\s,({])(?:dist_|export )?(?:world_size|WORLD_SIZE)\s?[=:]\s?(\d{1,7})\b")

_MPI = MPI_PROGRAMS | {"horovodrun"}
_OF_ONE_NODE = TORCHRUN_PROGRAMS | {"deepspeed"}
_PROCESSES = ("-n", "-np", "--np", "--ntasks")
_NODES = ("-N", "--nodes", "--nnodes", "--num_nodes")
_PER_NODE = ("--ntasks-per-node", "--nproc-per-node", "--nproc_per_node", "--num_gpus")
_DECLARING = ("export", "declare", "typeset")
_SUBSTITUTED = re.compile(r"\$\([^()]*\)|`[^`]*`")
_GPUS, _THREADS = ("-g", "--ngpus"), ("-t", "--nthreads")
_LONGEST_COMMAND = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts that a text states about one run.

    Attributes:
        program: of nccl-tests, in the command line; None = there is none.
        ranks: of the command line, or a world size that is printed; 0 = neither is there.
        variables: NCCL_* variables, from the command line, from `export` lines before it, and from NCCL's lines; what
            is missing may have been set without a trace.
        is_ambiguous: there are several command lines, and they set different variables.
        nccl: the version that NCCL prints; empty = it prints none.
    """

    program: str | None = None
    ranks: int = 0
    variables: tuple[tuple[str, str], ...] = ()
    is_ambiguous: bool = False
    nccl: str = ""


class RunFactsReader:
    """Reads the lines of a text one after the other; `take` returns the facts about the run that starts there."""

    def __init__(self) -> None:
        self._program: str | None = None  # of the last command line
        self._ranks = 0
        self._assigned: list[dict[str, str]] = []  # by each command line of nccl-tests since the last run
        self._started: dict[str, str] = {}  # by another command line
        self._exported: dict[str, str] = {}  # by lines before the commands

    def read(self, line: str) -> None:
        """Take one line, stripped, with the lines that continue it."""
        if len(line) > _LONGEST_COMMAND:
            return
        if program := _PROGRAM.search(line):
            self._program, self._ranks = program[1], count_ranks(line)
            self._assigned.append(assignments(line))
        elif not self._program and (ranks := count_ranks(line)):
            self._ranks, self._started = ranks, assignments(line)
        elif _EXPORTED.match(line):
            self._exported |= assignments(line)
        elif unset := _UNSET.match(line):
            self._exported.pop(unset[1], None)

    def take(self) -> RunFacts:
        """Return the facts since the last run, and forget its command line."""
        last = self._assigned[-1] if self._assigned else self._started
        facts = RunFacts(
            program=self._program,
            ranks=self._ranks,
            variables=tuple((self._exported | last).items()),
            is_ambiguous=any(assigned != last for assigned in self._assigned),
        )
        self._program, self._ranks, self._assigned, self._started = None, 0, [], {}
        return facts


def read_run_facts(text: str) -> RunFacts:
    """Return the facts that a text without prefixes states about its only run."""
    reader = RunFactsReader()
    logged: dict[str, str] = {}
    nccl, world_size = "", 0
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if variable := logged_variable(stripped):
            logged |= (variable,)
        nccl = nccl or logged_version(stripped)
        if not world_size and (size := _WORLD_SIZE.search(stripped)):
            world_size = int(size[1])
        if not stripped.startswith("#"):
            reader.read(stripped)
    stated = reader.take()
    variables = tuple(sorted((dict(stated.variables) | logged).items()))
    return replace(stated, ranks=stated.ranks or world_size, variables=variables, nccl=nccl)


def logged_variable(line: str) -> tuple[str, str] | None:
    """Return name and value in a line of NCCL about its environment."""
    match = _LOGGED_VARIABLE.search(line) if "NCCL INFO NCCL_" in line else None
    return (match[1], match[2]) if match else None


def logged_version(line: str) -> str:
    """Return the version in a line of NCCL; empty = there is none."""
    match = _LOGGED_VERSION.search(line) if "NCCL version " in line else None
    return match[1] if match else ""


def count_ranks(command: str) -> int:
    """Return the ranks that a command line starts; 0 = it does not say.

    >>> count_ranks("mpirun -np 16 -N 8 -x NCCL_ALGO=Tree ./all_reduce_perf -b 1M -n 20 -g 1")
    16
    >>> count_ranks("srun -N 2 --ntasks-per-node=4 ./all_gather_perf -g 2")
    16
    >>> count_ranks("torchrun --nproc-per-node 8 train.py -n 3"), count_ranks("./all_reduce_perf -n 20")
    (8, 0)
    """
    words = _SUBSTITUTED.sub("", command).split()
    if ":" in words:  # several programs
        return 0
    outer, inner = launcher_options(words, _MPI | {"srun"}), launcher_options(words, _OF_ONE_NODE)

    def count(of_launcher: list[str], names: tuple[str, ...]) -> int:
        return parse_count(option_value(of_launcher, names))

    is_mpi = bool(outer) and PurePath(outer[0]).name in _MPI
    nodes = 0 if is_mpi else count(outer, _NODES)
    processes = count(outer, _PROCESSES) or nodes * count(outer, _PER_NODE)
    if per_node := count(inner, _PER_NODE):  # the outer launcher starts one of these on each node
        processes = (count(inner, _NODES) or nodes or processes or 1) * per_node
    of_program = next((words[at:] for at, word in enumerate(words) if "_perf" in word), [])
    gpus, threads = (parse_count(option_value(of_program, names)) or 1 for names in (_GPUS, _THREADS))
    return processes * gpus * threads


def assignments(line: str) -> dict[str, str]:
    """Return the NCCL_* variables that a command line or a line of a script sets.

    >>> assignments('+ export NCCL_IB_HCA="mlx5_0"'), assignments("mpirun -x NCCL_ALGO=Tree ./job")
    ({'NCCL_IB_HCA': 'mlx5_0'}, {'NCCL_ALGO': 'Tree'})
    """
    return {name: value.strip("\"'") for name, value in (*_ASSIGNED.findall(line), *_HYDRA.findall(line))}


def traced_assignments(line: str) -> dict[str, str]:
    """Return the NCCL_* variables that a command sets which a shell has traced by `set -x`; other texts set nothing.

    >>> traced_assignments("+ mpirun -x NCCL_ALGO=Tree ./job --note NCCL_PROTO=LL")
    {'NCCL_ALGO': 'Tree'}
    >>> traced_assignments("+ echo try NCCL_ALGO=Tree"), traced_assignments("hint: export NCCL_ALGO=Tree")
    ({}, {})
    """
    traced = _TRACED.match(line)
    if traced is None:
        return {}
    words = traced[1].split()
    first = PurePath(words[0]).name
    if first in _MPI | {"srun"}:
        words = launcher_options(words, {first})
    elif first not in _DECLARING:
        words = list(itertools.takewhile(lambda word: word == "env" or _ASSIGNED.match(word), words))
    return assignments(" ".join(words))
