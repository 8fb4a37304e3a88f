"""One launch of a setting: its outcome, its measurements, and the port that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, runtime_checkable
from typing import Protocol as Port

from ncclt.core.cluster import Cluster
from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting


class Outcome(StrEnum):
    """Outcome of a trial; a failure is a value and never an exception.

    `substituted`: the library ran another choice than the one that was forced, so nothing of the setting was measured.
    """

    OK = "ok"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"
    INVALID = "invalid"
    SUBSTITUTED = "substituted"


class TimesOrigin(StrEnum):
    """Origin of the times behind a result; only `measured` is served by default."""

    MEASURED = "measured"
    RECORDED = "recorded"
    SIMULATED = "simulated"


NOT_LAUNCHED = {"simulate": TimesOrigin.SIMULATED, "replay": TimesOrigin.RECORDED}
"""Words of `--launcher` behind which nothing is launched -> the origin of their times; all others are launchers."""


ON_JOBS, RESTARTS, LIVE = "jobs", "restarts", "live"
ON_STEPS = frozenset({ON_JOBS, RESTARTS, LIVE})
"""Launcher names of studies whose trials are real jobs and whose evidence is step times: starts of many jobs,
blocks of steps inside one job, and in old stores starts of one training (`RESTARTS`)."""


def times_origin(launcher: str, *, simulated: bool) -> TimesOrigin:
    """Return the origin of the times of a launcher; a replayed recording may be one of simulated times."""
    return TimesOrigin.SIMULATED if simulated else NOT_LAUNCHED.get(launcher, TimesOrigin.MEASURED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Documented):
    """One message under one trial.

    Attributes:
        message: what was sent, with its group size known.
        samples_us: one or more times per call, µs, in order.
        wrong: elements that came out wrong; None = the benchmark did not check.
        interpolated: the size itself was not measured but interpolated log-log between its neighbours.
        measured_bytes: the size whose time this is, where the benchmark cannot send the message's; None = it can.
        bits: hash of the bits that all ranks received, of numbers that are the same in every trial; empty = not known.
    """

    SHAPE: ClassVar = Shape(
        inlined=("message",),
        private=("bits",),
        omitted=("measured_bytes",),
        computed=(("time_us", "time_us", "wrong"), ("busbw_gbps", "busbw_gbps", "wrong")),
    )

    message: Message
    samples_us: tuple[float, ...]
    wrong: int | None = 0
    interpolated: bool = False
    measured_bytes: int | None = None
    bits: str = ""

    @property
    def sent(self) -> Message:
        """Return the message with the size whose time this is."""
        return replace(self.message, size_bytes=self.measured_bytes or self.message.size_bytes)

    @property
    def time_us(self) -> float:
        """Return the median of the samples, µs."""
        import statistics  # here: `ncclt run` loads this module, and a job would wait for that one

        return statistics.median(self.samples_us)

    @property
    def busbw_gbps(self) -> float:
        """Return the bus bandwidth at the median time, 1e9 bytes/s."""
        return self.message.busbw_gbps(self.time_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(Documented):
    """Result of one launch.

    Attributes:
        outcome: `ok` only if every message was measured and no element came out wrong.
        measurements: one per message; empty or partial where the outcome is not `ok`.
        detail: the last lines of output or the reason; empty without a failure.
        wall_s: duration of the launch.
        place: the nodes it ran on, as text; empty where the launcher chose them or there is only one choice.
        persistent: measured by ranks that were already running; good enough for the search, but not for finalists
            and the proof.
        by_plugin: the tuner plugin was loaded to force the setting, call by call where it can.
        commands: each launch as a line for a shell, variables before the program, without secrets; empty where nothing
            was launched, as in a simulation, or the ranks were already running.
    """

    SHAPE: ClassVar = Shape(private=("persistent", "commands"), computed=(("warm", "persistent", "by_plugin"),))

    outcome: Outcome
    measurements: tuple[Measurement, ...] = ()
    detail: str = ""
    wall_s: float = 0.0
    place: str = ""
    persistent: bool = False
    by_plugin: bool = False
    commands: tuple[str, ...] = ()


class Runner(Port):
    """Measures settings on one cluster.

    Contract: `measure` returns for every setting and never raises for the effect of a setting on NCCL (crash, hang,
    wrong data): that is the result's outcome. Failures that do not depend on the setting, such as lost or unfit nodes,
    raise StudyStoppedError. With outcome `ok` there is one measurement for each requested message, in their order. A
    repeated setting is measured again. When `measure` returns or raises, nothing that it started still runs, except
    ranks that wait for the next setting; a runner that keeps such ranks reports them in its results (`persistent`) and
    has `close`.
    """

    @property
    def name(self) -> str:
        """Return the word used with `--launcher`."""
        ...

    @property
    def simulated(self) -> bool:
        """Return True if the times come from a model; replayed measurements do not."""
        ...

    @property
    def cluster(self) -> Cluster:
        """Return the cluster that is measured."""
        ...

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once under `setting` and measure all messages; `repeat` counts earlier launches of this setting."""
        ...


@runtime_checkable
class PolicyRunner(Port):
    """A runner that can also launch a whole policy at once, as it is delivered; without this it takes one per setting.

    Contract: `measure_policy` is to a policy what `Runner.measure` is to a setting; it is only called for policies for
    which `applies` is true.
    """

    def applies(self, policy: Policy) -> bool:
        """Return True if one launch measures the policy as it is delivered."""
        ...

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once under the whole policy and measure all messages; `repeat` as for `Runner.measure`."""
        ...
