"""The end-to-end proof: real step times of a training on two sides, two environments or two commands, and a verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.core.recommendation import Decision, Verdict

PERCENTILES = (50, 75, 90, 95)
"""Percentiles as papers on training speed print them."""

PAUSE = 10.0
"""Multiple of the median step above which a step is a pause of the job, not a slow step."""


def mean_step_us(step_us: Sequence[float]) -> float:
    """Return the mean step time, µs, with each step clipped at `PAUSE` medians."""
    longest_us = PAUSE * statistics.median(step_us)
    return statistics.fmean(min(time_us, longest_us) for time_us in step_us)


Variables = tuple[tuple[str, str], ...]
"""Environment variables, (name, value), sorted by name."""


class Side(StrEnum):
    """The two sides: A is the reference, B is judged."""

    BASE = "base"
    TUNED = "tuned"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaunch(Documented):
    """One launch of the training.

    Attributes:
        side: which of the two was launched.
        order: counts all launches from 0, which shows the interleaving.
        step_us: time of each measured step on its slowest rank, µs; empty where the launch failed.
        failure: what went wrong, with the last lines of output; empty without a failure.
        estimate: speed-up after this launch, and the ends of its interval, where the other launches do not show them:
            live tuning judges by the draws of its blocks; None = it is the same as before, or the launches show it.
    """

    SHAPE: ClassVar = Shape(complete=True, omitted=("estimate",), unbounded=("estimate",))

    side: Side
    order: int
    step_us: tuple[float, ...] = ()
    failure: str = ""
    estimate: tuple[float, float, float] | None = None

    @property
    def time_us(self) -> float | None:
        """Return the mean step of the launch, µs (`mean_step_us`); None where it failed."""
        return mean_step_us(self.step_us) if self.step_us else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(Documented):
    """The verdict on real step times, with its evidence.

    Attributes:
        id: identifies it.
        cluster, model: names of cluster and workload; empty where two environments of the user were compared.
        recommendation: id of the one that was verified; empty likewise.
        argv: the training's command line.
        base_argv: that of the reference where two commands are compared; empty = the same.
        base_env, tuned_env: what each side sets.
        removed_env: names of inherited variables that both sides run without.
        site_variables: of the site, which both sides inherited; empty where two environments of the user were compared.
        warmup, steps: steps of each launch before the measured ones, and measured ones.
        ranks, hosts: number that reported times; 0 where no launch did.
        verdict: on the step time; its times are µs per step.
        launches: in order.
        notes: caveats for the reader.
        created: ISO time.
    """

    SHAPE: ClassVar = Shape(
        hint="verify again with `ncclt verify`",
        schema=1,
        pairs=("base_env", "tuned_env", "site_variables"),
        omitted=("base_argv", "site_variables"),
        computed=(("percentiles_us", "percentiles_us", "launches"),),
    )

    id: str
    cluster: str
    model: str
    recommendation: str
    argv: tuple[str, ...]
    base_env: Variables
    tuned_env: Variables
    removed_env: tuple[str, ...]
    warmup: int
    steps: int
    ranks: int
    hosts: int
    verdict: Verdict
    launches: tuple[StepLaunch, ...]
    notes: tuple[str, ...]
    created: str
    base_argv: tuple[str, ...] = ()
    site_variables: Variables = ()

    @property
    def word(self) -> str:
        """Return the decision as users read it: of two commands, none is `tuned`."""
        decision = self.verdict.decision
        if not self.base_argv or decision is Decision.UNDECIDED:
            return decision.value
        return "faster" if decision is Decision.TUNED else "not faster"

    def step_us(self, side: Side) -> tuple[float, ...]:
        """Return the times of all measured steps of a side, µs, in order."""
        return tuple(time for launch in self.launches if launch.side is side for time in launch.step_us)

    def percentiles(self, side: Side) -> dict[int, float]:
        """Return `PERCENTILES` of the step time of a side, µs; empty where it has no times."""
        times_us = self.step_us(side)
        return {percent: percentile(times_us, percent) for percent in PERCENTILES} if times_us else {}

    @property
    def percentiles_us(self) -> dict[str, dict[str, float]]:
        """Return the percentiles of both sides, µs."""
        return {side.value: {f"p{percent}": time for percent, time in self.percentiles(side).items()} for side in Side}


def sorted_variables(variables: Mapping[str, str]) -> Variables:
    """Return variables in the order in which they are stored."""
    return tuple(sorted((str(name), str(value)) for name, value in variables.items()))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of one or more values, linear between neighbours (numpy's default, R's type 7).

    Args:
        values: in any order.
        percent: 0 to 100.
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))
