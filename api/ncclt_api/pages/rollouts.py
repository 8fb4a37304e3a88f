"""The pages of roll-outs: rows of the list, the charts of the guard, and the actions that a state allows."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from ncclt.core.rollout import JobStart, JobTime, PairedGain, RollOut, RollOutState
from ncclt.prove.rollout import RollOutVerdict, count_excess, fewest_pairs, trace_gains
from ncclt.store.store import Store
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Level, Line, Mark, Tone
from ncclt_api.pages.wording import format_change

_TONES: tuple[Tone, ...] = ("c1", "c2", "c3", "c4")
_MOST_GAINS = 10
"""Points of an arm in the chart of the gain: each takes some hundredths of a second to compute."""

_MOMENTS = 48
"""Points of a line in the chart of starts and reports."""

_WIDEST = 25.0
"""Largest change of step time on the axis, in percent: first intervals are wider and would flatten all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """Reasons why jobs that start do not get what open roll-outs serve.

    Attributes:
        stale: ids of stale revisions.
        switched_off: names of clusters whose delivery is off.
    """

    stale: Collection[str] = ()
    switched_off: Collection[str] = ()

    @classmethod
    def read(cls, store: Store, rollouts: Iterable[RollOut]) -> Self:
        """Return those of some roll-outs."""
        ids = {id for one in rollouts if one.is_open for id in (one.control, *(arm.recommendation for arm in one.arms))}
        stale = frozenset(one.id for one in store.recommendations.find(id=ids) if one.stale) if ids else frozenset()
        return cls(stale=stale, switched_off=store.revisions.switched_off())

    def explain(self, one: RollOut) -> str:
        """Return the reason of one roll-out, and the remedy; empty = there is none, or it has ended."""
        if not one.is_open:
            return ""
        if one.cluster in self.switched_off:
            return "delivery on its cluster is off"
        if one.control in self.stale:
            return "the active revision is stale; `ncclt recheck` or `ncclt tune` renews it"
        arms = [arm.recommendation for arm in one.arms if arm.is_served and arm.recommendation in self.stale]
        return f"revision {' and '.join(arms)} is stale; `ncclt recheck` renews it" if arms else ""

    def percent(self, one: RollOut, recommendation: str = "") -> float:
        """Return the share of the starts that get a revision now, in percent; without one, that get any arm."""
        if one.cluster in self.switched_off or one.control in self.stale:
            return 0.0
        wanted = [recommendation] if recommendation else [arm.recommendation for arm in one.arms]
        return sum(one.percent_of(id) for id in wanted if id not in self.stale)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOutRow:
    """Roll-out in the list.

    Attributes:
        rollout: the roll-out.
        percent: share of the starts that get an arm now, in percent.
        held: why jobs do not get what the roll-out serves; empty = they do.
        reports, controls: of jobs with an arm, and of those with the control.
        unreported, unreported_controls: of their starts, those without a report so far.
        lacks_reports: an arm has clearly more of them than the control, for its starts.
        missing_pairs: fewest further pairs of reports that can prove a win; None = it is decided, or only the gain
            is missing.
        verdict: one sentence.
        progress: verdict on the jobs so far; None = it has ended.
    """

    rollout: RollOut
    percent: float
    held: str
    reports: int
    controls: int
    unreported: int
    unreported_controls: int
    lacks_reports: bool
    missing_pairs: int | None
    verdict: str
    progress: RollOutVerdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOutAction:
    """Form of a roll-out.

    Attributes:
        address: that it posts to.
        label: of its button.
        effect: one sentence.
    """

    address: str
    label: str
    effect: str


def build_rows(
    rollouts: Iterable[RollOut],
    counts: Mapping[tuple[str, str], tuple[int, int]],
    verdicts: Mapping[str, RollOutVerdict],
    holds: Holds,
) -> list[RollOutRow]:
    """Return rows of the list.

    Args:
        rollouts: in their order.
        counts: starts and reports by roll-out and revision.
        verdicts: on the open ones, by id.
        holds: of the open ones.
    """
    rows = []
    for one in rollouts:
        jobs = [counts.get((one.id, arm.recommendation), (0, 0)) for arm in one.arms]
        of_control = counts.get((one.id, one.control), (0, 0))
        reports, controls = [reported for _, reported in jobs], of_control[1]
        missing_controls = of_control[0] - controls
        missing = fewest_pairs(len(one.arms)) - min(max(reports), controls)
        is_undecided = one.is_open and not one.winner
        progress = verdicts.get(one.id)
        rows.append(
            RollOutRow(
                rollout=one,
                percent=holds.percent(one),
                held=holds.explain(one),
                reports=sum(reports),
                controls=controls,
                unreported=sum(started - reported for started, reported in jobs),
                unreported_controls=missing_controls,
                lacks_reports=any(
                    count_excess(started - reported, started, missing_controls, of_control[0])
                    for started, reported in jobs
                ),
                missing_pairs=missing if is_undecided and missing > 0 else None,
                verdict=one.reason or (progress.reason if progress else ""),
                progress=progress,
            )
        )
    return rows


def list_rollout_actions(one: RollOut, untried: Collection[str] = ()) -> list[RollOutAction]:
    """Return the actions that the state of a roll-out allows; its untried arms cannot be activated."""
    if not one.is_open:
        return []
    own = f"/roll-outs/{one.id}"
    found = [
        RollOutAction(address=f"{own}/resume", label="Resume", effect="Serve the arms to their shares of jobs again.")
        if one.state is RollOutState.PAUSED
        else RollOutAction(
            address=f"{own}/pause",
            label="Pause",
            effect="Jobs that start get the control until it is resumed. Running jobs keep their settings.",
        )
    ]
    for arm in one.arms:
        of, name = f"/recommendations/{arm.recommendation}", f" {arm.recommendation}" if len(one.arms) > 1 else ""
        if arm.recommendation == one.winner:
            found.append(RollOutAction(address=f"{of}/approve", label=f"Approve{name}", effect="Serve it to all jobs."))
        elif arm.is_open and arm.recommendation not in untried:
            effect = "Serve it to all jobs now, before the comparison ends."
            found.append(RollOutAction(address=f"{of}/activate", label=f"Activate{name}", effect=effect))
        if arm.is_open or arm.is_served:
            effect = "Stop serving it. The roll-out ends if no arm is left."
            found.append(RollOutAction(address=f"{of}/retire", label=f"Retire{name}", effect=effect))
    return found


def gain_chart(one: RollOut, times: Sequence[JobTime], starts: Sequence[JobStart]) -> Chart | None:
    """Draw the change of step time of each arm against the control over reports; None = no pair of jobs yet."""
    lines, rows, ends = [], [], [0.0, 100 * one.loss_limit]
    for number, arm in enumerate(one.arms):
        traced = [
            (reports, gain)
            for reports, gain in trace_gains(one, number, times, starts, most=_MOST_GAINS)
            if math.isfinite(gain.interval[1]) and gain.interval[0] > 0
        ]
        if not traced:
            continue
        low, high = ([_change(gain.interval[end]) for _, gain in traced] for end in (1, 0))
        ends += low + high
        lines.append(
            Line(
                label=f"revision {arm.recommendation}",
                tone=_TONES[number],
                x=[reports for reports, _ in traced],
                y=[_change(gain.estimate) for _, gain in traced],
                low=low,
                high=high,
                notes=[f"{gain.pairs} pairs" for _, gain in traced],
            )
        )
        rows += [(arm.recommendation, str(reports), *_cells(gain)) for reports, gain in traced]
    if not lines:
        return None
    return Chart(
        id="gain",
        title="Step time against the control",
        description="From pairs of jobs; below 0 is faster. The 95 % interval is valid at every look.",
        x=Axis(label="Reports", unit="count", low=0),
        y=Axis(label="Change", unit="percent", low=max(min(ends) - 1, -_WIDEST), high=min(max(ends) + 1, _WIDEST)),
        lines=lines,
        levels=[
            Level(at=0.0, label="no change"),
            Level(at=100 * one.loss_limit, label="loss limit", tone="failed"),
        ],
        table=ChartTable(columns=("Revision", "Reports", "Pairs", "Change", "95 % CI"), rows=rows),
    )


def starts_chart(one: RollOut, times: Sequence[JobTime], starts: Sequence[JobStart]) -> Chart | None:
    """Draw started and reported jobs of each arm and of the control over time; None = no job has started."""
    if not starts:
        return None
    first_s = min(start.issued_s for start in starts)
    issued_s = {start.job: start.issued_s for start in starts}
    kinds: tuple[tuple[str, Mark], ...] = (("started", "dashed"), ("reported", "line"))
    ids = [*(arm.recommendation for arm in one.arms), one.control]
    tones: tuple[Tone, ...] = (*_TONES[: len(one.arms)], "default")
    drawn = []
    for id, tone in zip(ids, tones, strict=True):
        label = "control" if tone == "default" else f"revision {id}"
        started_h = sorted((one.issued_s - first_s) / 3600 for one in starts if one.recommendation == id)
        reported_h = sorted(
            (issued_s[one.job] + one.waited_s - first_s) / 3600
            for one in times
            if one.recommendation == id and one.job in issued_s
        )
        drawn.append((label, tone, started_h, reported_h))
    last_h = max(hours[-1] for *_, started_h, reported_h in drawn for hours in (started_h, reported_h) if hours)
    moments = [(last_h or 1.0) * part / _MOMENTS for part in range(_MOMENTS + 1)]
    return Chart(
        id="starts",
        title="Started and reported jobs",
        description="If the gap between the lines grows only for a revision, its jobs hang or fail.",
        x=Axis(label="Since the first start", unit="hours", low=0),
        y=Axis(label="Jobs", unit="count", low=0),
        lines=[
            Line(
                label=f"{label}, {word}",
                tone=tone,
                mark=mark,
                x=moments,
                y=[bisect_right(hours, moment) for moment in moments],
            )
            for label, tone, *both in drawn
            for (word, mark), hours in zip(kinds, both, strict=True)
        ],
        table=ChartTable(
            columns=("Jobs with", "Started", "Reported"),
            rows=[(label, str(len(started_h)), str(len(reported_h))) for label, _, started_h, reported_h in drawn],
        ),
    )


def _change(speedup: float) -> float:
    """Return the change of step time of a speed-up, in percent."""
    return 100 / speedup - 100


def _cells(gain: PairedGain) -> tuple[str, str, str]:
    change, low, high = (format_change(_change(one) / 100) for one in (gain.estimate, *reversed(gain.interval)))
    return str(gain.pairs), change, f"{low} to {high}"
