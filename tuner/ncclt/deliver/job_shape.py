"""The shape of a job: nodes, GPUs per node and NCCL version, from its command and its launcher's variables.

A guess would give a job what was measured for another one, so what is not certain stays unknown. Sources closer to the
ranks come first: the command (torchrun, then mpirun, then srun), the variables of a rank (torchrun, Open MPI, Hydra),
Slurm's step, and Slurm's allocation.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from ncclt.deliver.job import NODE_LAUNCHERS

_TORCHRUN = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_MPIRUN = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
_PROGRAMS = re.compile(r".*/.*|python[0-9.]*|(?:ba|da|z)?sh|.*\.(?:py|sh)")
_TWO_VALUES = frozenset({"--mca", "-mca", "--gmca", "--prtemca", "--pmixmca", "-genv", "-env"})
_ELSEWHERE = re.compile(
    r"apptainer|singularity|docker|podman|enroot|kubectl|ssh|pdsh|clush|conda|mamba|micromamba|uv|poetry"
    r"|pixi|(?:ba|da|z)?sh|.*\.sh"
)
"""Commands that run, or may run, in a file system or Python environment other than this one."""

_TASKS = re.compile(r"([1-9][0-9]{0,5})(?:\(x[0-9]+\))?")
"""Slurm's notation for equal tasks on all nodes: `8(x2)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePart:
    """One part of a job's shape.

    Attributes:
        value: nodes, GPUs per node, ranks, or an NCCL version.
        by: the source, for messages.
        binding: a different option is an error; not so for an allocation, which can be used in part.
    """

    value: int | str
    by: str
    binding: bool = True


Shape = dict[str, ShapePart]
"""Some of `nodes`, `gpus_per_node`, `ranks` and `nccl_version`."""


def shape_of(
    argv: Sequence[str], environ: Mapping[str, str], *, nodes: int | None = None, gpus_per_node: int | None = None
) -> Shape:
    """Return what is known of a job's shape.

    Args:
        argv: the command that starts it; empty = not known.
        environ: of this process.
        nodes, gpus_per_node: given by the user; with the number of ranks one gives the other.
    """
    found: Shape = {}
    for said in (
        _of_torchrun(argv, environ),
        _of_mpirun(argv),
        _of_srun(argv, environ),
        _of_ranks(environ),
        _of_step(environ),
        _of_allocation(environ),
    ):
        found = {**said, **found}
    _complete(found, nodes=nodes, gpus_per_node=gpus_per_node)
    if (version := nccl_version_of(argv, environ)) is not None:
        found["nccl_version"] = version
    return found


def _complete(shape: Shape, *, nodes: int | None, gpus_per_node: int | None) -> None:
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
    for part, given, other in (("nodes", gpus_per_node, "gpus_per_node"), ("gpus_per_node", nodes, "nodes")):
        each = given or (int(shape[other].value) if other in shape else 0)
        if part not in shape and each and total % each == 0:
            shape[part] = ShapePart(value=total // each, by=ranks.by)


def _of_torchrun(argv: Sequence[str], environ: Mapping[str, str]) -> Shape:
    """Read `--nnodes` and `--nproc-per-node`, both 1 by default."""
    words = [word for argument in argv for word in argument.split()]
    name = next((PurePath(word).name for word in words if PurePath(word).name in _TORCHRUN), "")
    if not name:
        return {}
    found: Shape = {}
    for part, options, variable in (
        ("nodes", ("--nnodes",), "PET_NNODES"),
        ("gpus_per_node", ("--nproc-per-node", "--nproc_per_node"), "PET_NPROC_PER_NODE"),
    ):
        text = _value(words, options) or environ.get(variable, "")
        if part == "nodes" and "--standalone" in words:
            found[part] = ShapePart(value=1, by=f"{name} --standalone")
        elif number := _whole(text):
            found[part] = ShapePart(value=number, by=f"{name} {options[0]}={number}")
        elif not text and not any(set(word) & {"$", "`"} for word in words):
            found[part] = ShapePart(value=1, by=f"{name} without {options[0]}", binding=False)
        # An elastic range, `gpu` and a shell variable are not known yet.
    return found


def _of_mpirun(argv: Sequence[str]) -> Shape:
    words = [] if ":" in argv else _launcher_options(argv, _MPIRUN)  # several programs, each with its own count
    ranks = _whole(_value(words, ("-np", "--np", "-n", "--n", "-c")))
    each = _whole(_value(words, ("-N", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost")))
    by_map = re.fullmatch(r"ppr:([0-9]+):node(?:[:,].*)?", _value(words, ("--map-by", "-map-by")))
    return _of_counts("mpirun", nodes=0, each=each or (_whole(by_map[1]) if by_map else 0), ranks=ranks)


def _of_srun(argv: Sequence[str], environ: Mapping[str, str]) -> Shape:
    words = _launcher_options(argv, {"srun"})
    if not words:
        return {}
    text = _value(words, ("-N", "--nodes"))
    nodes = _whole(text)
    if not text and not _is_heterogeneous(environ):  # srun uses all nodes of its allocation
        nodes = _whole(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "")
    ranks, each = _whole(_value(words, ("-n", "--ntasks"))), _whole(_value(words, ("--ntasks-per-node",)))
    return _of_counts("srun", nodes=nodes, each=each, ranks=ranks)


def _of_counts(launcher: str, *, nodes: int, each: int, ranks: int) -> Shape:
    """Return the shape from a launcher's counts, 0 = not given. One process per node may start others: GPUs unknown."""
    if not nodes and each and ranks % each == 0:
        nodes = ranks // each
    if not each and nodes and ranks % nodes == 0:
        each = ranks // nodes
    found: Shape = {}
    if nodes:
        found["nodes"] = ShapePart(value=nodes, by=f"{launcher} on {nodes} nodes")
    if each > 1:
        found["gpus_per_node"] = ShapePart(value=each, by=f"{launcher} with {each} ranks per node")
    if not nodes and not each and ranks > 1:
        found["ranks"] = ShapePart(value=ranks, by=f"{launcher} with {ranks} ranks")
    return found


def _of_ranks(environ: Mapping[str, str]) -> Shape:
    """Read the variables that torchrun, Open MPI and Hydra set for each rank."""
    for rank, world_size, local, name in (
        ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "torchrun's LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALNRANKS"),
    ):
        ranks, each = _whole(environ.get(world_size, "")), _whole(environ.get(local, ""))
        if rank in environ and ranks > 1 and each:
            nodes = _whole(environ.get("GROUP_WORLD_SIZE", "")) if rank == "RANK" else 0
            found = _of_counts("", nodes=nodes, each=each, ranks=ranks)
            return {
                part: ShapePart(value=one.value, by=f"{name}={each} of {world_size}={ranks}")
                for part, one in found.items()
            }
    return {}


def _of_step(environ: Mapping[str, str]) -> Shape:
    if not (environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")) or _is_heterogeneous(environ):
        return {}
    nodes = _whole(environ.get("SLURM_STEP_NUM_NODES", ""))
    found = _gpus(environ, tasks=environ.get("SLURM_STEP_TASKS_PER_NODE", ""), binding=True)
    # A script may start one step per node: a step on one of several nodes says nothing about the job.
    if nodes > 1 or environ.get("SLURM_JOB_NUM_NODES") == "1":
        found["nodes"] = ShapePart(value=nodes or 1, by=f"SLURM_STEP_NUM_NODES={nodes}")
    return found


def _of_allocation(environ: Mapping[str, str]) -> Shape:
    if _is_heterogeneous(environ):
        return {}
    in_step = bool(environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID"))
    nodes = _whole(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "")
    found = {} if in_step else _gpus(environ, tasks=environ.get("SLURM_NTASKS_PER_NODE", ""), binding=False)
    if nodes and not in_step:
        found["nodes"] = ShapePart(value=nodes, by=f"SLURM_JOB_NUM_NODES={nodes}", binding=False)
    return found


def _gpus(environ: Mapping[str, str], *, tasks: str, binding: bool) -> Shape:
    """Return GPUs per node where Slurm's tasks and GPUs agree; one task per node may start others."""
    uniform = _TASKS.fullmatch(tasks)
    each = int(uniform[1]) if uniform else 0
    variable = "SLURM_GPUS_ON_NODE" if environ.get("SLURM_GPUS_ON_NODE") else "SLURM_GPUS_PER_NODE"
    gpus = _whole(environ.get(variable, "").rpartition(":")[2])
    if gpus and each in (0, 1, gpus):
        return {"gpus_per_node": ShapePart(value=gpus, by=f"{variable}={gpus}", binding=binding and each == gpus)}
    if each > 1 and not gpus:
        return {"gpus_per_node": ShapePart(value=each, by=f"Slurm with {each} tasks per node", binding=False)}
    return {}


def _is_heterogeneous(environ: Mapping[str, str]) -> bool:
    return any(name.startswith(("SLURM_HET_", "SLURM_PACK_")) for name in environ)


def _launcher_options(argv: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the words between a launcher and its program: the `-n 4` of `train.py -n 4` is not the launcher's."""
    start = next((at for at, word in enumerate(argv) if PurePath(word).name in names), None)
    if start is None:
        return []
    found = [argv[start]]
    values = 0  # words that may still belong to the preceding option
    for word in argv[start + 1 :]:
        if word.startswith("-"):
            values = 0 if "=" in word else 2 if word in _TWO_VALUES else 1
        elif values and (values == 2 or not _PROGRAMS.fullmatch(word)):
            values -= 1
        else:
            break
        found.append(word)
    return found


def _value(words: Sequence[str], names: Sequence[str]) -> str:
    """Return the value of an option as `--name value`, `--name=value` or `-N2`."""
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else "".join(words[position + 1 : position + 2])
        if word[:2] in names and word[2:].isdecimal():
            return word[2:]
    return ""


def _whole(text: str) -> int:
    """Return a count above 0; 0 if the text is not one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


# --- NCCL ---


def nccl_version_of(argv: Sequence[str], environ: Mapping[str, str]) -> ShapePart | None:
    """Return the NCCL version that a job's processes will load, None = not certain.

    First the package nvidia-nccl-cu12 or -cu13 in the Python environment of the command (without a command: of the
    first torchrun or python on PATH), which PyTorch's wheels load; then NCCL_VERSION as NVIDIA's images set it. None if
    LD_PRELOAD or LD_LIBRARY_PATH bring another library, and for a command in a container or a script.
    """
    if "nccl" in environ.get("LD_PRELOAD", "") or _brings_own(environ.get("LD_LIBRARY_PATH", "")):
        return None
    if any("container" in word or _ELSEWHERE.fullmatch(PurePath(word).name) for word in argv):
        return None
    names = [word for word in argv if PurePath(word).name in NODE_LAUNCHERS or _is_python(word)][:1]
    for name in names if argv else ("torchrun", "python3", "python"):
        if (program := _found(name, environ.get("PATH", ""))) is not None:
            versions = _packaged(program)
            if len(versions) == 1:
                (version,) = versions
                return ShapePart(value=version, by=f"nvidia-nccl of {program}", binding=bool(argv))
            if versions:
                return None
            break
    image = re.match(r"[0-9]+\.[0-9]+\.[0-9]+(?![0-9])", environ.get("NCCL_VERSION", ""))
    return ShapePart(value=image[0], by=f"NCCL_VERSION={environ['NCCL_VERSION']}", binding=False) if image else None


def _is_python(word: str) -> bool:
    return re.fullmatch(r"python[0-9.]*", PurePath(word).name) is not None


def _brings_own(paths: str) -> bool:
    return any(_exists(Path(folder) / "libnccl.so.2") for folder in paths.split(":") if folder)


def _found(name: str, path: str) -> Path | None:
    folders = [""] if "/" in name else path.split(":")
    return next((Path(folder) / name for folder in folders if os.access(Path(folder) / name, os.X_OK)), None)


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


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
