"""The charts of one study, from the figures of its view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.core.study import Arm, Phase
from ncclt.core.trial import Outcome
from ncclt.prove.evidence import ArmLaunch
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Level, Line, Mark, Tone
from ncclt_api.pages.wording import format_speedup, format_time

MOST_POINTS = 900
"""Trials drawn in the picture of the search; of more, the fastest and the slowest of each stretch are."""

LEAST_RATIO = 0.6
"""Settings slower than this are drawn at the lower edge: one terrible setting must not flatten all others."""

_MOST_PROOF = 200
_FAILED_AT = 0.565
_FLOOR = 0.54


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPoint:
    """One trial before the proof.

    Attributes:
        number: of the trial.
        phase: search or confirmation.
        score_us: communication time per step, µs; None = it failed.
        outcome: how it ended.
        label: its setting, as text.
    """

    number: int
    phase: Phase
    score_us: float | None
    outcome: Outcome
    label: str


def search_chart(
    points: Sequence[SearchPoint],
    default_us: float | None,
    proof: Sequence[ArmLaunch] = (),
    *,
    per: str = "per step",
) -> Chart | None:
    """Draw each trial as its speed-up over the default; None before the default was measured.

    Args:
        points: by number.
        default_us: median score of the default setting, µs; None = not measured.
        proof: launches of the proof, drawn behind the search.
        per: unit of the times (`Workload.per`).
    """
    scored = [(point, default_us / point.score_us) for point in points if default_us and point.score_us]
    if not scored:
        return None
    failed = [point for point in points if point.score_us is None]
    best: list[tuple[SearchPoint, float]] = []
    for point, ratio in scored:
        if not best or ratio > best[-1][1]:
            best.append((point, ratio))
    shown = _thinned(scored, MOST_POINTS)
    shown_failed = failed[:: max(1, len(failed) // 200)]
    last = max(point.number for point in points)
    top = max([1.05, best[-1][1], *(default_us / launch.time_us for launch in proof if default_us and launch.time_us)])
    clipped = [(point, ratio) for point, ratio in shown if ratio < LEAST_RATIO]
    inside = [(point, ratio) for point, ratio in shown if ratio >= LEAST_RATIO]
    lines = [
        _dots("searched", "quiet", [one for one in inside if one[0].phase is Phase.SEARCH]),
        _dots("confirmed", "policy", [one for one in inside if one[0].phase is Phase.CONFIRM]),
        _proof_line("default, in the proof", "default", "ring", default_us, proof, (Arm.DEFAULT,)),
        _proof_line("policy, in the proof", "good", "dot", default_us, proof, (Arm.TABLE, Arm.VARIABLES)),
        Line(
            label="best so far",
            tone="best",
            mark="step",
            x=[*(point.number for point, _ in best), *([last] if best[-1][0].number < last else [])],
            y=[*(ratio for _, ratio in best), *([best[-1][1]] if best[-1][0].number < last else [])],
        ),
        Line(
            label=f"below {LEAST_RATIO}×, at the edge",
            tone="quiet",
            mark="ring",
            x=[point.number for point, _ in clipped],
            y=[LEAST_RATIO] * len(clipped),
            notes=[f"{format_speedup(ratio)}: {point.label}" for point, ratio in clipped],
        ),
        Line(
            label="failed",
            tone="failed",
            mark="cross",
            x=[point.number for point in shown_failed],
            y=[_FAILED_AT] * len(shown_failed),
            notes=[f"{point.outcome.value.replace('_', ' ')}: {point.label}" for point in shown_failed],
        ),
    ]
    more = "" if len(shown) == len(scored) else f" Of them {len(shown)} are drawn, the extremes of each stretch."
    return Chart(
        id="search-chart",
        title="The search, trial by trial",
        description=f"{len(scored)} measured, {len(failed)} failed; the best so far is "
        f"{format_speedup(best[-1][1])} as fast as the NCCL default, before any proof.{more}",
        x=Axis(label="trial", unit="count"),
        y=Axis(label="speed-up over the default", unit="ratio", low=_FLOOR, high=top + 0.05 * (top - _FLOOR)),
        lines=[line for line in lines if line.x],
        levels=[Level(at=1.0, label="The NCCL default")],
        table=ChartTable(
            columns=("Trial", "Speed-up", f"Time {per}", "Setting"),
            rows=[
                (str(point.number), format_speedup(ratio), format_time(point.score_us), point.label)
                for point, ratio in best[-20:]
            ],
        ),
    )


def _proof_line(
    label: str, tone: Tone, mark: Mark, default_us: float | None, proof: Sequence[ArmLaunch], arms: Sequence[Arm]
) -> Line:
    """Return the launches of some arms, against the default of the search; what is slower is drawn at the edge."""
    mine = [launch for launch in proof if launch.arm in arms and launch.time_us and default_us]
    every = max(1, -(-len(mine) // _MOST_PROOF))
    ratios = [(launch, (default_us or 0.0) / (launch.time_us or 1.0)) for launch in mine[::every]]
    return Line(
        label=label,
        tone=tone,
        mark=mark,
        x=[launch.order for launch, _ in ratios],
        y=[max(ratio, LEAST_RATIO) for _, ratio in ratios],
        notes=[f"{launch.arm.value}, launch {launch.block + 1}: {format_speedup(ratio)}" for launch, ratio in ratios],
    )


def _dots(label: str, tone: Tone, points: Sequence[tuple[SearchPoint, float]]) -> Line:
    return Line(
        label=label,
        tone=tone,
        mark="dot",
        x=[point.number for point, _ in points],
        y=[ratio for _, ratio in points],
        notes=[point.label for point, _ in points],
    )


def _thinned(scored: Sequence[tuple[SearchPoint, float]], most: int) -> list[tuple[SearchPoint, float]]:
    """Return the slowest and the fastest point of each of `most` / 2 stretches, by number."""
    if len(scored) <= most:
        return list(scored)
    length = -(-2 * len(scored) // most)
    kept = []
    for start in range(0, len(scored), length):
        stretch = scored[start : start + length]
        ends = {min(stretch, key=lambda one: one[1])[0].number, max(stretch, key=lambda one: one[1])[0].number}
        kept += [one for one in stretch if one[0].number in ends]
    return kept
