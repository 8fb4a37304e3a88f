"""The options that say where trials run, for every command that launches some."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.errors import UsageError

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.workload import Workload
    from ncclt.measure.target import Place
    from ncclt.measure.testbed import LauncherChoice, Testbed
    from ncclt.store import Store

DEFAULT_CLUSTER = "leonardo"
"""The cluster of the paper that ncclt grew from; meant only where trials are simulated."""

ClusterName = Annotated[
    str | None,
    typer.Option(
        envvar="NCCLT_CLUSTER",
        help="Name of the cluster, see `ncclt cluster list`. "
        f"Default: {DEFAULT_CLUSTER} where trials are simulated; a landscape brings its own.",
    ),
]
Nodes = Annotated[int | None, typer.Option(help="Nodes of the job.")]
GpusPerNode = Annotated[int | None, typer.Option(help="GPUs per node of the job.")]
NcclVersionName = Annotated[str | None, typer.Option(help="NCCL version of the job, if it is not the cluster's.")]
LauncherName = Annotated[
    str | None,
    typer.Option(
        envvar="NCCLT_LAUNCHER",
        help="Where trials run: simulate, replay, local, torchrun, mpirun, slurm, ssh, kubernetes. Default: slurm in "
        "an allocation, local where GPUs are visible, else simulate; it says which and why.",
    ),
]
Landscape = Annotated[Path | None, typer.Option(help="CSV of recorded measurements to replay instead of launching.")]
Where = Annotated[
    list[str] | None,
    typer.Option(help="Take only rows of the landscape with COLUMN=VALUE (patterns with * allowed); repeatable."),
]
BenchmarkName = Annotated[
    str | None,
    typer.Option(
        help="What runs: nccl_tests, or torch_collectives where there is PyTorch and no nccl-tests. "
        "Default: torch_collectives under torchrun and ssh, else nccl_tests."
    ),
]
Backend = Annotated[str, typer.Option(help="Backend of torch_collectives: nccl or gloo.")]
NcclTestsFolder = Annotated[
    Path | None, typer.Option("--nccl-tests", help="Folder of the nccl-tests programs; default: PATH.")
]
MaxCommands = Annotated[
    int | None,
    typer.Option(
        help="Commands of nccl-tests per launch at most; sizes that then have no row of their own are interpolated "
        "log-log between measured ones, and marked. Default: every size is measured."
    ),
]
Beside = Annotated[
    str | None, typer.Option(help="gemm: a matrix product runs beside the collectives (torch_collectives).")
]
Hosts = Annotated[str | None, typer.Option(help="Nodes to use, comma-separated (mpirun, ssh, slurm).")]
HostFile = Annotated[Path | None, typer.Option("--hostfile", help="File with one node per line (mpirun, ssh).")]
Parallel = Annotated[
    int,
    typer.Option(
        help="Trials of the search at once, each on nodes of its own; the finalists are measured again alone."
    ),
]
Python = Annotated[str, typer.Option(help="Python on the nodes, with PyTorch (torch_collectives).")]
Container = Annotated[str | None, typer.Option(help="Container image of the trials (slurm with pyxis, kubernetes).")]
Namespace = Annotated[str | None, typer.Option(help="Namespace of the jobs (kubernetes).")]
Kubernetes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WORD=VALUE",
        help="What the pods want: resource.rdma/hca=8, node.pool=h100, service-account=NAME, runtime=NAME, ssh-port=N, "
        "pending=SECONDS; repeatable.",
    ),
]
LauncherArg = Annotated[
    list[str] | None,
    typer.Option("--launcher-arg", help="Argument given to mpirun, srun, kubectl or torchrun unchanged; repeatable."),
]
SshOption = Annotated[
    list[str] | None, typer.Option("--ssh-option", help="Argument given to ssh itself unchanged; repeatable.")
]
Scratch = Annotated[
    Path | None,
    typer.Option(help="Folder that this machine and all nodes share; results are then read from files there."),
]
KeepEnv = Annotated[
    bool, typer.Option("--keep-env", help="Let NCCL_* variables of this shell reach the trials, the default's too.")
]
Through = Annotated[
    str | None,
    typer.Option(
        help="How settings are forced: variables, or plugin (torch_collectives; what is measured is then what a tuner "
        "table delivers, LL128 included). Default: plugin with --persistent where `ncclt plugin path` finds it."
    ),
]
Persistent = Annotated[
    bool,
    typer.Option(
        "--persistent",
        help="Start the ranks of the search once and send them one trial after another (torch_collectives); finalists "
        "and proof are measured by fresh ranks in any case.",
    ),
]


_OF_LAUNCHES = (
    "benchmark", "backend", "nccl_tests", "max_commands", "beside", "hosts", "hostfile", "python", "container",
    "namespace", "kubernetes", "launcher_arg", "ssh_option", "scratch", "keep_env", "persistent", "through",
)  # fmt: skip
"""Options, by the names of their fields, that only concern real launches."""

_NOT_LAUNCHED_WORDS = {"simulate": "simulated", "replay": "replayed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedOptions:
    """What a command was told about where trials run; the fields are the options of the same names."""

    cluster: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    nccl_version: str | None = None
    launcher: str | None = None
    landscape: Path | None = None
    where: tuple[str, ...] = ()
    benchmark: str | None = None
    backend: str = "nccl"
    nccl_tests: Path | None = None
    max_commands: int | None = None
    beside: str | None = None
    hosts: str | None = None
    hostfile: Path | None = None
    parallel: int = 1
    python: str = sys.executable
    container: str | None = None
    namespace: str | None = None
    kubernetes: tuple[str, ...] = ()
    launcher_arg: tuple[str, ...] = ()
    ssh_option: tuple[str, ...] = ()
    scratch: Path | None = None
    keep_env: bool = False
    persistent: bool = False
    through: str | None = None

    def choice(self) -> LauncherChoice:
        """Return where trials run and why there.

        Raises:
            UsageError: the options contradict each other.
        """
        from ncclt.measure.testbed import choose_launcher, gpus_visible

        choice = choose_launcher(
            self.launcher, landscape=self.landscape is not None, environ=os.environ, gpus_visible=gpus_visible
        )
        if choice.name == "replay" and self.landscape is None:
            raise UsageError("--launcher replay needs --landscape FILE.csv")
        if self.where and self.landscape is None:
            raise UsageError("--where needs --landscape")
        if self.hosts and self.hostfile:
            raise UsageError("give --hosts or --hostfile, not both")
        if self.parallel < 1:
            raise UsageError(f"--parallel must be at least 1, not {self.parallel}")
        return choice

    def refuse_what_is_idle(self, choice: LauncherChoice) -> None:
        """Refuse options that would silently mean nothing where nothing is launched.

        Raises:
            UsageError: naming the first of them.
        """
        from ncclt.measure.testbed import NOT_LAUNCHED

        if choice.name not in NOT_LAUNCHED:
            return
        untouched = TestbedOptions()
        given = [name for name in _OF_LAUNCHES if getattr(self, name) != getattr(untouched, name)]
        if choice.name == "replay" and self.parallel > 1:
            given.append("parallel")
        if given:
            option = given[0].replace("_", "-")
            raise UsageError(
                f"--{option} does not apply where trials are only {_NOT_LAUNCHED_WORDS[choice.name]} ({choice.reason})",
                hint="choose a real launcher with --launcher",
            )

    def place(self, choice: LauncherChoice) -> Place:
        """Return how commands are launched on real nodes."""
        from ncclt.launch.hostfile import read_hostfile
        from ncclt.measure.target import Place

        hosts = tuple(name.strip() for name in (self.hosts or "").split(",") if name.strip())
        if self.hostfile:
            hosts = tuple(host.label for host in read_hostfile(self.hostfile))
        return Place(
            launcher=choice.name,
            reason=choice.reason,
            benchmark=self.benchmark,
            backend=self.backend,
            nccl_tests=self.nccl_tests,
            max_commands=self.max_commands,
            beside=self.beside,
            hosts=hosts,
            parallel=self.parallel,
            python=self.python,
            container=self.container,
            namespace=self.namespace,
            kubernetes=self.kubernetes,
            extra=self.launcher_arg,
            ssh_options=self.ssh_option,
            scratch=self.scratch,
            keep_env=self.keep_env,
            persistent=self.persistent,
            through=self.through,
        )

    def chosen_cluster(self, choice: LauncherChoice, store: Store) -> Cluster:
        """Return the cluster that is measured, sized to the job.

        Raises:
            UsageError: none was named, and what is here cannot be known.
        """
        if self.cluster is None and choice.name != "simulate":
            from ncclt.measure.launched_testbed import cluster_here

            return cluster_here(
                nodes=self.nodes or 1,
                gpus_per_node=self.gpus_per_node,
                nccl_version=self.nccl_version,
                backend=self.backend,
            )
        return store.cluster(self.cluster or DEFAULT_CLUSTER).sized(
            nodes=self.nodes, gpus_per_node=self.gpus_per_node, nccl_version=self.nccl_version
        )


def open_testbed(
    options: TestbedOptions,
    choice: LauncherChoice,
    store: Store,
    workload: Workload,
    *,
    seed: int,
    ask: bool = True,
    ask_driver: bool = True,
) -> Testbed:
    """Return the place to measure that a command was told.

    Args:
        options: of the command.
        choice: of these options.
        store: knows the clusters.
        workload: what will be measured.
        seed: of simulated noise.
        ask: whether programs may be started there to ask what they can do.
        ask_driver: whether the nodes are asked for their driver too.
    """
    options.refuse_what_is_idle(choice)
    from ncclt.measure.launched_testbed import launched_testbed
    from ncclt.measure.testbed import replayed_testbed, simulated_testbed

    if options.landscape is not None:
        if options.cluster or options.nodes or options.gpus_per_node or options.nccl_version:
            raise UsageError(
                "--landscape brings its own cluster: leave out --cluster, --nodes, --gpus-per-node and --nccl-version",
                hint="choose its rows with --where COLUMN=VALUE",
            )
        return replayed_testbed(options.landscape, _conditions(options.where), seed=seed, reason=choice.reason)
    cluster = options.chosen_cluster(choice, store)
    if choice.name == "simulate":
        return simulated_testbed(cluster, seed=seed, reason=choice.reason, parallel=options.parallel)
    place = options.place(choice)
    if ask and ask_driver and options.backend == "nccl":
        from ncclt.measure.driver import drivers_of_nodes

        # What the nodes say goes before what the cluster's file said when it was written.
        told = drivers_of_nodes(cluster, place, environ=os.environ).text
        cluster = replace(cluster, driver=told or cluster.driver)
    return launched_testbed(cluster, workload.collectives, place, environ=os.environ, ask=ask)


def _conditions(where: tuple[str, ...]) -> dict[str, str]:
    conditions: dict[str, str] = {}
    for text in where:
        column, equals, value = text.partition("=")
        if not equals or not column.strip():
            raise UsageError(f"--where {text!r} is not COLUMN=VALUE", hint="for example --where gpus=4")
        conditions[column.strip()] = value.strip()
    return conditions
