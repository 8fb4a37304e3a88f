"""Step times of a launch: those of the rank that each step waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclt.profile.record.ranks import RankReport, read_reports, why_no_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What the ranks of one launch tell about its steps.

    Attributes:
        step_us: time of each step of the window on the slowest rank of that step, µs; empty where `failure` is set.
        ranks: how many ranks told their times.
        world_size: how many there are, 0 where none knew.
        hosts: machines of the ranks that told.
        failure: why there are no times; empty where there are.
    """

    step_us: tuple[float, ...] = ()
    ranks: int = 0
    world_size: int = 0
    hosts: int = 0
    failure: str = ""


def read_step_times(folder: Path, *, steps: int) -> StepTimes:
    """Read the step times from a recording's folder.

    Args:
        folder: of a launch that took times only.
        steps: length of the window; a rank that did not reach its end makes the whole launch a failure.
    """
    reports = read_reports(folder)
    # torchrun and other helpers load PyTorch too, but make no steps.
    ranks = [report for report in reports if report.steps_seen or report.inside_s]
    failure = _failure(folder, reports, ranks, steps=steps)
    if failure:
        return StepTimes(failure=failure)
    return StepTimes(
        step_us=tuple(max(times_s) * 1e6 for times_s in zip(*(rank.inside_s for rank in ranks), strict=True)),
        ranks=len(ranks),
        world_size=max(rank.world_size for rank in ranks),
        hosts=len({rank.host for rank in ranks}),
    )


def _failure(folder: Path, reports: Sequence[RankReport], ranks: Sequence[RankReport], *, steps: int) -> str:
    failures = dict.fromkeys(text for report in reports for text in report.failures)
    if failures or not ranks:
        return why_no_trace(folder, reports)[0]
    short = min(ranks, key=lambda rank: len(rank.inside_s))
    if len(short.inside_s) < steps:
        return f"the training ended after {short.steps_seen} steps, before or inside the {steps} that are measured"
    known = [rank.rank for rank in ranks if rank.rank is not None]
    if len(set(known)) < len(known):
        return "a rank was started again during the launch"
    return ""
