"""Facts about a job: its name, size, NCCL, GPUs, and the variables that change what was measured.

A guess would give a job what was measured for another one, so what is not certain stays unknown. Sources closer to the
ranks come first: the command (torchrun, then mpirun, then srun), the variables of a rank (torchrun, Open MPI, Hydra),
Slurm's step, and Slurm's allocation.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import NamedTuple

from ncclt.errors import UsageError
from ncclt.launch.argv import (
    MANY_NODES_LAUNCHERS,
    MPI_PROGRAMS,
    NODE_LAUNCHERS,
    TORCHRUN_PROGRAMS,
    launcher_options,
    option_value,
    parse_count,
)
from ncclt.nccl.parameters import CATALOGUE
from ncclt.nccl.tuner_plugin import LIBRARY_NAME
from ncclt.nccl.variables import VariableClass, classify, read_environment, site_variables

_RENDEZVOUS = ("--rdzv-id", "--rdzv_id")
_NODE_RANK = ("--node-rank", "--node_rank", "--machine_rank", "--machine-rank")
_NODES = ("--nnodes", "--num_machines", "--num-machines")
_WRAPPERS = frozenset(
    {"env", "nice", "ionice", "numactl", "taskset", "chrt", "time", "timeout", "nohup", "stdbuf", "setsid", "exec"}
    | {"uv", "poetry", "pixi", "conda", "mamba", "micromamba", "run"}
)
"""Commands that run another command, on the same node."""

RANK_VARIABLES = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK")
"""Set by a launcher in each process that it starts on a node."""

_MPI_JOBS = (("OMPI_MCA_ess_base_jobid", "Open MPI job"), ("PMIX_NAMESPACE", "PMIx namespace"))
"""Open MPI up to 4; Open MPI 5, PRRTE and Slurm with PMIx."""


_ELSEWHERE = re.compile(
    r"apptainer|singularity|docker|podman|enroot|kubectl|ssh|pdsh|clush|conda|mamba|micromamba|uv|poetry"
    r"|pixi|(?:ba|da|z)?sh|.*\.sh"
)
"""Commands that run, or may run, in a file system or Python environment other than this one."""

_TASKS = re.compile(r"([1-9][0-9]{0,5})(?:\(x[0-9]+\))?")
"""Slurm's notation for equal tasks on all nodes: `8(x2)`."""


class Sourced(NamedTuple):
    """One fact about a job, with its source.

    Attributes:
        value: nodes, GPUs per node, ranks, an NCCL version or the value of a variable.
        source: of the value, for messages.
        binding: a different option is an error; not so for an allocation, which can be used in part.
    """

    value: int | str
    source: str
    binding: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """Facts about a job, as far as its command, its launcher and this machine show them.

    Attributes:
        argv: the command that starts it; empty = not known.
        environ: of this process.
        name: equal in all of its processes; empty = not known.
        is_unique: no other job, and no restart of this one, has this name.
        is_named: the user gave the name.
        shape: some of `nodes`, `gpus_per_node` and `nccl_version`, each with its source.
        nodes: at most, as far as the user or a launcher says; 1 where neither does.
        decides_alone: no other process decides for the job, according to launchers.
        gpus: models seen on this machine, each once; empty = none seen, None = not looked for.
        fabrics: `infiniband` or `roce`, as this machine's adapters say; empty = none seen.
        variables: tuning that changes what was measured -> value and source.
        site: variables that all jobs of the site have and that can change times -> value.
    """

    argv: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    is_unique: bool = True
    is_named: bool = False
    shape: Mapping[str, Sourced] = field(default_factory=dict)
    nodes: int = 1
    decides_alone: bool = True
    gpus: tuple[str, ...] | None = None
    fabrics: tuple[str, ...] = ()
    variables: Mapping[str, Sourced] = field(default_factory=dict)
    site: Mapping[str, str] = field(default_factory=dict)

    @property
    def starts_elsewhere(self) -> bool:
        """Return True if its command starts the processes of all nodes."""
        return starts_other_nodes(self.argv)

    @property
    def is_batch_script(self) -> bool:
        """Return True if this is Slurm's batch script, which runs once and starts the steps of its job."""
        return bool(self.environ.get("SLURM_JOB_ID")) and not _slurm_step(self.environ)

    @property
    def is_started_on_every_node(self) -> bool:
        """Return True if this command is started on every node, so that each node decides for itself."""
        return any(name in self.environ for name in RANK_VARIABLES) or is_node_launcher(self.argv)

    @property
    def shown_nodes(self) -> int:
        """Return the number of nodes: the launcher's, else the most that the user names."""
        nodes = self.shape.get("nodes")
        return max(self.nodes, int(nodes.value) if nodes else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """This process among those that decide for a job.

    Attributes:
        name: differs from those of the others.
        count: how many there are, by the launcher; 1 where it does not say.
        is_rank: one per rank, else one per node.
    """

    name: str
    count: int = 1
    is_rank: bool = False


def read_participant(job: JobInfo) -> Participant:
    """Return this process among those that decide for its job: one of the ranks of MPI, else of the nodes."""
    environ = job.environ
    torchrun = _has_node_launcher(job.argv)
    for rank, size in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("RANK", "WORLD_SIZE"),
    ):
        if not torchrun and environ.get(rank, "").isdecimal() and parse_count(environ.get(size, "")) > 1:
            return Participant(name=f"rank {environ[rank]}", count=parse_count(environ[size]), is_rank=True)
    by_slurm, by_torchrun = environ.get("SLURM_NODEID", ""), _find_option(job.argv, _NODE_RANK)
    by_torchrun = by_torchrun or environ.get("PET_NODE_RANK", "")
    number = (by_torchrun or by_slurm) if torchrun else (by_slurm or by_torchrun)
    nodes = parse_count(environ.get("SLURM_STEP_NUM_NODES", "")) if _slurm_step(environ) else 0
    return Participant(name=f"node {os.uname().nodename} {read_boot_id()} {number}", count=max(job.shown_nodes, nodes))


def read_boot_id() -> str:
    """Return the id of this boot, in which two machines of one name differ; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def read_job(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    named: str | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
) -> JobInfo:
    """Collect the facts about a job.

    Args:
        named: the user's name for the job.

    Raises:
        UsageError: the user's name is invalid.
    """
    named = environ.get("NCCLT_JOB") if named is None else named
    name, is_unique = name_job(environ, argv, named=named, nodes=nodes)
    return JobInfo(
        argv=tuple(argv),
        environ=environ,
        name=name,
        is_unique=is_unique,
        is_named=named is not None,
        shape=read_shape(argv, environ, nodes=nodes, gpus_per_node=gpus_per_node),
        nodes=max_nodes(argv, environ, nodes),
        decides_alone=decides_alone(environ, argv, nodes=nodes),
        gpus=detect_gpus(environ),
        fabrics=detect_fabrics(),
        variables=read_variables(argv, environ),
        site=read_site(argv, environ),
    )


# --- variables that change what was measured ---

_DEFAULTS = {row.variable: str(row.default) for row in CATALOGUE}

CHANGING_VARIABLES = tuple(sorted(name for name in _DEFAULTS if classify(name)[0] is VariableClass.TUNING))
"""Tuning variables that the catalogue knows."""

_ASSIGNED = re.compile(r"(?:^|[\s,;'\"])(NCCLT?_[A-Z0-9_]+|PYTHONPATH)=([^\s,;'\"]*)")
"""As in `-x NCCL_ALGO=ring`, `--export=ALL,NCCL_ALGO=ring`, `env NCCL_ALGO=ring` and a script for `sh -c`."""

_HYDRA_OPTIONS = ("-genv", "-env")
"""MPICH and Intel MPI take name and value as two arguments."""

OF_COMMAND = "the command itself"

NO_OTHER_TUNER = ("", "none", "ncclt", LIBRARY_NAME)
"""Last parts of NCCL_TUNER_PLUGIN that name no other tuner than ours."""


def read_variables(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Sourced]:
    """Return the tuning variables in effect that change what was measured, each with its source.

    The command's own come first, then what NCCL reads (`read_environment`). A value that is NCCL's
    default changes nothing.
    """
    in_effect = {name: Sourced(value, source) for name, (value, source) in read_environment(environ).items()}
    in_effect |= {name: Sourced(value, OF_COMMAND) for name, value in read_command_variables(argv).items()}
    return {
        name: variable
        for name, variable in sorted(in_effect.items())
        if name.startswith("NCCL_")
        and classify(name)[0] is VariableClass.TUNING
        and _DEFAULTS.get(name) != variable.value
        and not (name == "NCCL_TUNER_PLUGIN" and PurePath(str(variable.value)).name in NO_OTHER_TUNER)
    }


def read_site(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in effect that all trials and jobs of a site have, as `site_variables` of a measurement."""
    return dict(site_variables({**environ, **read_command_variables(argv)}))


def read_command_variables(argv: Sequence[str]) -> dict[str, str]:
    """Return the variables of NCCL and ncclt, and PYTHONPATH, that a command sets, which override inherited ones."""
    variables = {name: value for word in argv for name, value in _ASSIGNED.findall(word)}
    for option, name, value in zip(argv, argv[1:], argv[2:], strict=False):
        if option in _HYDRA_OPTIONS and name.startswith(("NCCL", "PYTHONPATH")):
            variables[name] = value
    return variables


# --- GPUs ---

_UNKNOWN_MODEL = "a GPU of unknown model"
_MODEL = re.compile(r"[A-Z]{1,3}[0-9]{2,4}[A-Z]{0,2}")
"""`NVIDIA H100 80GB HBM3`, `AMD Instinct MI300X OAM` and `a100-sxm-64` all have one word that shows the model."""


def detect_gpus(environ: Mapping[str, str], *, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the models of this machine's GPUs, each once; empty where none is seen.

    First what NVIDIA's and AMD's kernel modules say, then nvidia-smi: a container may hide the first.
    """
    information = "\n".join(_read_each(root, "proc/driver/nvidia/gpus/*/information"))
    models = re.findall(r"^Model:[ \t]*(\S.*?)[ \t]*$", information, re.M)
    names = _read_each(root, "sys/class/drm/card*/device/product_name")
    models += [text.strip() or _UNKNOWN_MODEL for text in names]
    if not models and (program := shutil.which("nvidia-smi", path=environ.get("PATH", ""))):
        models = _ask_nvidia_smi(program)
    if not models and (any(root.glob("dev/nvidia[0-9]*")) or (root / "dev/kfd").exists()):
        models = [_UNKNOWN_MODEL]
    return tuple(dict.fromkeys(models))


def _read_each(root: Path, pattern: str) -> Iterator[str]:
    """Yield the texts of the files of a pattern that can be read."""
    for path in sorted(root.glob(pattern)):
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def _ask_nvidia_smi(program: str) -> list[str]:
    words = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        models = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True, errors="replace").stdout
    except (OSError, subprocess.SubprocessError):
        return []  # a program without a driver
    return [line.strip() for line in models.splitlines() if line.strip()]


_FABRICS = {"InfiniBand": "infiniband", "Ethernet": "roce"}
"""Link layer of an RDMA adapter, as Linux names it -> fabric in our words."""


def detect_fabrics(*, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the fabrics of this machine's RDMA adapters, each once; empty where none is seen."""
    layers = [text.strip() for text in _read_each(root, "sys/class/infiniband/*/ports/*/link_layer")]
    return tuple(dict.fromkeys(_FABRICS[layer] for layer in layers if layer in _FABRICS))


def is_other_gpu(measured: str, gpus: Iterable[str]) -> bool:
    """Return True if GPUs are certainly of another model than the measured one: both names contain their model."""
    measured_models = set(_MODEL.findall(measured.upper()))
    present = [set(_MODEL.findall(name.upper())) for name in gpus]
    return bool(measured_models) and any(models and not models & measured_models for models in present)


# --- name, and who decides ---


def name_job(
    environ: Mapping[str, str], argv: Sequence[str], *, named: str | None = None, nodes: int | None = None
) -> tuple[str, bool]:
    """Return the name of the job that this process belongs to, and whether no other job can have it; empty = not known.

    MPI comes before Slurm, in whose allocation it may run. A Slurm job id only counts together with the step id, and
    only if the step spans the job: a script may start one step per node. Slurm's restart count is part of the name. The
    separate ids of the parts of a heterogeneous job are not supported.

    Args:
        named: the user's name for the job.
        nodes: of the job, if the user gave them.

    Raises:
        UsageError: the user's name is empty or longer than 200 characters, or has unprintable ones.
    """
    if named is not None:
        if not named.strip() or len(named) > 200 or not named.isprintable():
            raise UsageError("a job's name has 1 to 200 printable characters", hint="see --job and NCCLT_JOB")
        return f"named {named}", True
    if not _is_heterogeneous(environ):
        for variable, words in _MPI_JOBS:
            if environ.get(variable) and not environ[variable].startswith("slurm."):
                return f"{words} {environ[variable]}", False
        step, number = _slurm_step(environ), environ.get("SLURM_JOB_ID")
        covers_nodes = max_nodes(argv, environ, nodes) <= _count_or_one(environ.get("SLURM_STEP_NUM_NODES", ""))
        covers_ranks = _has_node_launcher(argv) or _torch_world_size(environ) <= _count_or_one(
            environ.get("SLURM_STEP_NUM_TASKS", "")
        )
        if number and step and covers_nodes and covers_ranks:
            return f"Slurm step {number}.{step}{_slurm_start(environ)}", True
    if _has_node_launcher(argv):
        rendezvous = _find_option(argv, _RENDEZVOUS) or environ.get("PET_RDZV_ID", "")
        # A shell variable is not a name yet.
        if rendezvous and rendezvous != "none" and not set(rendezvous) & {"$", "`"}:
            return f"rendezvous {rendezvous}", True
    return "", True


def name_for_rollout(
    environ: Mapping[str, str], argv: Sequence[str] = (), *, named: str | None = None, nodes: int | None = None
) -> str:
    """Return the name of this process's job if all of its processes agree on it; empty = not known.

    A process that is alone decides for all others, so there the number of its Slurm job is enough.

    Args:
        environ, argv, named, nodes: as for `name_job`.
    """
    try:
        name, _ = name_job(environ, argv, named=environ.get("NCCLT_JOB") if named is None else named, nodes=nodes)
    except UsageError:  # such a name says nothing about the job; where it must, `name_job` itself is asked
        return ""
    if name:
        return name
    number = environ.get("SLURM_JOB_ID", "")
    if not number or not decides_alone(environ, argv, nodes=nodes):
        return ""
    return f"Slurm job {number}{_slurm_start(environ)}"


def decides_alone(environ: Mapping[str, str], argv: Sequence[str], *, nodes: int | None = None) -> bool:
    """Return True if this is the only process that decides for its job, according to launchers' variables.

    A Slurm batch script has the variables of a task and runs once. A process with PyTorch's RANK in its environment, as
    Kubeflow's operators and users' scripts set it, is one of several.
    """
    # With --no_ssh DeepSpeed only starts the processes of its own node.
    if starts_other_nodes(argv) and "--no_ssh" not in argv:
        return True
    is_one_node = max_nodes(argv, environ, nodes) == 1
    if any(name in environ for name in RANK_VARIABLES if name != "SLURM_PROCID") or _torch_world_size(environ) > 1:
        return False
    if _has_node_launcher(argv):
        return is_one_node
    if "SLURM_PROCID" in environ and _slurm_step(environ):
        return environ.get("SLURM_STEP_NUM_TASKS") == "1" and is_one_node
    return True


def max_nodes(argv: Sequence[str], environ: Mapping[str, str], nodes: int | None = None) -> int:
    """Return on how many nodes a job runs at most, according to the user and torchrun; 1 where neither says."""
    by_torchrun = 1
    if _has_node_launcher(argv) and "--standalone" not in _split_words(argv):
        most = (_find_option(argv, _NODES) or environ.get("PET_NNODES", "")).rpartition(":")[2]
        # A shell variable may be any number.
        by_torchrun = 2 if set(most) & {"$", "`"} else _count_or_one(most)
    return max(by_torchrun, nodes or 1)


def is_node_launcher(argv: Sequence[str]) -> bool:
    """Return True if a command certainly runs on every node and only starts processes there.

    What precedes its name must be known to stay on the node: `time srun torchrun` does not, and a script may not.
    """
    for position, word in enumerate(argv):
        name = PurePath(word).name
        if name in NODE_LAUNCHERS:
            return True
        is_value = position > 0 and argv[position - 1].startswith("-") and "/" not in word
        if name in MANY_NODES_LAUNCHERS or not (is_value or _is_local_word(word)):
            return False
    return False


def starts_other_nodes(argv: Sequence[str]) -> bool:
    """Return True if a command starts processes on other nodes, even with other words before its launcher."""
    for word in argv:
        if PurePath(word).name in MANY_NODES_LAUNCHERS:
            return True
        if not _is_local_word(word):
            return False
    return False


def _is_local_word(word: str) -> bool:
    """Return True if a word is an option, a number, an assignment or a command that runs on its own node."""
    name = PurePath(word).name
    return word[:1] == "-" or word[:1].isdecimal() or "=" in word or name in _WRAPPERS or name.startswith("python")


def _has_node_launcher(argv: Sequence[str]) -> bool:
    """Return True if a command has a launcher that joins those of other nodes, also inside a container or script."""
    return bool({PurePath(word).name for word in _split_words(argv)} & NODE_LAUNCHERS)


def _split_words(argv: Sequence[str]) -> list[str]:
    """Return the words of a command, including those of a script for `sh -c`."""
    return [word for argument in argv for word in argument.split()]


def _slurm_start(environ: Mapping[str, str]) -> str:
    """Return ` of CLUSTER start N`: clusters that share a file system, or a store, each number their jobs from 1."""
    cluster = f" of {environ['SLURM_CLUSTER_NAME']}" if environ.get("SLURM_CLUSTER_NAME") else ""
    return f"{cluster} start {environ.get('SLURM_RESTART_COUNT') or 0}"


def _slurm_step(environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""


def _torch_world_size(environ: Mapping[str, str]) -> int:
    """Return PyTorch's WORLD_SIZE, if RANK is set too."""
    return _count_or_one(environ.get("WORLD_SIZE", "")) if "RANK" in environ else 1


def _count_or_one(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 1


def _find_option(argv: Sequence[str], names: Sequence[str]) -> str:
    for words in (argv, _split_words(argv)):  # as given, else inside a script
        for position, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name in names:
                return value if equals else "".join(words[position + 1 : position + 2])
    return ""


# --- size and NCCL ---


def read_shape(
    argv: Sequence[str], environ: Mapping[str, str], *, nodes: int | None = None, gpus_per_node: int | None = None
) -> dict[str, Sourced]:
    """Return the known parts of a job's shape.

    Args:
        argv: the command that starts it; empty = not known.
        nodes, gpus_per_node: given by the user; with the number of ranks one gives the other.
    """
    # The last one counts.
    shape = _read_slurm(environ) | _read_ranks(environ)
    shape |= _read_srun(argv, environ) | _read_mpirun(argv) | _read_torchrun(argv, environ)
    _complete(shape, nodes=nodes, gpus_per_node=gpus_per_node)
    if (version := find_nccl_version(argv, environ)) is not None:
        shape["nccl_version"] = version
    return shape


def _complete(shape: dict[str, Sourced], *, nodes: int | None, gpus_per_node: int | None) -> None:
    """Derive nodes or GPUs per node from the other one and the number of ranks, if a launcher gives that."""
    ranks = shape.pop("ranks", None)
    if ranks is None:
        return
    total = int(ranks.value)
    if math.prod(int(shape[part].value) if part in shape else 0 for part in ("nodes", "gpus_per_node")) == total:
        return
    # How ranks are spread over an allocation that is used in part is not known.
    for part in ("nodes", "gpus_per_node"):
        if part in shape and not shape[part].binding:
            del shape[part]
    for part, option, factor in (("nodes", gpus_per_node, "gpus_per_node"), ("gpus_per_node", nodes, "nodes")):
        each = option or (int(shape[factor].value) if factor in shape else 0)
        if part not in shape and each and total % each == 0:
            shape[part] = Sourced(value=total // each, source=ranks.source)


def _read_torchrun(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Sourced]:
    """Read `--nnodes` and `--nproc-per-node`, both 1 by default."""
    words = _split_words(argv)
    name = next((PurePath(word).name for word in words if PurePath(word).name in TORCHRUN_PROGRAMS), "")
    if not name:
        return {}
    shape: dict[str, Sourced] = {}
    for part, options, variable in (
        ("nodes", ("--nnodes",), "PET_NNODES"),
        ("gpus_per_node", ("--nproc-per-node", "--nproc_per_node"), "PET_NPROC_PER_NODE"),
    ):
        text = option_value(words, options) or environ.get(variable, "")
        if part == "nodes" and "--standalone" in words:
            shape[part] = Sourced(1, f"{name} --standalone")
        elif number := parse_count(text):
            shape[part] = Sourced(number, f"{name} {options[0]}={number}")
        elif not text and not any(set(word) & {"$", "`"} for word in words):
            shape[part] = Sourced(1, f"{name} without {options[0]}", binding=False)
        # An elastic range, `gpu` and a shell variable are not known yet.
    return shape


def _read_mpirun(argv: Sequence[str]) -> dict[str, Sourced]:
    words = [] if ":" in argv else launcher_options(argv, MPI_PROGRAMS)  # several programs, each with its own count
    ranks = parse_count(option_value(words, ("-np", "--np", "-n", "--n", "-c")))
    each = parse_count(option_value(words, ("-N", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost")))
    by_map = re.fullmatch(r"ppr:([0-9]+):node(?:[:,].*)?", option_value(words, ("--map-by", "-map-by")))
    return _from_counts("mpirun", nodes=0, each=each or (parse_count(by_map[1]) if by_map else 0), ranks=ranks)


def _read_srun(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Sourced]:
    words = launcher_options(argv, {"srun"})
    if not words:
        return {}
    text = option_value(words, ("-N", "--nodes"))
    nodes = parse_count(text)
    if not text and not _is_heterogeneous(environ):  # srun uses all nodes of its allocation
        nodes = _allocated_nodes(environ)
    ranks = parse_count(option_value(words, ("-n", "--ntasks")))
    each = parse_count(option_value(words, ("--ntasks-per-node",)))
    return _from_counts("srun", nodes=nodes, each=each, ranks=ranks)


def _from_counts(launcher: str, *, nodes: int, each: int, ranks: int) -> dict[str, Sourced]:
    """Return the shape from a launcher's counts, 0 = not given. One process per node may start others: GPUs unknown."""
    if not nodes and each and ranks % each == 0:
        nodes = ranks // each
    if not each and nodes and ranks % nodes == 0:
        each = ranks // nodes
    shape: dict[str, Sourced] = {}
    if nodes:
        shape["nodes"] = Sourced(nodes, f"{launcher} on {nodes} nodes")
    if each > 1:
        shape["gpus_per_node"] = Sourced(each, f"{launcher} with {each} ranks per node")
    if not nodes and not each and ranks > 1:
        shape["ranks"] = Sourced(ranks, f"{launcher} with {ranks} ranks")
    return shape


def _read_ranks(environ: Mapping[str, str]) -> dict[str, Sourced]:
    """Read the variables that torchrun, Open MPI and Hydra set for each rank."""
    for rank, world_size, local, name in (
        ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "torchrun's LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALNRANKS"),
    ):
        ranks, each = parse_count(environ.get(world_size, "")), parse_count(environ.get(local, ""))
        if rank in environ and ranks > 1 and each:
            nodes = parse_count(environ.get("GROUP_WORLD_SIZE", "")) if rank == "RANK" else 0
            shape = _from_counts("", nodes=nodes, each=each, ranks=ranks)
            source = f"{name}={each} of {world_size}={ranks}"
            return {part: Sourced(fact.value, source) for part, fact in shape.items()}
    return {}


def _read_slurm(environ: Mapping[str, str]) -> dict[str, Sourced]:
    """Read the variables of a step, else of an allocation, which can be used in part."""
    if _is_heterogeneous(environ):
        return {}
    if not _slurm_step(environ):
        nodes = _allocated_nodes(environ)
        shape = _gpus(environ, tasks=environ.get("SLURM_NTASKS_PER_NODE", ""), binding=False)
        return shape | ({"nodes": Sourced(nodes, f"SLURM_JOB_NUM_NODES={nodes}", binding=False)} if nodes else {})
    nodes = parse_count(environ.get("SLURM_STEP_NUM_NODES", ""))
    shape = _gpus(environ, tasks=environ.get("SLURM_STEP_TASKS_PER_NODE", ""), binding=True)
    # A script may start one step per node: a step on one of several nodes says nothing about the job.
    if nodes > 1 or environ.get("SLURM_JOB_NUM_NODES") == "1":
        shape["nodes"] = Sourced(nodes or 1, f"SLURM_STEP_NUM_NODES={nodes}")
    return shape


def _allocated_nodes(environ: Mapping[str, str]) -> int:
    return parse_count(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "")


def _gpus(environ: Mapping[str, str], *, tasks: str, binding: bool) -> dict[str, Sourced]:
    """Return GPUs per node where Slurm's tasks and GPUs agree; one task per node may start others."""
    uniform = _TASKS.fullmatch(tasks)
    each = int(uniform[1]) if uniform else 0
    variable = "SLURM_GPUS_ON_NODE" if environ.get("SLURM_GPUS_ON_NODE") else "SLURM_GPUS_PER_NODE"
    gpus = parse_count(environ.get(variable, "").rpartition(":")[2])
    if gpus and each in (0, 1, gpus):
        return {"gpus_per_node": Sourced(gpus, f"{variable}={gpus}", binding=binding and each == gpus)}
    if each > 1 and not gpus:
        return {"gpus_per_node": Sourced(each, f"Slurm with {each} tasks per node", binding=False)}
    return {}


def _is_heterogeneous(environ: Mapping[str, str]) -> bool:
    return any(name.startswith(("SLURM_HET_", "SLURM_PACK_")) for name in environ)


def find_nccl_version(argv: Sequence[str], environ: Mapping[str, str]) -> Sourced | None:
    """Return the NCCL version that a job's processes will load, None = not certain.

    First the package nvidia-nccl-cu12 or -cu13 in the Python environment of the command (without a command: of the
    first torchrun or python on PATH), which PyTorch's wheels load; then NCCL_VERSION as NVIDIA's images set it. None if
    LD_PRELOAD or LD_LIBRARY_PATH bring another library, and for a command in a container or a script.
    """
    folders = filter(None, environ.get("LD_LIBRARY_PATH", "").split(":"))
    has_own = "nccl" in environ.get("LD_PRELOAD", "") or any(
        os.access(Path(folder) / "libnccl.so.2", os.F_OK) for folder in folders
    )
    if has_own or any("container" in word or _ELSEWHERE.fullmatch(PurePath(word).name) for word in argv):
        return None
    is_python = re.compile(rf"python[0-9.]*|{'|'.join(map(re.escape, NODE_LAUNCHERS))}").fullmatch
    names = [word for word in argv if is_python(PurePath(word).name)][:1] if argv else ["torchrun", "python3", "python"]
    places = ((name, [""] if "/" in name else environ.get("PATH", "").split(":")) for name in names)
    programs = (Path(folder) / name for name, folders in places for folder in folders)
    if (program := next((path for path in programs if os.access(path, os.X_OK)), None)) is not None:
        versions = _packaged(program)
        if versions:
            return Sourced(versions.pop(), f"nvidia-nccl of {program}", bool(argv)) if len(versions) == 1 else None
    image = re.match(r"[0-9]+\.[0-9]+\.[0-9]+(?![0-9])", environ.get("NCCL_VERSION", ""))
    return Sourced(image[0], f"NCCL_VERSION={environ['NCCL_VERSION']}", binding=False) if image else None


def _packaged(program: Path) -> set[str]:
    """Return the NCCL versions installed as packages in the Python environment of a program."""
    # Unresolved: the python of a virtual environment is a link out of it.
    prefix = program.parent.parent
    try:
        return {
            match[1]
            for lib in ("lib", "local/lib")  # the second is of Debian's Python
            for folder in prefix.glob(f"{lib}/python3*/*-packages/nvidia_nccl_cu1[0-9]-*.dist-info")
            if (match := re.match(r"nvidia_nccl_cu1[0-9]-([0-9]+\.[0-9]+\.[0-9]+)", folder.name))
        }
    except OSError:
        return set()  # an unreadable folder
