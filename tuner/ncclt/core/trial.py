"""One launch of a setting: its outcome, its measurements, and the port behind which it happens."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol as Port

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import Setting


class Outcome(StrEnum):
    """How a trial ended; a failure is a value and never an exception."""

    OK = "ok"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One message under one trial.

    Attributes:
        message: what was sent, with its group size known.
        samples_us: one or more times per call, µs, in order.
        wrong: elements that came out wrong; None = the benchmark did not check.
        interpolated: the size itself was not measured but interpolated log-log between its neighbours.
    """

    message: Message
    samples_us: tuple[float, ...]
    wrong: int | None = 0
    interpolated: bool = False

    @property
    def time_us(self) -> float:
        """Return the median of the samples, µs."""
        return statistics.median(self.samples_us)

    @property
    def busbw_gbps(self) -> float:
        """Return the bus bandwidth at the median time, 1e9 bytes/s."""
        return self.message.busbw_gbps(self.time_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What one launch gave.

    Attributes:
        outcome: `ok` only if every message was measured and no element came out wrong.
        measurements: one per message; empty or partial where the outcome is not `ok`.
        detail: the last lines of output or the reason, for people; empty when all went well.
        wall_s: how long the launch took.
        place: the nodes it ran on, for people; empty where the launcher chose them or there is but one place.
        persistent: ranks measured it that had been running before; a search may go by that, finalists and proof may
            not.
        by_plugin: the tuner plugin was there to force the setting, call by call where it can; None = not known, of
            trials that were kept before this was noted.
    """

    outcome: Outcome
    measurements: tuple[Measurement, ...] = ()
    detail: str = ""
    wall_s: float = 0.0
    place: str = ""
    persistent: bool = False
    by_plugin: bool | None = False


class Runner(Port):
    """Measures settings on one cluster.

    Contract: `measure` returns for every setting and never raises for what a setting does to NCCL, whatever it does
    (crash, hang, wrong data): that is the result's outcome. What says nothing about any setting, nodes that are gone or
    unfit, raises StudyStoppedError. With outcome `ok` there is one measurement for each of
    the messages asked for, in their order. The same runner may be asked for the same setting again and measures
    anew. When `measure` returns or raises, nothing that it started still runs, but for ranks that wait for the next
    setting; a runner that keeps such ranks says so in its results (`persistent`) and has `close`.
    """

    @property
    def name(self) -> str:
        """Return the word used with `--launcher`."""
        ...

    @property
    def simulated(self) -> bool:
        """Return whether the times are invented by a model instead of measured; replayed measurements are not."""
        ...

    @property
    def cluster(self) -> Cluster:
        """Return the cluster that is measured."""
        ...

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once under `setting` and measure all messages; `repeat` counts earlier launches of this setting."""
        ...
