"""The launches of a preflight: several at once on disjoint nodes where the launcher allows it, within a time limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol as Port
from typing import runtime_checkable

from ncclt.core.message import Collective, Message
from ncclt.core.preflight import ProbeReading, Section
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Outcome, Runner, TrialResult
from ncclt.errors import HostLostError
from ncclt.health.preflight.expectation import Expectation

RunnerFor = Callable[[tuple[str, ...], tuple[int, ...]], Runner]
"""Returns the runner of some nodes, or of some GPUs of one node; no GPUs = all of them."""

DTYPE = "float32"
"""The default of nccl-tests, so that figures can be compared with published ones."""


class TimeIsOverError(Exception):
    """The time limit of a preflight leaves no time for the next launch; ends only the examination."""


@runtime_checkable
class Killable(Port):
    """A runner that can be ended from another thread."""

    def kill(self) -> None:
        """End what `measure` is waiting for, at once."""
        ...


class Probes:
    """Makes launches of all_reduce under the NCCL default and keeps their readings.

    Args:
        runner_for: makes the runner of a section.
        expectation: what to expect of it.
        simulated: the runners invent their times.
        at_once: launches that may run at the same time, each on nodes of its own.
        time_s: time for all launches; None = no limit. A launch is begun only if one of usual length still fits.
        clock: seconds.
        watch: receives every reading.
    """

    def __init__(
        self,
        runner_for: RunnerFor,
        expectation: Expectation,
        *,
        simulated: bool,
        at_once: int = 1,
        time_s: float | None = None,
        clock: Callable[[], float],
        watch: Callable[[ProbeReading], None] = lambda _reading: None,
    ) -> None:
        self._runner_for = runner_for
        self._expectation = expectation
        self.simulated = simulated
        self._at_once = at_once
        self._time_s = time_s
        self._clock = clock
        self._watch = watch
        self._began = clock()
        self.readings: list[ProbeReading] = []
        self._by_section: dict[Section, list[ProbeReading]] = {}

    def of(self, section: Section) -> list[ProbeReading]:
        """Return the readings of a section, in order."""
        return list(self._by_section.get(section, ()))

    def measure(self, sections: Sequence[Section], sizes: Sequence[int] = ()) -> list[ProbeReading]:
        """Launch once in each section; no sizes = the one that is judged.

        Raises:
            TimeIsOverError: too little time is left; the readings so far are kept.
        """
        wanted = tuple(sizes) or (self._expectation.largest_bytes,)
        found: dict[int, ProbeReading] = {}
        for wave in self._waves(sections):
            self._check_time()
            for index, reading in zip(wave, self._launch([sections[i] for i in wave], wanted), strict=True):
                found[index] = reading
                self.readings.append(reading)
                self._by_section.setdefault(reading.section, []).append(reading)
                self._watch(reading)
        return [found[index] for index in range(len(sections))]

    def _waves(self, sections: Sequence[Section]) -> list[list[int]]:
        """Return which sections run at once: as many as are allowed and share no node."""
        waves: list[list[int]] = []
        busy: list[set[str]] = []
        for index, section in enumerate(sections):
            hosts = set(section.hosts)
            fits = (len(wave) < self._at_once and not taken & hosts for wave, taken in zip(waves, busy, strict=True))
            number = next((number for number, fit in enumerate(fits) if fit), None)
            if number is None:
                waves.append([index])
                busy.append(hosts)
            else:
                waves[number].append(index)
                busy[number] |= hosts
        return waves

    def _check_time(self) -> None:
        if self._time_s is None:
            return
        longest = max((reading.wall_s for reading in self.readings if reading.outcome is Outcome.OK), default=0.0)
        if self._clock() - self._began + longest > self._time_s:
            launches = len(self.readings)
            raise TimeIsOverError(f"ended after {launches} launches: the {self._time_s:g} s of --time are over")

    def _launch(self, sections: Sequence[Section], sizes: Sequence[int]) -> list[ProbeReading]:
        runners = [self._runner_for(section.hosts, section.gpus) for section in sections]
        if len(sections) == 1:
            return [self._reading(sections[0], runners[0], sizes)]
        with ThreadPoolExecutor(max_workers=len(sections)) as pool:
            running = [
                pool.submit(self._reading, section, runner, sizes)
                for section, runner in zip(sections, runners, strict=True)
            ]
            try:
                return [future.result() for future in running]
            except BaseException:
                for runner in runners:
                    if isinstance(runner, Killable):
                        runner.kill()
                raise

    def _reading(self, section: Section, runner: Runner, sizes: Sequence[int]) -> ProbeReading:
        ranks = section.ranks(self._expectation.cluster.gpus_per_node)
        messages = probe_messages(sizes, ranks=ranks, nodes=len(section.hosts))
        repeat = len(self.of(section))
        try:
            result = runner.measure(DEFAULT, messages, repeat=repeat)
        except HostLostError as error:
            # Smaller parts will show which one it is.
            result = TrialResult(outcome=Outcome.CRASHED, detail=error.message)
        return ProbeReading(
            section=section,
            ranks=ranks,
            repeat=repeat,
            outcome=result.outcome,
            times_us=_times_us(result),
            expected_gbps=self._expectation.gbps(section),
            detail=result.detail,
            wall_s=result.wall_s,
        )


def probe_messages(sizes: Sequence[int], *, ranks: int, nodes: int) -> list[Message]:
    """Return what a launch on some nodes measures: one all_reduce per size, bytes."""
    return [
        Message(collective=Collective.ALL_REDUCE, dtype=DTYPE, size_bytes=size, group_size=ranks, spans_nodes=nodes > 1)
        for size in sizes
    ]


def _times_us(result: TrialResult) -> tuple[tuple[int, float], ...]:
    if result.outcome is not Outcome.OK:
        return ()
    return tuple(sorted((one.message.size_bytes, one.time_us) for one in result.measurements))
