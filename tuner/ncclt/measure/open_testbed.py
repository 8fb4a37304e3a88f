"""From a target to the testbed that measures it: launcher and benchmark on real nodes, a replay or a simulation."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ncclt.core.cluster import NO_GPU, Cluster
from ncclt.core.message import Collective
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.trial import Runner
from ncclt.core.workload import Workload
from ncclt.errors import UsageError
from ncclt.launch.hostfile import granted_hosts
from ncclt.launch.launcher import JobShape, Launcher
from ncclt.measure import LaunchedRunner, PersistentRunner, SamplingLimit
from ncclt.measure.benchmarks import create_benchmark
from ncclt.measure.benchmarks.benchmark import Benchmark
from ncclt.measure.limits import Timeouts
from ncclt.measure.runner import RunnerParts, ask_through
from ncclt.measure.table_runner import TableRunner
from ncclt.measure.target import DEFAULT_CLUSTER, Target
from ncclt.measure.testbed import Testbed, notes_on_parallel, replayed_testbed, simulated_testbed
from ncclt.nccl.compile import compile_policy, variables_for_setting
from ncclt.nccl.driver_version import DRIVER_FILE, drivers_in
from ncclt.nccl.switching import find_forcing_problem
from ncclt.nccl.tuner_plugin import DELEGATE_VARIABLE
from ncclt.nccl.variables import (
    OF_ENVIRONMENT,
    VariableClass,
    classify,
    masked,
    read_environment,
    site_variables,
    split_variables,
)
from ncclt.user_dirs import recorded_tables

CONTROLLER_VARIABLE = "NCCLT_CONTROLLER_HOST"
"""Name or address of this machine as the ranks reach it; empty = its own name."""

_GLOO_IS_INERT = "backend gloo: NCCL takes no part, so none of its variables can change anything here"

_BUDGET_S, _GLOO_BUDGET_S = 0.5, 0.2
"""Time that torch_collectives spends on one message at most; times of gloo decide nothing."""


def launched_testbed(
    cluster: Cluster,
    collectives: frozenset[Collective],
    target: Target,
    *,
    environ: Mapping[str, str],
    ask: bool = True,
) -> Testbed:
    """Return the testbed of real nodes.

    Args:
        cluster: sized to the job.
        target: resolved.
        ask: run programs on the nodes to find out what they support.

    Raises:
        UsageError: launcher, benchmark, cluster and nodes do not fit together.
    """
    target.require(cluster)
    if target.is_gloo:
        cluster = on_cpus(cluster)
    plugin = target.plugin(environ)
    host_sets = _host_sets(cluster, target, environ)
    # The launcher that is asked for features serves the first runner too.
    first = create_launcher(cluster, target, host_sets[0], environ=environ)
    benchmark, benchmark_notes = choose_benchmark(cluster, target, first, collectives, ask=ask)
    runners = _Runners(
        cluster=cluster,
        collectives=collectives,
        target=target,
        environ=environ,
        plugin=plugin,
        benchmark=benchmark,
        launchers={host_sets[0]: first},
    )
    forcing_problem = partial(find_forcing_problem, version=cluster.version, collectives=collectives)

    def why_not(setting: Setting) -> str:
        why = forcing_problem(setting, plugin=plugin is not None)
        by_plugin = why and plugin is None and not forcing_problem(setting, plugin=True)
        return f"{why} ({target.how_with_plugin})" if by_plugin else why

    today = () if target.is_gloo else tuple(split_variables(environ).tuning.items())
    runner, *others = (runners.create(hosts, plugin) for hosts in host_sets)
    return Testbed(
        runner=runner,
        by_today=runners.create(host_sets[0], None, own_tuning=True) if today else None,
        today=tuple((name, masked(name, value)) for name, value in today),
        by_variables=runners.create(host_sets[0], None) if plugin is not None else None,
        others=tuple(others),
        persistent=tuple(runners.create_persistent(hosts, plugin) for hosts in host_sets) if target.persistent else (),
        reason=target.reason,
        covers=lambda _message: True,
        why_not=why_not,
        beside_compute=target.beside is not None,
        notes=(*benchmark_notes, *_notes(target, environ, plugin)),
        inert=_GLOO_IS_INERT if target.is_gloo else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runners:
    """Runners of one study on real nodes: they share the benchmark, timeouts and the limit of samples.

    Attributes:
        plugin: forces the settings; None = variables do.
        launchers: made already, by hosts; each serves one runner.
    """

    cluster: Cluster
    collectives: frozenset[Collective]
    target: Target
    environ: Mapping[str, str]
    plugin: Path | None
    benchmark: Benchmark
    launchers: dict[tuple[str, ...], Launcher]
    timeouts: Timeouts = field(default_factory=Timeouts)
    sampling: SamplingLimit = field(default_factory=SamplingLimit)

    def create(self, hosts: tuple[str, ...], plugin: Path | None, *, own_tuning: bool = False) -> Runner:
        """Return a runner of fresh ranks; `own_tuning` as for `create_launcher`."""
        target = self.target
        if target.benchmark_name == "nccl_tests" and plugin is not None:
            return TableRunner(**self._parts(hosts, plugin))
        # Settings that only the plugin can force need it in fresh ranks as well, and variables the same ranks.
        if target.benchmark_name == "torch_collectives" and self.plugin is not None:
            return self.create_persistent(hosts, plugin, persistent=False, own_tuning=own_tuning)
        return LaunchedRunner(
            scratch_is_shared=target.scratch_is_shared, **self._parts(hosts, None, own_tuning=own_tuning)
        )

    def create_persistent(
        self, hosts: tuple[str, ...], plugin: Path | None, *, persistent: bool = True, own_tuning: bool = False
    ) -> PersistentRunner:
        """Return a runner whose ranks stay from trial to trial, if `persistent`."""
        host = self.environ.get(CONTROLLER_VARIABLE, "")
        parts = self._parts(hosts, plugin, own_tuning=own_tuning)
        return PersistentRunner(host=host, persistent=persistent, **parts)

    def _parts(self, hosts: tuple[str, ...], plugin: Path | None, *, own_tuning: bool = False) -> RunnerParts:
        cluster, target, environ = self.cluster, self.target, self.environ
        launcher = None if own_tuning else self.launchers.pop(hosts, None)
        return RunnerParts(
            benchmark=self.benchmark,
            cluster=cluster,
            launcher=launcher or create_launcher(cluster, target, hosts, environ=environ, own_tuning=own_tuning),
            variables=self._compile_setting,
            policy_variables=self._compile_policy,
            # Under today's settings the default's launches have other times.
            timeouts=Timeouts() if own_tuning else self.timeouts,
            sampling=SamplingLimit() if own_tuning else self.sampling,
            scratch=target.scratch,
            place=",".join(hosts),
            plugin=plugin,
            delegate=environ.get(DELEGATE_VARIABLE, ""),
        )

    def _compile_setting(self, setting: Setting) -> Mapping[str, str]:
        compiled = variables_for_setting(setting, version=self.cluster.version, collectives=self.collectives)
        return dict(compiled.variables)

    def _compile_policy(self, policy: Policy) -> Mapping[str, str] | None:
        compiled = compile_policy(policy, version=self.cluster.version, collectives=self.collectives)
        return dict(compiled.variables) if compiled.complete else None


def create_launcher(
    cluster: Cluster, target: Target, hosts: tuple[str, ...], *, environ: Mapping[str, str], own_tuning: bool = False
) -> Launcher:
    """Return the launcher of one set of nodes; empty = those of the allocation, or this machine.

    Args:
        cluster: sized to the job.
        target: resolved.
        hosts: where it launches.
        environ: the process environment, whose variables of the site every launch has.
        own_tuning: launches have the user's own tuning too.

    Raises:
        UsageError: it cannot start such a job.
    """
    launcher = target.launcher_class
    per_node = cluster.gpus_per_node if launcher.starts_ranks else 1
    own = split_variables(environ)
    for name, slots in target.host_slots:
        if name in hosts and slots < per_node:
            raise UsageError(
                f"{name} has slots={slots} in the host file, fewer than the {per_node} processes per node",
                hint="use --gpus-per-node, or leave the host out",
            )
    return launcher.create(
        shape=JobShape(nodes=cluster.nodes, processes_per_node=per_node, hosts=hosts),
        options=target.launcher_options,
        python=target.python,
        uses_mpi=target.benchmark_name != "torch_collectives",
        keep_env=own.of_job if own_tuning else own.of_trials,
        extra=target.launcher_arg,
        environment=environ,
    )


def _host_sets(cluster: Cluster, target: Target, environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the nodes of each of the launches that run at once, disjoint.

    Raises:
        UsageError: there are fewer nodes than that takes.
    """
    hosts = target.hosts
    if not hosts and target.parallel > 1 and target.launcher_class.uses_allocation:
        hosts = granted_hosts(environ)
    wanted = cluster.nodes * target.parallel
    if not hosts and target.parallel == 1:
        return [()]
    if len(hosts) < wanted:
        raise UsageError(
            f"{target.parallel} trials at once on {cluster.nodes} nodes each need {wanted} nodes, "
            f"{len(hosts) or 'none'} are named",
            hint="name them with --hosts; in a job of Slurm, PBS, LSF or Grid Engine they are known",
        )
    return [hosts[first : first + cluster.nodes] for first in range(0, wanted, cluster.nodes)]


def choose_benchmark(
    cluster: Cluster, target: Target, launcher: Launcher, collectives: frozenset[Collective], *, ask: bool = True
) -> tuple[Benchmark, tuple[str, ...]]:
    """Return the benchmark, and notes on it.

    Args:
        cluster: sized to the job.
        target: resolved.
        launcher: runs the programs once to find out what they support.
        ask: run programs on the nodes to find out what they support.

    Raises:
        UsageError: its programs cannot be found, or cannot measure such a job.
    """
    name = target.benchmark_name
    if name == "torch_collectives":
        torch = create_benchmark(
            name,
            backend=target.backend,
            python=target.python,
            beside=target.beside,
            budget_s=_GLOO_BUDGET_S if target.is_gloo else _BUDGET_S,
        )
        return torch, (f"{_GLOO_IS_INERT}: this exercises the pipeline and tunes nothing",) if target.is_gloo else ()
    if name != "nccl_tests":
        return create_benchmark(name), ()
    from ncclt.measure.benchmarks.nccl_tests.features import LEAST, detect

    try:
        features = detect(target.nccl_tests, collectives=collectives, run=ask_through(launcher) if ask else None)
    except UsageError:
        if ask:
            raise
        features = LEAST
    starts_ranks = target.launcher_class.starts_ranks
    if starts_ranks and features.mpi is False:
        raise UsageError(
            f"these nccl-tests were built without MPI: under --launcher {target.launcher} each process would run alone",
            hint="build them with `make MPI=1`, or use --benchmark torch_collectives",
        )
    tests = create_benchmark(
        name,
        folder=target.nccl_tests,
        features=features,
        processes=cluster.world_size if starts_ranks else 1,
        gpus_per_process=1 if starts_ranks else cluster.gpus_per_node,
        max_commands=target.max_commands,
    )
    return tests, (f"nccl-tests {features.version or 'version unknown'}: {features.origin}",)


def describe_variables(target: Target, environ: Mapping[str, str]) -> list[str]:
    """Return a note for each kind of NCCL's variables in an environment, with what trials make of it."""
    own = split_variables(environ)
    in_which = "in no trial" if target.is_gloo else "only in trials of the A/B test"
    parts = {
        "kept in every trial (variables of the site)": own.site,
        "kept in every trial (unknown to ncclt)": own.unknown,
        f"your own tuning, {in_which}": own.tuning,
        "removed from trials (debugging)": own.debug,
    }
    notes = [f"{kind}: {', '.join(variables)}" for kind, variables in parts.items() if variables]
    notes += [
        f"{source} sets {name}={value} in every trial, the default's too"
        for name, (value, source) in sorted(read_environment(environ).items())
        if source != OF_ENVIRONMENT and classify(name)[0] is VariableClass.TUNING
    ]
    return notes


def _notes(target: Target, environ: Mapping[str, str], plugin: Path | None) -> tuple[str, ...]:
    notes = [*describe_variables(target, environ), *notes_on_parallel(target.parallel)]
    if target.persistent:
        notes.append("the search used persistent ranks; finalists and validation used fresh ones")
    if plugin is not None:
        notes.append(f"algorithm, protocol and channels were forced per call by {plugin}")
        notes.append("plain variables were validated without the plugin")
    elif target.persistent:
        how = "" if target.is_gloo else "; `ncclt admin plugin build` makes most of them cheaper and LL128 possible"
        notes.append(f"every other algorithm and protocol took a new communicator{how}")
    return tuple(notes)


def cluster_here(target: Target) -> Cluster:
    """Return the cluster to measure without --cluster: gloo processes on the CPUs of this machine.

    Raises:
        UsageError: GPUs are to be measured: their links must be known to judge and to serve the result.
    """
    if target.backend != "gloo":
        raise UsageError(
            "--cluster is needed to say what is measured",
            hint="`ncclt cluster list` shows the known ones; `ncclt cluster detect` describes this machine",
        )
    if (target.nodes or 1) > 1:
        raise UsageError("several nodes need a --cluster, which names their network", hint="see `ncclt cluster add`")
    host = re.sub(r"[^a-z0-9-]+", "-", platform.node().lower()).strip("-") or "machine"
    return Cluster(
        name=f"cpus-of-{host}",
        nodes=1,
        gpus_per_node=target.gpus_per_node or 2,
        gpu=NO_GPU,
        compute_capability=80,
        link_class="shm",
        link_gbps=10.0,
        nccl_version=target.nccl_version or _ANY_NCCL,
        description="gloo processes on the CPUs of one machine; no GPU, no NCCL",
        sources=("created by ncclt because --cluster was omitted",),
    )


def on_cpus(cluster: Cluster) -> Cluster:
    """Return a cluster under a name and fingerprint of its own: times of gloo must never be served for its GPUs."""
    if cluster.gpu == NO_GPU:
        return cluster
    return replace(cluster, name=f"{cluster.name}-cpus", gpu=NO_GPU)


_ANY_NCCL = "2.28.9"
"""Decides only which variables are tried; gloo reads none of them."""


def ask_drivers(
    cluster: Cluster, target: Target, *, environ: Mapping[str, str], root: Path = Path("/")
) -> tuple[str, str]:
    """Ask every node for its driver; never fails if one of them does not answer.

    Returns:
        the NVIDIA drivers as they are kept, `570.86.15`, or with commas where nodes differ; and why none is known, one
        sentence, empty where one is.

    Args:
        cluster: sized to the job.
        target: resolved.
        root: of the file system of this machine, another one in tests.
    """
    if target.launcher_class.shares_files:
        path = root / DRIVER_FILE.lstrip("/")
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return "", f"{path} cannot be read: {error.strerror}"
        why_unknown = f"{path} has an unknown format"
    elif target.launcher_class.chooses_nodes:
        return "", f"nodes cannot be queried with --launcher {target.launcher}"
    else:
        try:
            launcher = create_launcher(cluster, target, target.hosts[: cluster.nodes], environ=environ)
        except UsageError as error:
            return "", error.message
        text = ask_through(launcher)(["cat", DRIVER_FILE]).stdout
        why_unknown = f"no node showed {DRIVER_FILE}"
    drivers = ", ".join(drivers_in(text))
    return drivers, "" if drivers else why_unknown


def choose_cluster(target: Target, find_cluster: Callable[[str], Cluster]) -> Cluster:
    """Return the cluster that is measured, sized to the job.

    Args:
        target: resolved.
        find_cluster: returns the cluster of a name, as that of a store does.

    Raises:
        UsageError: none was named, and the hardware of this machine is not known.
        NotFoundError: no cluster has that name.
    """
    if target.cluster is None and not target.is_simulated:
        return cluster_here(target)
    return find_cluster(target.cluster or DEFAULT_CLUSTER).sized(
        nodes=target.nodes, gpus_per_node=target.gpus_per_node, nccl_version=target.nccl_version
    )


def open_testbed(
    target: Target,
    find_cluster: Callable[[str], Cluster],
    workload: Workload,
    *,
    environ: Mapping[str, str],
    seed: int,
    ask: bool = True,
    ask_driver: bool = True,
) -> Testbed:
    """Return the target ready to measure.

    Args:
        target: resolved.
        find_cluster: returns the cluster of a name, as that of a store does.
        ask: run programs on the nodes to find out what they support.
        ask_driver: read the driver version of the nodes too.

    Raises:
        UsageError: launcher, benchmark, cluster and nodes do not fit together.
        NotFoundError: no cluster has that name.
        InputError: the landscape cannot be read.
    """
    if target.is_replayed:
        landscape = target.landscape
        if landscape is None:
            assert target.cluster is not None
            recorded = find_cluster(target.cluster).as_recorded(
                nodes=target.nodes,
                gpus_per_node=target.gpus_per_node,
                nccl_version=target.nccl_version,
                why=target.reason,
            )
            landscape = recorded_tables()[recorded.name]
        replayed = replayed_testbed(landscape, seed=seed, reason=target.reason)
        return replayed.forcing(workload.collectives, target.through)
    cluster = choose_cluster(target, find_cluster)
    if target.is_simulated:
        simulated = simulated_testbed(cluster, seed=seed, reason=target.reason, parallel=target.parallel)
        return simulated.forcing(workload.collectives, target.through)
    if ask and ask_driver and target.backend == "nccl":
        # The cluster's file may be older than the driver of the nodes.
        installed, _why_unknown = ask_drivers(cluster, target, environ=environ)
        cluster = replace(cluster, driver=installed or cluster.driver)
    if not target.is_gloo:
        cluster = replace(cluster, site_variables=site_variables(environ))
    launched = launched_testbed(cluster, workload.collectives, target, environ=environ, ask=ask)
    return launched.with_options_alone() if target.through == "options" else launched
