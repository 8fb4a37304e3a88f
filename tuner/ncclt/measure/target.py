"""How commands are launched on real nodes: what was asked for, and what of it fits together."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.cluster import Cluster
from ncclt.errors import UsageError
from ncclt.launch.kubernetes.options import site_options
from ncclt.measure.benchmarks import BENCHMARKS, benchmark_modules
from ncclt.nccl.tuner_plugin import LIBRARY_NAME
from ncclt.nccl.tuner_plugin import find as find_plugin

TORCH_ALONE = ("torchrun", "ssh")
"""Launchers that start PyTorch's own processes: nccl-tests across them would need MPI."""

TAKES_GRANTED = ("slurm", "mpirun")
"""Launchers that run on the nodes which a resource manager has granted, unless others are named."""

SHARES_FILES = ("local", "torchrun")
"""Launchers that run on this machine alone, so that its temporary files are there too."""

THROUGH = ("plugin", "variables")
"""Ways to force a setting upon NCCL: its tuner plugin can say more, and only what NCCL itself offers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How commands are launched on real nodes.

    Attributes:
        launcher, reason: which one, and why.
        benchmark: what runs; None = what fits the launcher.
        backend: of torch_collectives.
        nccl_tests: folder of the programs; None = PATH.
        max_commands: of nccl-tests per launch; None = as many as exact sizes need.
        beside: `gemm` = a matrix product runs beside the collectives.
        hosts: nodes to use; empty = whichever the launcher is given.
        parallel: trials at once, each on nodes of its own.
        python: interpreter of the nodes, with PyTorch.
        container: image of the trials.
        namespace: of Kubernetes.
        kubernetes: what its pods want, in the words of `launch.kubernetes.options`.
        ssh_options: for ssh itself.
        extra: arguments for the launcher's own program.
        scratch: folder that all nodes share with this machine.
        keep_env: let NCCL_* variables of this shell reach the trials.
        persistent: the ranks of the search stay from trial to trial.
        through: how settings are forced, one of `THROUGH`; None = by the plugin if ranks persist and it is there, else
            by variables.

    Raises:
        UsageError: no benchmark has that name.
    """

    launcher: str
    reason: str
    benchmark: str | None = None
    backend: str = "nccl"
    nccl_tests: Path | None = None
    max_commands: int | None = None
    beside: str | None = None
    hosts: tuple[str, ...] = ()
    parallel: int = 1
    python: str = sys.executable
    container: str | None = None
    namespace: str | None = None
    kubernetes: tuple[str, ...] = ()
    ssh_options: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    scratch: Path | None = None
    keep_env: bool = False
    persistent: bool = False
    through: str | None = None

    def __post_init__(self) -> None:
        # Those of others are looked for last: that reads what every installed package says of itself.
        name = self.benchmark
        if name not in (None, *BENCHMARKS) and name not in benchmark_modules():
            raise UsageError(f"unknown benchmark {name!r}", hint=f"one of {', '.join(benchmark_modules())}")

    @property
    def benchmark_name(self) -> str:
        """Return what runs: as asked, else what the launcher can start."""
        fitting = "torch_collectives" if self.launcher in TORCH_ALONE else "nccl_tests"
        return self.benchmark or fitting

    @property
    def is_gloo(self) -> bool:
        """Tell whether PyTorch's gloo takes the place of NCCL."""
        return self.benchmark_name == "torch_collectives" and self.backend == "gloo"

    def plugin(self, environ: Mapping[str, str]) -> Path | None:
        """Return the tuner plugin through which settings are forced; None = variables force them.

        NCCL loads one tuner plugin. Another one that the shell names and that every trial shall keep stays: without it
        the default would not be what a training starts with.

        Raises:
            UsageError: it is asked for and not there, or another one is in its place.
        """
        if self.is_gloo or self.through == "variables" or not (self.through or self.persistent):
            return None
        kept = environ.get("NCCL_TUNER_PLUGIN", "") if self.keep_env else ""
        if Path(kept).name not in ("", "ncclt", LIBRARY_NAME):
            if self.through is None:
                return None
            raise UsageError(
                f"--keep-env keeps NCCL_TUNER_PLUGIN={kept}, and NCCL loads one tuner plugin only",
                hint="leave --keep-env out, or use --through variables",
            )
        found = find_plugin(environ)
        if found is None and self.through == "plugin":
            raise UsageError("the tuner plugin was not found", hint="`ncclt plugin build` makes it; it needs gcc")
        return found


def check_place(cluster: Cluster, place: Place) -> None:
    """Refuse what cannot run, before anything is asked of the nodes.

    Raises:
        UsageError: launcher, benchmark, cluster and options do not fit together.
    """
    name, benchmark = place.launcher, place.benchmark_name
    if cluster.nodes > 1 and name in SHARES_FILES:
        raise UsageError(
            f"--launcher {name} measures this machine alone, not {cluster.nodes} nodes",
            hint="use --nodes 1, or --launcher slurm, mpirun, ssh or kubernetes",
        )
    if name in TORCH_ALONE and benchmark == "nccl_tests":
        raise UsageError(
            f"--launcher {name} starts processes of PyTorch, nccl-tests across them needs MPI",
            hint="use --benchmark torch_collectives, or --launcher mpirun or slurm",
        )
    if name == "local" and benchmark == "torch_collectives":
        raise UsageError(
            "--launcher local starts one process, torch_collectives needs one for each GPU",
            hint="use --launcher torchrun",
        )
    if place.persistent and (name == "kubernetes" or benchmark != "torch_collectives"):
        what = f"--launcher {name}" if name == "kubernetes" else f"--benchmark {benchmark}"
        raise UsageError(
            f"--persistent cannot be combined with {what}: its ranks cannot stay from trial to trial",
            hint="use --benchmark torch_collectives with --launcher torchrun, mpirun, slurm or ssh",
        )
    if place.through is not None and place.through not in THROUGH:
        raise UsageError(f"settings cannot be forced through {place.through!r}", hint=f"one of {', '.join(THROUGH)}")
    if place.through == "plugin" and (name == "kubernetes" or benchmark != "torch_collectives" or place.is_gloo):
        raise UsageError(
            "--through plugin needs PyTorch ranks that receive their table from here, and NCCL to load the plugin",
            hint="use --benchmark torch_collectives --backend nccl with --launcher torchrun, mpirun, slurm or ssh",
        )
    for option, given in (("--max-commands", place.max_commands), ("--nccl-tests", place.nccl_tests)):
        if given is not None and benchmark != "nccl_tests":
            raise UsageError(f"{option} does not apply to --benchmark {benchmark}", hint="use it with nccl_tests")
    if place.beside is not None and benchmark != "torch_collectives":
        raise UsageError("--beside needs --benchmark torch_collectives")
    if place.container is not None and name not in ("slurm", "kubernetes"):
        raise UsageError(
            f"--container cannot be combined with --launcher {name}", hint="use slurm (pyxis) or kubernetes"
        )
    if (place.kubernetes or place.namespace) and name != "kubernetes":
        option = "--kubernetes" if place.kubernetes else "--namespace"
        raise UsageError(f"{option} cannot be combined with --launcher {name}")
    site_options(place.kubernetes)
    if place.hosts and name in (*SHARES_FILES, "kubernetes"):
        raise UsageError(f"--hosts cannot be combined with --launcher {name}", hint="use mpirun, ssh or slurm")
