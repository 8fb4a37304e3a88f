"""The identity of the job that a process belongs to, from its launcher's variables: the same on all of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ncclt.errors import UsageError

_RENDEZVOUS = ("--rdzv-id", "--rdzv_id")
_NODES = ("--nnodes", "--num_machines", "--num-machines")
MANY_NODES_LAUNCHERS = frozenset(
    {"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun", "flux", "jsrun", "lrun", "aprun",
     "palsrun", "ssh", "pdsh", "clush", "kubectl", "deepspeed", "horovodrun"}
)  # fmt: skip
"""Commands that start the processes of all nodes from one node."""

NODE_LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate"})
"""Commands that run on every node and only start its own processes."""

_WRAPPERS = frozenset(
    {"env", "nice", "ionice", "numactl", "taskset", "chrt", "time", "timeout", "nohup", "stdbuf", "setsid", "exec",
     "uv", "poetry", "pixi", "conda", "mamba", "micromamba", "run"}
)  # fmt: skip
"""Commands that run another command, on the same node."""

RANK_VARIABLES = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK")
"""Set by a launcher in each process that it starts on a node."""

_MPI_JOBS = (("OMPI_MCA_ess_base_jobid", "Open MPI job"), ("PMIX_NAMESPACE", "PMIx namespace"))
"""Open MPI up to 4; Open MPI 5, PRRTE and Slurm with PMIx."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The identity of a job.

    Attributes:
        name: equal in all of its processes.
        is_unique: no other job, and no restart of this one, has this name.
    """

    name: str
    is_unique: bool = True


def job_of(
    environ: Mapping[str, str], argv: Sequence[str], *, named: str | None = None, nodes: int | None = None
) -> Job | None:
    """Return the job that this process belongs to; None = not known.

    MPI comes before Slurm, in whose allocation it may run. A Slurm job id only counts together with the step id, and
    only if the step spans the job: a script may start one step per node. Slurm's restart count is part of the name. The
    separate ids of the parts of a heterogeneous job are not supported.

    Args:
        environ: of the process.
        argv: the command that it starts.
        named: the user's name for the job.
        nodes: of the job, if the user gave them.

    Raises:
        UsageError: the user's name is empty or longer than 200 characters, or has unprintable ones.
    """
    if named is not None:
        if not named.strip() or len(named) > 200 or not named.isprintable():
            raise UsageError("a job's name has 1 to 200 printable characters", hint="see --job and NCCLT_JOB")
        return Job(name=f"named {named}")
    if not any(name.startswith(("SLURM_HET_", "SLURM_PACK_")) for name in environ):
        for variable, words in _MPI_JOBS:
            if environ.get(variable) and not environ[variable].startswith("slurm."):
                return Job(name=f"{words} {environ[variable]}", is_unique=False)
        step, number = _slurm_step(environ), environ.get("SLURM_JOB_ID")
        covers_nodes = nodes_of(argv, environ, nodes) <= _whole(environ.get("SLURM_STEP_NUM_NODES", ""))
        covers_ranks = _meets_others(argv) or _world(environ) <= _whole(environ.get("SLURM_STEP_NUM_TASKS", ""))
        if number and step and covers_nodes and covers_ranks:
            where = _slurm_cluster(environ)
            return Job(name=f"Slurm step {number}.{step}{where} start {environ.get('SLURM_RESTART_COUNT') or 0}")
    if _meets_others(argv):
        rendezvous = _option(argv, _RENDEZVOUS) or environ.get("PET_RDZV_ID", "")
        # A shell variable is not a name yet.
        if rendezvous and rendezvous != "none" and not set(rendezvous) & {"$", "`"}:
            return Job(name=f"rendezvous {rendezvous}")
    return None


def name_for_roll_out(
    environ: Mapping[str, str], argv: Sequence[str] = (), *, named: str | None = None, nodes: int | None = None
) -> str:
    """Return the name of this process's job if all of its processes agree on it; empty = not known.

    A process that is alone decides for all others, so there the number of its Slurm job is enough.

    Args:
        environ, argv, named, nodes: as for `job_of`.
    """
    try:
        job = job_of(environ, argv, named=environ.get("NCCLT_JOB") if named is None else named, nodes=nodes)
    except UsageError:  # such a name says nothing about the job; where it must, `job_of` itself is asked
        return ""
    if job is not None:
        return job.name
    number = environ.get("SLURM_JOB_ID", "")
    if not number or not is_alone(environ, argv, nodes=nodes):
        return ""
    return f"Slurm job {number}{_slurm_cluster(environ)} start {environ.get('SLURM_RESTART_COUNT') or 0}"


def is_alone(environ: Mapping[str, str], argv: Sequence[str], *, nodes: int | None = None) -> bool:
    """Return whether this is the only process that decides for its job, according to launchers' variables.

    A Slurm batch script has the variables of a task and runs once. A process with PyTorch's RANK in its environment, as
    Kubeflow's operators and users' scripts set it, is one of several.
    """
    if starts_others(argv) and "--no_ssh" not in argv:  # with it DeepSpeed only starts the processes of its own node
        return True
    several = nodes_of(argv, environ, nodes) > 1
    if any(name in environ for name in RANK_VARIABLES if name != "SLURM_PROCID"):
        return False
    if _world(environ) > 1:
        return False
    if _meets_others(argv):
        return not several
    if "SLURM_PROCID" in environ and _slurm_step(environ):
        return environ.get("SLURM_STEP_NUM_TASKS") == "1" and not several
    return True


def nodes_of(argv: Sequence[str], environ: Mapping[str, str], nodes: int | None = None) -> int:
    """Return on how many nodes a job runs at most, according to the user and torchrun; 1 where neither says."""
    said = 1
    if _meets_others(argv) and "--standalone" not in _words(argv):
        given = (_option(argv, _NODES) or environ.get("PET_NNODES", "")).rpartition(":")[2]
        # A shell variable may be any number.
        said = 2 if set(given) & {"$", "`"} else _whole(given)
    return max(said, nodes or 1)


def is_node_launcher(argv: Sequence[str]) -> bool:
    """Return whether a command certainly runs on every node and only starts processes there.

    What precedes its name must be known to stay on the node: `time srun torchrun` does not, and a script may not.
    """
    for position, word in enumerate(argv):
        name = PurePath(word).name
        if name in NODE_LAUNCHERS:
            return True
        is_value = position > 0 and argv[position - 1].startswith("-") and "/" not in word
        if name in MANY_NODES_LAUNCHERS or not (is_value or _stays_here(word)):
            return False
    return False


def starts_others(argv: Sequence[str]) -> bool:
    """Return whether a command starts processes on other nodes, even with other words before its launcher."""
    for word in argv:
        if PurePath(word).name in MANY_NODES_LAUNCHERS:
            return True
        if not _stays_here(word):
            return False
    return False


def _stays_here(word: str) -> bool:
    """Return whether a word is an option, a number, an assignment or a command that stays on its node."""
    name = PurePath(word).name
    return word[:1] == "-" or word[:1].isdecimal() or "=" in word or name in _WRAPPERS or name.startswith("python")


def _meets_others(argv: Sequence[str]) -> bool:
    """Return whether a command has a launcher that joins those of other nodes, also inside a container or script."""
    return bool({PurePath(word).name for word in _words(argv)} & NODE_LAUNCHERS)


def _words(argv: Sequence[str]) -> list[str]:
    """Return the words of a command, including those of a script for `sh -c`."""
    return [word for argument in argv for word in argument.split()]


def _slurm_cluster(environ: Mapping[str, str]) -> str:
    """Return ` of NAME`: clusters that share a file system, or a store, each number their jobs from 1."""
    return f" of {environ['SLURM_CLUSTER_NAME']}" if environ.get("SLURM_CLUSTER_NAME") else ""


def _slurm_step(environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""


def _world(environ: Mapping[str, str]) -> int:
    """Return PyTorch's WORLD_SIZE, if RANK is set too."""
    return _whole(environ.get("WORLD_SIZE", "")) if "RANK" in environ else 1


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 1


def _option(argv: Sequence[str], names: Sequence[str]) -> str:
    for words in (argv, _words(argv)):  # as given, else inside a script
        for position, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name in names:
                return value if equals else "".join(words[position + 1 : position + 2])
    return ""
