"""The target of trials: the options for launcher, benchmark and nodes, and their legal combinations."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ncclt.core.cluster import Cluster
from ncclt.core.option import Group, Option, options_of
from ncclt.core.trial import NOT_LAUNCHED, TimesOrigin
from ncclt.errors import UsageError
from ncclt.launch import launcher_class, launcher_names
from ncclt.launch.hostfile import read_hostfile
from ncclt.launch.launcher import Launcher, parse_options
from ncclt.measure.benchmarks import BENCHMARKS, benchmark_names
from ncclt.nccl.tuner_plugin import find as find_plugin
from ncclt.user_dirs import recorded_tables

DEFAULT_CLUSTER = "leonardo"
"""The cluster of the paper that ncclt grew from; the default only where trials are simulated."""

DEFAULT_RECORDED = "mi355x-2x8"
"""The default where nothing can be launched: of what was recorded it has the most settings, sizes and collectives."""

ON_REQUEST = "as requested"
"""Reason of a target whose launcher was named."""

THROUGH = ("plugin", "variables", "options")
"""Ways to force a setting in NCCL: the tuner plugin expresses more settings, and never one that NCCL lacks.

Options of a process group carry channels alone; trials set the variables that do the same for every communicator.
"""


def gpus_visible() -> bool:
    """Return True if this machine shows an NVIDIA GPU to this process."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") != "" and Path("/dev/nvidia0").exists()


_OfLaunches = partial(Option, of_launches=True, group=Group.LAUNCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Launcher, benchmark, cluster and nodes of trials; `resolved` turns a request into input of the layers below.

    The `Option` of a field says what it means. `resolved` sets `reason`, why trials run there, and `host_slots`, the
    max processes of hosts by name as the host file limits them.

    Raises:
        UsageError: hosts are given as one text, or settings are to be forced in an unknown way.
    """

    cluster: Annotated[str | None, Option("Name of the cluster, see `ncclt cluster list`.", envvar="NCCLT_CLUSTER")] = (
        None
    )
    nodes: Annotated[int | None, Option("Nodes of the job; default: the cluster's.")] = None
    gpus_per_node: Annotated[int | None, Option("GPUs per node of the job; default: the cluster's.")] = None
    nccl_version: Annotated[
        str | None, Option("NCCL version of the job; default: the cluster's.", group=Group.WHERE)
    ] = None
    launcher: Annotated[
        str, Option("local, torchrun, mpirun, slurm, ssh, kubernetes, replay or simulate.", envvar="NCCLT_LAUNCHER")
    ] = ""
    launcher_option: Annotated[
        tuple[str, ...],
        Option("Option of this launcher, such as container=IMAGE; repeatable.", metavar="KEY=VALUE", of_launches=True),
    ] = ()
    reason: str = ""
    landscape: Annotated[
        Path | None, Option("Path to a recorded landscape to replay, FILE.csv.", group=Group.WHERE)
    ] = None
    benchmark: Annotated[
        str | None, _OfLaunches("nccl_tests or torch_collectives; default: what the launcher can start.")
    ] = None
    backend: Annotated[str, _OfLaunches("Backend of torch_collectives: nccl or gloo.")] = "nccl"
    nccl_tests: Annotated[Path | None, _OfLaunches("Path to the folder of nccl-tests; default: PATH.")] = None
    max_commands: Annotated[
        int | None, _OfLaunches("Max nccl-tests commands per trial; other sizes are interpolated.")
    ] = None
    beside: Annotated[str | None, _OfLaunches("gemm: run a concurrent matrix product (torch_collectives).")] = None
    hosts: Annotated[
        tuple[str, ...],
        Option(
            "Comma-separated nodes, or @FILE with one node per line.", comma=True, of_launches=True, group=Group.WHERE
        ),
    ] = ()
    host_slots: tuple[tuple[str, int], ...] = ()
    parallel: Annotated[int, Option("Trials to run at once, each on its own nodes.", group=Group.BUDGET)] = 1
    python: Annotated[str, _OfLaunches("Path to Python with PyTorch on the nodes.")] = sys.executable
    launcher_arg: Annotated[
        tuple[str, ...], _OfLaunches("Argument for mpirun, srun, kubectl or torchrun; repeatable.")
    ] = ()
    scratch: Annotated[Path | None, _OfLaunches("Path to a folder that all nodes share, for results.")] = None
    persistent: Annotated[
        bool, _OfLaunches("Keep the ranks running between trials of the search (torch_collectives).")
    ] = False
    through: Annotated[
        str | None,
        Option("Force settings by plugin, variables or options; default: plugin where built.", group=Group.LAUNCH),
    ] = None

    def __post_init__(self) -> None:
        if isinstance(self.hosts, str):
            raise UsageError(f"hosts are several names, not the text {self.hosts!r}", hint='hosts=("node1", "node2")')
        if self.cluster is not None and not self.cluster.strip():
            # An empty variable of a script: it must not tune the default cluster in place of the one that was meant.
            raise UsageError("--cluster needs a name", hint="`ncclt cluster list` shows the names")
        if self.through is not None and self.through not in THROUGH:
            raise UsageError(f"settings cannot be forced through {self.through!r}", hint=f"one of {', '.join(THROUGH)}")

    def resolved(
        self,
        environ: Mapping[str, str],
        *,
        gpus_visible: Callable[[], bool] = gpus_visible,
        demo: bool = False,
        for_nodes: bool = False,
        submits: bool = False,
    ) -> Target:
        """Return the target with its launcher and the names of its nodes: as asked, else as detected.

        The default is the recorded cluster that was named, else the Slurm allocation, else the visible GPUs. A demo is
        replayed without either where no cluster is named. Nothing is simulated unasked.

        Args:
            gpus_visible: asked only when needed.
            demo: the workload is a shipped one, for which a recording is replayed unasked.
            for_nodes: nodes are examined: nothing is replayed unasked.
            submits: accept launcher options of a batch job: the command submits one outside an allocation.

        Raises:
            UsageError: the options contradict each other, have no effect there, or nothing can be measured here.
            InputError: the host file cannot be read.
        """
        self.require_known_names()
        chosen = self._with_launcher(environ, gpus_visible, demo=demo, for_nodes=for_nodes)
        if chosen.is_replayed and self.landscape is None and chosen.cluster not in recorded_tables():
            raise UsageError(
                f"{chosen.cluster} is not a recorded cluster, so it cannot be replayed",
                hint=f"one of {', '.join(recorded_tables())}, or --landscape FILE.csv, or --launcher simulate",
            )
        if self.parallel < 1:
            raise UsageError(f"--parallel must be at least 1, not {self.parallel}")
        chosen._refuse_idle_options()
        parse_options(chosen.launcher_class, self.launcher_option, submits=submits)
        if self.landscape is not None and (self.cluster or self.nodes or self.gpus_per_node or self.nccl_version):
            raise UsageError(
                "--landscape brings its own cluster: leave out --cluster, --nodes, --gpus-per-node and --nccl-version",
                hint="change FILE.toml beside FILE.csv if they are wrong",
            )
        if len(self.hosts) != 1 or not self.hosts[0].startswith("@"):
            return chosen
        hosts = read_hostfile(Path(self.hosts[0][1:]))
        slots = tuple((host.label, host.slots) for host in hosts if host.slots is not None)
        return replace(chosen, hosts=tuple(host.label for host in hosts), host_slots=slots)

    def require_known_names(self) -> None:
        """Refuse a launcher or benchmark that does not exist, whatever else is missing here.

        Raises:
            UsageError: see above.
        """
        if self.launcher and self.launcher not in (names := (*NOT_LAUNCHED, *launcher_names())):
            raise UsageError(f"unknown launcher {self.launcher!r}", hint=f"one of {', '.join(names)}")
        # Finding third parties' benchmarks reads the metadata of every installed package.
        if self.benchmark not in (None, *BENCHMARKS) and self.benchmark not in benchmark_names():
            raise UsageError(f"unknown benchmark {self.benchmark!r}", hint=f"one of {', '.join(benchmark_names())}")

    def _with_launcher(
        self, environ: Mapping[str, str], gpus_visible: Callable[[], bool], *, demo: bool, for_nodes: bool
    ) -> Target:
        if self.launcher:
            if self.landscape is not None and not self.is_replayed:
                raise UsageError(f"--landscape is replayed, it cannot be combined with --launcher {self.launcher}")
            name = self.cluster
            if self.is_replayed and self.landscape is None:
                name = name or DEFAULT_RECORDED
            return replace(self, cluster=name, reason=ON_REQUEST)
        if self.landscape is not None:
            return replace(self, launcher="replay", reason="landscape given")
        if self.cluster in recorded_tables() and not for_nodes:
            return replace(self, launcher="replay", reason=f"{self.cluster} is a recorded cluster")
        if job := environ.get("SLURM_JOB_ID"):
            return replace(self, launcher="slurm", reason=f"found Slurm allocation {job}")
        if self.backend == "gloo":
            return replace(self, launcher="torchrun", reason="gloo needs no GPU")
        if gpus_visible():
            return replace(self, launcher="local", reason="found GPUs on this machine")
        reason = "no GPU or Slurm allocation found"
        if shutil.which("sbatch", path=environ.get("PATH", "")) and not for_nodes:
            reason += " (--launcher slurm submits jobs from here)"
        if demo and self.cluster is None and not for_nodes:
            return replace(self, launcher="replay", cluster=DEFAULT_RECORDED, reason=reason)
        raise UsageError(
            f"cannot measure here: {reason}",
            hint="run it on a GPU node or in an allocation; as a demonstration, "
            f"--cluster {DEFAULT_RECORDED} replays recorded timings and --launcher simulate uses NCCL's cost model",
        )

    def _refuse_idle_options(self) -> None:
        """Refuse options that would silently have no effect where nothing is launched."""
        if self.is_launched:
            return
        untouched, offered = Target(), options_of(Target)
        idle = [name for name, option in offered.items() if option.of_launches]
        if self.is_replayed:
            idle.append("parallel")
        for name in idle:
            if getattr(self, name) != getattr(untouched, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} does not apply to {self.origin.value} times ({self.reason})",
                    hint="choose a real launcher with --launcher",
                )

    @property
    def launcher_class(self) -> type[Launcher]:
        """Return the class of its launcher; `Launcher` itself, with its defaults, where nothing is launched."""
        if self.launcher and self.is_launched:
            return launcher_class(self.launcher)
        return Launcher

    @property
    def launcher_options(self) -> dict[str, Any]:
        """Return the values of `launcher_option`, as `parse_options` does.

        Raises:
            UsageError: the launcher has no such option, or cannot use its value.
        """
        return parse_options(self.launcher_class, self.launcher_option)

    @property
    def origin(self) -> TimesOrigin:
        """Return the origin of the times of its trials."""
        return NOT_LAUNCHED.get(self.launcher, TimesOrigin.MEASURED)

    @property
    def is_launched(self) -> bool:
        """Return True if trials are commands that a launcher starts."""
        return self.origin is TimesOrigin.MEASURED

    @property
    def is_replayed(self) -> bool:
        """Return True if recorded times take the place of launches."""
        return self.origin is TimesOrigin.RECORDED

    @property
    def is_simulated(self) -> bool:
        """Return True if times of a model take the place of launches."""
        return self.origin is TimesOrigin.SIMULATED

    def lacks_allocation(self, environ: Mapping[str, str]) -> bool:
        """Return True if trials need an allocation that this process is not in."""
        variable = self.launcher_class.job_variable
        return bool(variable) and not environ.get(variable)

    @property
    def scratch_is_shared(self) -> bool:
        """Return True if the nodes can read and write the folder in which this machine makes temporary files."""
        return self.scratch is not None or self.launcher_class.shares_files

    @property
    def benchmark_name(self) -> str:
        """Return the benchmark: as asked, else the one of the backend, else the one that the launcher can start."""
        is_torch = self.backend == "gloo" or self.launcher_class.needs_torch
        return self.benchmark or ("torch_collectives" if is_torch else "nccl_tests")

    @property
    def is_gloo(self) -> bool:
        """Return True if PyTorch's gloo takes the place of NCCL."""
        return self.benchmark_name == "torch_collectives" and self.backend == "gloo"

    @property
    def _may_use_plugin(self) -> bool:
        """Return True if the ranks can receive tables from here, and NCCL can load the plugin."""
        tests_receive = self.benchmark_name == "nccl_tests" and self.scratch_is_shared and not self.is_in_container
        receive = self.benchmark_name == "torch_collectives" or tests_receive
        return receive and not self.is_gloo and self.launcher_class.reaches_back

    @property
    def is_in_container(self) -> bool:
        """Return True if trials run in a container image that was named."""
        return "container" in self.launcher_options

    @property
    def how_with_plugin(self) -> str:
        """Return the options that make the tuner plugin force the settings, where variables do it."""
        if not self._may_use_plugin:
            needed = {
                "--benchmark torch_collectives": self.benchmark_name != "torch_collectives",
                "--backend nccl": self.backend != "nccl",
                f"a launcher other than {self.launcher}": not self.launcher_class.reaches_back,
            }
            return f"the tuner plugin can, with {' and '.join(word for word, lacks in needed.items() if lacks)}"
        if self.through == "variables" or self.is_in_container or self.benchmark_name == "nccl_tests":
            return "--through plugin can"
        return "`ncclt admin plugin build` makes it possible"

    def plugin(self, environ: Mapping[str, str]) -> Path | None:
        """Return the tuner plugin through which settings are forced; None = variables force them.

        Containers have files of their own, so there it must be asked for.

        Raises:
            UsageError: it is requested and cannot be found.
        """
        unasked = self.through is None and (self.is_in_container or self.benchmark_name == "nccl_tests")
        if self.through in ("variables", "options") or unasked or not self._may_use_plugin:
            return None
        plugin = find_plugin(environ)
        if plugin is None and self.through == "plugin":
            raise UsageError("the tuner plugin was not found", hint="`ncclt admin plugin build` makes it; it needs gcc")
        return plugin

    def require(self, cluster: Cluster) -> None:
        """Refuse what cannot run, before any command runs on the nodes.

        Raises:
            UsageError: launcher, benchmark, cluster and options do not fit together.
        """
        name, benchmark, launcher = self.launcher, self.benchmark_name, self.launcher_class
        if cluster.nodes > 1 and launcher.shares_files:
            raise UsageError(
                f"--launcher {name} measures this machine alone, not {cluster.nodes} nodes",
                hint="use --nodes 1, or --launcher slurm, mpirun, ssh or kubernetes",
            )
        if launcher.needs_torch and benchmark == "nccl_tests":
            raise UsageError(
                f"--launcher {name} starts processes of PyTorch, nccl-tests across them needs MPI",
                hint="use --benchmark torch_collectives, or --launcher mpirun or slurm",
            )
        if not launcher.starts_ranks and benchmark == "torch_collectives":
            raise UsageError(
                f"--launcher {name} starts one process, torch_collectives needs one for each GPU",
                hint="use --launcher torchrun",
            )
        if self.backend == "gloo" and benchmark != "torch_collectives":
            raise UsageError(f"--backend gloo does not apply to --benchmark {benchmark}", hint="leave --benchmark out")
        if self.persistent and not (launcher.reaches_back and benchmark == "torch_collectives"):
            what = f"--benchmark {benchmark}" if launcher.reaches_back else f"--launcher {name}"
            raise UsageError(
                f"--persistent cannot be combined with {what}: its ranks cannot be kept between trials",
                hint="use --benchmark torch_collectives with --launcher torchrun, mpirun, slurm or ssh",
            )
        if self.through == "plugin" and not self._may_use_plugin:
            raise UsageError(
                "--through plugin needs ranks that receive their table from here, and NCCL to load the plugin",
                hint="nccl_tests need --scratch with a folder that all nodes share, and no container; else use "
                "--benchmark torch_collectives --backend nccl with --launcher torchrun, mpirun, slurm or ssh",
            )
        for option, given in (("--max-commands", self.max_commands), ("--nccl-tests", self.nccl_tests)):
            if given is not None and benchmark != "nccl_tests":
                raise UsageError(f"{option} does not apply to --benchmark {benchmark}", hint="use it with nccl_tests")
        if self.beside is not None and benchmark != "torch_collectives":
            raise UsageError("--beside needs --benchmark torch_collectives")
        if self.hosts and (launcher.shares_files or launcher.chooses_nodes):
            raise UsageError(f"--hosts cannot be combined with --launcher {name}", hint="use mpirun, ssh or slurm")
