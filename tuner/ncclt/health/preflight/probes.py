"""The launches of a preflight: several at once on disjoint nodes where the launcher allows it, within a time limit.

The runners of parts of a real job, some of its nodes or GPUs, use the launcher and benchmark of the whole job. They are
not tested on a GPU; they are tested with a stand-in for nccl-tests.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.preflight import ProbeReading, Section
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Outcome, Runner, TrialResult
from ncclt.errors import HostLostError, UsageError
from ncclt.health.preflight.expectation import Expectation
from ncclt.launch.hostfile import granted_hosts
from ncclt.measure import LaunchedRunner, Timeouts
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.measure.open_testbed import choose_benchmark, create_launcher
from ncclt.measure.target import Target

RunnerFor = Callable[[tuple[str, ...], tuple[int, ...]], Runner]
"""Returns the runner of some nodes, or of some GPUs of one node; no GPUs = all of them."""

DTYPE = "float32"
"""The default of nccl-tests, so that figures can be compared with published ones."""


class DeadlineExceeded(Exception):  # noqa: N818 -- ends an examination and is no failure
    """The time limit of a preflight leaves no time for the next launch; ends only the examination."""


class Probes:
    """Makes launches of all_reduce under the NCCL default and keeps their readings.

    Args:
        at_once: launches that may run at the same time, each on nodes of its own.
        time_s: time for all launches; None = no limit. A launch is begun only if one of usual length still fits.
        clock: seconds.
    """

    def __init__(
        self,
        runner_for: RunnerFor,
        expectation: Expectation,
        *,
        at_once: int = 1,
        time_s: float | None = None,
        clock: Callable[[], float],
        watch: Callable[[ProbeReading], None] = lambda _reading: None,
    ) -> None:
        self._runner_for = runner_for
        self._expectation = expectation
        self._at_once = at_once
        self._time_s = time_s
        self._clock = clock
        self._watch = watch
        self._began = clock()
        self.readings: list[ProbeReading] = []

    def of(self, section: Section) -> list[ProbeReading]:
        """Return the readings of a section, in order."""
        return [reading for reading in self.readings if reading.section == section]

    def measure(self, sections: Sequence[Section], sizes: Sequence[int] = ()) -> list[ProbeReading]:
        """Launch once in each section; no sizes = the one that is judged.

        Raises:
            DeadlineExceeded: too little time is left; the readings so far are kept.
        """
        readings: dict[int, ProbeReading] = {}
        for wave in self._plan_waves(sections):
            longest = max((reading.wall_s for reading in self.readings if reading.outcome is Outcome.OK), default=0.0)
            if self._time_s is not None and self._clock() - self._began + longest > self._time_s:
                launches = len(self.readings)
                raise DeadlineExceeded(f"ended after {launches} launches: the {self._time_s:g} s of --time are over")
            launched = self._launch([sections[at] for at in wave], sizes or (self._expectation.largest_bytes,))
            for at, reading in zip(wave, launched, strict=True):
                readings[at] = reading
                self.readings.append(reading)
                self._watch(reading)
        return [readings[at] for at in range(len(sections))]

    def _plan_waves(self, sections: Sequence[Section]) -> list[list[int]]:
        """Group sections that run at once: as many as are allowed and share no node."""
        waves: list[list[int]] = []
        for at, section in enumerate(sections):
            for wave in waves:
                if len(wave) < self._at_once and all(
                    {*section.hosts}.isdisjoint(sections[member].hosts) for member in wave
                ):
                    wave.append(at)
                    break
            else:
                waves.append([at])
        return waves

    def _launch(self, sections: Sequence[Section], sizes: Sequence[int]) -> list[ProbeReading]:
        runners = [self._runner_for(section.hosts, section.gpus) for section in sections]
        if len(sections) == 1:
            return [self._read(sections[0], runners[0], sizes)]
        with ThreadPoolExecutor(max_workers=len(sections)) as pool:
            try:
                return list(pool.map(lambda section, runner: self._read(section, runner, sizes), sections, runners))
            except BaseException:
                for runner in runners:
                    if kill := getattr(runner, "kill", None):
                        kill()
                raise

    def _read(self, section: Section, runner: Runner, sizes: Sequence[int]) -> ProbeReading:
        ranks = section.ranks(self._expectation.cluster.gpus_per_node)
        messages = probe_messages(sizes, ranks=ranks, nodes=len(section.hosts))
        repeat = len(self.of(section))
        try:
            result = runner.measure(DEFAULT, messages, repeat=repeat)
        except HostLostError as error:
            # Smaller parts will show which one it is.
            result = TrialResult(outcome=Outcome.CRASHED, detail=error.message)
        times = sorted((measurement.message.size_bytes, measurement.time_us) for measurement in result.measurements)
        return ProbeReading(
            section=section,
            ranks=ranks,
            repeat=repeat,
            outcome=result.outcome,
            times_us=tuple(times) if result.outcome is Outcome.OK else (),
            expected_gbps=self._expectation.gbps(section),
            detail=result.detail,
            wall_s=result.wall_s,
        )


def probe_messages(sizes: Sequence[int], *, ranks: int, nodes: int) -> list[Message]:
    """Return the messages of a launch on some nodes: one all_reduce per size, bytes."""
    return [
        Message(collective=Collective.ALL_REDUCE, dtype=DTYPE, size_bytes=size, group_size=ranks, spans_nodes=nodes > 1)
        for size in sizes
    ]


_VISIBLE = "CUDA_VISIBLE_DEVICES"


def hosts_here(cluster: Cluster, target: Target, *, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the nodes to examine: as named, those granted to this job, or this machine.

    Raises:
        UsageError: the launcher cannot choose nodes, or too few are named.
    """
    if target.launcher_class.chooses_nodes:
        raise UsageError(
            f"--launcher {target.launcher} chooses the nodes itself, so a preflight cannot compare them",
            hint="run it in the pods of a job, with --launcher ssh or mpirun",
        )
    hosts = target.hosts or (granted_hosts(environ) if target.launcher_class.uses_allocation else ())
    if not hosts and cluster.nodes == 1:
        return (platform.node(),)
    if len(hosts) < cluster.nodes:
        raise UsageError(
            f"{cluster.nodes} nodes are to be examined and {len(hosts) or 'none'} are named",
            hint="name them with --hosts; in a job of Slurm, PBS, LSF or Grid Engine they are known",
        )
    return hosts[: cluster.nodes]


def launched_runners(
    cluster: Cluster, target: Target, *, environ: Mapping[str, str], time_s: float | None = None, ask: bool = True
) -> tuple[Callable[[tuple[str, ...], tuple[int, ...]], LaunchedRunner], tuple[str, ...]]:
    """Return a function that makes the runner of some nodes or GPUs, and the notes about all of them.

    The programs' features are detected once, on all nodes. The duration of one launch limits the later ones of as many
    ranks, so that a hang costs a minute and not the generous timeout of the first launch.

    Args:
        cluster: sized to the job.
        target: resolved; its hosts are the whole job's.
        time_s: of the whole preflight; no launch gets more. None = no limit.
        ask: run programs on the nodes to find out what they support.

    Raises:
        UsageError: launcher, benchmark and cluster do not fit together.
    """
    target.require(cluster)
    launcher_class = target.launcher_class
    launcher = create_launcher(cluster, target, target.hosts[: cluster.nodes], environ=environ)
    benchmark, notes = choose_benchmark(cluster, target, launcher, frozenset({Collective.ALL_REDUCE}), ask=ask)
    timeouts = Timeouts(most_s=time_s)  # so that a hang is reported within the total limit, not after it

    def runner_for(hosts: tuple[str, ...], gpus: tuple[int, ...]) -> LaunchedRunner:
        part = cluster.sized(nodes=len(hosts), gpus_per_node=len(gpus) or None)
        sized = benchmark
        if isinstance(benchmark, NcclTests):
            ranks, gpus_each = (part.world_size, 1) if launcher_class.starts_ranks else (1, part.gpus_per_node)
            sized = replace(benchmark, processes=ranks, gpus_per_process=gpus_each)
        visible = {_VISIBLE: _list_visible(gpus, target, environ)} if gpus else {}
        named = () if launcher_class.shares_files else hosts
        return LaunchedRunner(
            benchmark=sized,
            launcher=create_launcher(part, target, named, environ=environ),
            cluster=part,
            variables=lambda _setting: visible,
            timeouts=timeouts,
            scratch=target.scratch,
            scratch_is_shared=target.scratch_is_shared,
        )

    return runner_for, notes


def _list_visible(gpus: tuple[int, ...], target: Target, environ: Mapping[str, str]) -> str:
    """Return CUDA's list of the GPUs to use; on this machine they count among those that are visible here."""
    local = [name for name in environ.get(_VISIBLE, "").split(",") if name and target.launcher_class.shares_files]
    return ",".join(local[gpu] if local else str(gpu) for gpu in gpus)
