"""Segments of a training that is started again and again from its checkpoints: each one runs with one arm."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.core.verification import Variables

SEGMENT_STEPS = 50
"""Measured steps of a segment by default."""

CONTROL = "control"
"""Name of the arm that the training runs with today."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Documented):
    """One start of a training and the steps that it made.

    Attributes:
        id: identifies it.
        model: name of the training, and of its workload.
        cluster: where it runs; empty = not known.
        place: digest of its workload and of the cluster's fingerprint; empty = not known.
        arm: `CONTROL`, or the id of the revision or proposal that its policy is from; the same for its whole life.
        recommendation: id of the published revision of this policy; empty where there is none.
        label: the policy as text.
        variables: that its arm sets.
        base_env: tuning variables of the control.
        order: counts the starts of the training from 0.
        block: of the experiment; -1 = before it or after it.
        step_us: time of each measured step on the slowest rank, µs; empty = it did not get so far.
        failure: why the arm is out, with the last thing that is known; empty = nothing failed.
        wall_s: from its start to its end, s.
        restart_s: time from the end of the steps before to its first step, and for steps made again, s; 0 where
            ncclt did not cause the restart.
        slower_s: time that its steps took longer than those of the control, s.
        is_stopped: ncclt ended it; otherwise the training ended by itself.
        created: ISO time of its start.
    """

    SHAPE: ClassVar = Shape(
        name="a segment", hint="see docs/trainer/on-jobs.md", schema=1, pairs=("variables", "base_env")
    )

    id: str
    model: str
    cluster: str
    arm: str
    recommendation: str
    label: str
    variables: Variables
    base_env: Variables
    order: int
    block: int
    step_us: tuple[float, ...]
    failure: str
    wall_s: float
    restart_s: float
    slower_s: float
    is_stopped: bool
    created: str
    place: str = ""

    @property
    def time_us(self) -> float | None:
        """Return the median step time, µs; None where no steps were measured."""
        return statistics.median(self.step_us) if self.step_us else None

    @property
    def cost_s(self) -> float:
        """Return the time that the experiment took from the training by this segment, s."""
        return self.restart_s + self.slower_s


def cost_share(segments: Sequence[Segment]) -> float:
    """Return the share of the training's time that the experiment took."""
    wall_s = sum(segment.wall_s for segment in segments)
    return sum(segment.cost_s for segment in segments) / wall_s if wall_s > 0 else 0.0
