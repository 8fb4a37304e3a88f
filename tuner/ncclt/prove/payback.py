"""Savings of a validated policy: time per step, GPU-hours per week, and the time until a study has paid for itself.

The gain is the speed-up with its interval; every time saved follows from it: default x (1 - 1 / speed-up).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ncclt.core.duration import format_duration
from ncclt.core.recommendation import Decision, Verdict
from ncclt.core.study import Study, Trial, gpu_seconds
from ncclt.core.trial import ON_STEPS
from ncclt.core.workload import Workload

ASSUMED_STEP_US = 1e6
"""Length of a step that was not recorded: one second is easy to scale."""

_DAY_US = 86400e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Savings of a validated policy.

    Attributes:
        saved_us: communication time per step that it saves: estimate and the ends of the 95 % interval, µs.
        default_us: communication time per step of the default, µs.
        shorter_us: by how much the step becomes shorter, µs, likewise: hidden communication costs no time, however slow
            it is. All messages are assumed to be equally exposed, and all of them where exposure is not known.
        exposed: share of the recorded communication that computation does not hide; None = not known.
        step_share: share of the recorded step that is saved; None = not known.
        steps_per_day: of the job; None = there is no step, the workload is a whole file.
        assumed_step: assumption behind `steps_per_day`, in words; empty where the user gave it.
        gpus: of the job.
        cost_gpu_s: of all launches of the study, GPU seconds.
        is_step_known: the recording shows how much of the communication is exposed.
    """

    saved_us: tuple[float, float, float]
    default_us: float
    shorter_us: tuple[float, float, float]
    exposed: float | None
    step_share: float | None
    steps_per_day: float | None
    assumed_step: str
    gpus: int
    cost_gpu_s: float
    is_step_known: bool

    @property
    def gpu_hours_per_week(self) -> float | None:
        """Return the GPU time that the job saves in a week; None where there is no step."""
        if self.steps_per_day is None:
            return None
        return self.shorter_us[0] / 3600e6 * self.steps_per_day * 7 * self.gpus

    @property
    def payback_steps(self) -> tuple[float, float, float | None] | None:
        """Return after how many steps the study has paid for itself: estimate, fewest, most (None = maybe never)."""
        if self.steps_per_day is None or not self.cost_gpu_s:
            return None
        estimate, low, high = (
            self.cost_gpu_s * 1e6 / (us * self.gpus) if us > 0 else math.inf for us in self.shorter_us
        )
        return (estimate, high, None if math.isinf(low) else low) if math.isfinite(estimate) else None

    @property
    def payback_hours(self) -> float | None:
        """Return after how many hours of training that is; None where it is not known."""
        steps = self.payback_steps
        return steps[0] / self.steps_per_day * 24 if steps and self.steps_per_day else None

    @property
    def words(self) -> str:
        """Return the time saved per step as text."""
        unit, scale = ("s", 1e6) if self.default_us >= 999_500 else ("ms", 1e3)
        estimate, low, high = (us / scale for us in self.saved_us)
        per = "for the whole file" if self.steps_per_day is None else "per step"
        communication = f"{format_duration(self.default_us)} communication"
        words = f"{estimate:.3g} {unit} {per} ({low:.3g} to {high:.3g}) of {communication}"
        if self.steps_per_day is None:
            return words
        if not self.is_step_known:
            return f"{words}; upper bound on step-time savings (assumes no overlap)"
        share = "" if self.step_share is None else f" ({self.step_share * 100:.2g} %)"
        exposed = "" if self.exposed is None else f"; {self.exposed * 100:.0f} % of the communication is exposed"
        return f"{words}; steps are {format_duration(self.shorter_us[0])}{share} shorter{exposed}"

    @property
    def worth(self) -> str:
        """Return the savings per week as text; empty where there is no step."""
        hours = self.gpu_hours_per_week
        if hours is None:
            return ""
        amount = f"saves {hours:,.0f} GPU-hours/week" if hours >= 100 else f"saves {hours:.2g} GPU-hours/week"
        if not self.assumed_step:
            return f"{amount} at {self.steps_per_day:,.0f} steps/day"
        return f"{amount} (assumes {self.assumed_step}; set --steps-per-day)"


def estimate_gain(
    study: Study, trials: Iterable[Trial], verdict: Verdict | None, *, steps_per_day: int | None = None
) -> Gain | None:
    """Return the savings behind a verdict; None where no gain of communication time is validated.

    Args:
        study: may know how long a step is, and how much of its communication is exposed.
        steps_per_day: of the job; None = around the clock, at the recorded length of a step, else one per second.
    """
    if verdict is None or verdict.decision is not Decision.TUNED or verdict.speedup <= 1 or study.launcher in ON_STEPS:
        return None
    workload, total_us = study.workload, verdict.default_us

    def saved_share(speedup: float) -> float:
        return 1 - 1 / speedup if speedup > 0 else -math.inf

    shares = saved_share(verdict.speedup), saved_share(verdict.interval[0]), saved_share(verdict.interval[1])
    saved_us = total_us * shares[0], total_us * shares[1], total_us * shares[2]
    # The share comes from the study, the time that it shortens from the recording; never more than the study saw.
    shortened_us = total_us if workload.exposed_us is None else min(workload.exposed_us, total_us)
    steps: float | None = steps_per_day
    assumed_step = ""
    if steps is None:
        recorded = workload.step_time_us
        assumed_step = f"{format_duration(recorded)} per step, around the clock" if recorded else "1 step/s"
        steps = _DAY_US / (recorded or ASSUMED_STEP_US)
    return Gain(
        saved_us=saved_us,
        default_us=total_us,
        shorter_us=(shortened_us * shares[0], shortened_us * shares[1], shortened_us * shares[2]),
        exposed=workload.exposed_share,
        step_share=None if workload.exposed_us is None else step_gain(workload, verdict.speedup),
        steps_per_day=None if workload.provenance.whole_file else steps,
        assumed_step=assumed_step,
        gpus=study.cluster.world_size,
        cost_gpu_s=gpu_seconds(trials, study.cluster),
        is_step_known=workload.exposed_us is not None,
    )


UNREACHABLE = 1e3
"""Minimum of the speed-up of communication, as a gain, where no tuning can shorten the step enough."""


def step_gain(workload: Workload, speedup: float) -> float | None:
    """Return the share of a step that faster communication saves at most; None where the step is not known."""
    share = workload.tunable_share
    return None if share is None else share * (1 - 1 / speedup)


def communication_effect(workload: Workload, min_effect: float) -> float:
    """Return the smallest gain of communication time that justifies a change, as a share.

    Where the recording shows the step, `min_effect` is a gain of the step: only the exposed communication shortens it.
    """
    share = workload.tunable_share
    if share is None:
        return min_effect
    needed = 1 - 1 / (1 + min_effect)  # share of the step that must be saved
    return min(UNREACHABLE, 1 / (1 - needed / share) - 1) if needed < share else UNREACHABLE


def describe_ceiling(workload: Workload) -> str:
    """Return the upper bound on step-time savings as text; empty where exposure is unknown."""
    exposed_us, share = workload.exposed_us, workload.tunable_share
    if exposed_us is None or workload.provenance.whole_file:
        return ""
    part = "" if share is None else f" ({share * 100:.1f} %)"
    return f"at most {format_duration(exposed_us)}{part} per step, the exposed communication of the recording"


def describe_cost(study: Study, trials: Sequence[Trial], gain: Gain | None) -> str:
    """Return the cost of a study and the time until it has paid for itself, as text.

    Args:
        gain: by what it delivers; None = by nothing.

    Returns:
        the text; empty where nothing was launched.
    """
    seconds = gpu_seconds(trials, study.cluster)
    if not seconds:
        return ""
    amount = f"{seconds / 3600:.3g} GPU-hours" if seconds >= 360 else f"{seconds:.0f} GPU-seconds"
    words = f"about {amount} on a real cluster" if study.label else amount
    if gain is None:
        return words
    if gain.steps_per_day is None:
        name = study.workload.name
        return f"{words}; payback unknown: {name} is a whole file, its number of steps is unknown"
    back, hours = gain.payback_steps, gain.payback_hours
    if back is None or hours is None:
        return words
    longest = f"to {_time(back[2] / back[0] * hours)}" if back[2] is not None else "or more"
    span = f"{_time(back[1] / back[0] * hours)} {longest}"
    bound = "" if gain.is_step_known else "at least "
    return f"{words}, paid back after {bound}{_time(hours)} of training ({span}; {back[0]:,.0f} steps)"


def _time(hours: float) -> str:
    """Return a time in the unit that keeps it short."""
    for unit, length in (("days", 48.0), ("hours", 1.0), ("minutes", 1 / 60)):
        if hours >= length:
            return f"{hours / (24 if unit == 'days' else length):.2g} {unit}"
    return f"{hours * 3600:.2g} seconds"
