"""The pages of roll-outs: their list, and the charts of the guard."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from fastapi import Form, Query, Request
from pydantic import Field
from starlette.responses import RedirectResponse, Response

from ncclt.core.api_key import Role
from ncclt.core.revision import MOST_WHY, Actor
from ncclt.core.rollout import OPEN_STATES, JobStart, JobTime, PairedGain, RollOut, RollOutState
from ncclt.prove.rollout import (
    RollOutVerdict,
    count_excess,
    describe_cohort_bits,
    fewest_pairs,
    judge_roll_out,
    trace_gains,
)
from ncclt.store.store import Store
from ncclt_api.access import needs, who
from ncclt_api.dependencies import CurrentStore
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Level, Line, Mark, Tone
from ncclt_api.pages.response import WHOLE_PAGE, CurrentPage, Filter, PageQuery, json_response, page_router
from ncclt_api.pages.wording import format_change
from ncclt_api.routes.revisions import RollOutDocument
from ncclt_api.routes.rollouts import HOLDS, get_roll_out
from ncclt_api.sign_in import OwnForm

router = page_router()

ROLL_OUTS_PER_PAGE = 25
_EVENTS = 20

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
        served = [row for row in rollouts if row.is_open]
        ids = {id for row in served for id in (row.control, *(arm.recommendation for arm in row.arms))}
        stale = frozenset(row.id for row in store.recommendations.find(id=ids) if row.stale) if ids else frozenset()
        return cls(stale=stale, switched_off=store.revisions.switched_off())

    def explain(self, rollout: RollOut) -> str:
        """Return the reason of one roll-out, and the remedy; empty = there is none, or it has ended."""
        if not rollout.is_open:
            return ""
        if rollout.cluster in self.switched_off:
            return "delivery on its cluster is off"
        if rollout.control in self.stale:
            return "the active revision is stale; `ncclt recheck` or `ncclt tune` renews it"
        arms = [arm.recommendation for arm in rollout.arms if arm.is_served and arm.recommendation in self.stale]
        return f"revision {' and '.join(arms)} is stale; `ncclt recheck` renews it" if arms else ""

    def percent(self, rollout: RollOut, recommendation: str = "") -> float:
        """Return the share of the starts that get a revision now, in percent; without one, that get any arm."""
        if rollout.cluster in self.switched_off or rollout.control in self.stale:
            return 0.0
        ids = [recommendation] if recommendation else [arm.recommendation for arm in rollout.arms]
        return sum(rollout.percent_of(id) for id in ids if id not in self.stale)


class RollOutsPageQuery(Filter):
    """Filter of the list, and its page; `open` = those that have not ended."""

    state: RollOutState | Literal["open", ""] = ""
    page: int = Field(1, ge=1, le=1000)


@router.get("/roll-outs", dependencies=needs(Role.READ))
def show_roll_outs(query: Annotated[RollOutsPageQuery, Query()], store: CurrentStore, page: CurrentPage) -> Response:
    """List the roll-outs, newest first."""
    listed = store.revisions.rollouts(
        **query.names,
        state=OPEN_STATES if query.state == "open" else query.state or None,
        limit=ROLL_OUTS_PER_PAGE + 1,
        offset=(query.page - 1) * ROLL_OUTS_PER_PAGE,
    )
    shown, has_more = listed[:ROLL_OUTS_PER_PAGE], len(listed) > ROLL_OUTS_PER_PAGE
    open_ids = [rollout.id for rollout in shown if rollout.is_open]
    rows = judge_rows(store, shown, store.revisions.job_times(*open_ids), store.revisions.job_starts(*open_ids))
    if query.format == "json":
        # Without the seed: who knows it can choose the name of a job.
        shown_rows = [{**row, "rollout": RollOutDocument.model_validate(row["rollout"].to_document())} for row in rows]
        return json_response({"rollouts": shown_rows, "more": has_more})
    return page.write_html(
        "rollouts.html",
        query=query,
        rows=rows,
        states=["open", *(state.value for state in RollOutState)],
        newer=query.address("/roll-outs", query.page - 1) if query.page > 1 else "",
        older=query.address("/roll-outs", query.page + 1) if has_more else "",
    )


@router.get("/roll-outs/{id}", dependencies=needs(Role.READ))
def show_roll_out(id: str, query: Annotated[PageQuery, Query()], store: CurrentStore, page: CurrentPage) -> Response:
    """Show one roll-out with its jobs so far."""
    rollout = store.revisions.rollout(id)
    if query.format == "json":
        return json_response({"rollout": get_roll_out(id, store)})
    times, starts = store.revisions.job_times(id), store.revisions.job_starts(id)
    ids = [arm.recommendation for arm in rollout.arms]
    answer = page.write_html(
        "rollout.html",
        rollout=rollout,
        row=judge_rows(store, [rollout], times, starts)[0],
        numerics=describe_cohort_bits(store, rollout),
        charts=[chart for draw in (gain_chart, starts_chart) if (chart := draw(rollout, times, starts))],
        untried=[revision.id for revision in store.recommendations.find(id=ids) if revision.is_untried],
        events=store.revisions.history(recommendation=ids, limit=_EVENTS),
    )
    if not rollout.is_open:  # replace the whole page where it is open
        answer.headers.update(WHOLE_PAGE)
    return answer


@router.post("/roll-outs/{id}/{verb}", dependencies=[*needs(Role.APPROVE), OwnForm])
def hold(
    id: str,
    verb: Literal["pause", "resume"],
    store: CurrentStore,
    request: Request,
    why: Annotated[str, Form(max_length=MOST_WHY)] = "",
) -> Response:
    """Pause or resume a roll-out, and show it again."""
    HOLDS[verb].change(store.revisions, id, Actor(who=who(request), why=why.strip()))
    return RedirectResponse(f"/roll-outs/{quote(id, safe='')}", 303)


def judge_rows(
    store: Store, rollouts: Sequence[RollOut], times: Iterable[JobTime], starts: Iterable[JobStart]
) -> list[dict[str, Any]]:
    """Return the rows of roll-outs, from the jobs of the open ones."""
    reported: dict[str, list[JobTime]] = defaultdict(list)
    started: dict[str, list[JobStart]] = defaultdict(list)
    for report in times:
        reported[report.rollout].append(report)
    for start in starts:
        started[start.rollout].append(start)
    live, now_s = [rollout for rollout in rollouts if rollout.is_open], time.time()
    verdicts = {row.id: judge_roll_out(row, reported[row.id], started[row.id], now_s=now_s) for row in live}
    counts = store.revisions.count_jobs([rollout.id for rollout in rollouts])
    holds = Holds.read(store, live)
    return [build_row(rollout, counts, verdicts.get(rollout.id), holds) for rollout in rollouts]


def build_row(
    rollout: RollOut, counts: Mapping[tuple[str, str], tuple[int, int]], progress: RollOutVerdict | None, holds: Holds
) -> dict[str, Any]:
    """Return the row of a roll-out.

    Args:
        rollout: the roll-out.
        counts: starts and reports by roll-out and revision.
        progress: verdict on it so far; None = it has ended.
        holds: holds of the open roll-outs.

    Returns:
        rollout, progress: the arguments.
        percent: current share of the starts with an arm, in percent.
        held: reason for serving none of its arms; empty = it serves them.
        reports, controls: numbers of reports with an arm, and with the control.
        unreported, unreported_controls: numbers of starts without a report so far.
        lacks_reports: an arm has clearly more unreported starts than the control.
        missing_pairs: min further pairs of reports for a win; None = decided, or only the gain is missing.
        verdict: one sentence.
    """
    jobs = [counts.get((rollout.id, arm.recommendation), (0, 0)) for arm in rollout.arms]
    control_starts, controls = counts.get((rollout.id, rollout.control), (0, 0))
    missing = [started - reported for started, reported in jobs]
    missing_controls = control_starts - controls
    missing_pairs = fewest_pairs(len(jobs)) - min(max(reported for _, reported in jobs), controls)
    is_undecided = rollout.is_open and not rollout.winner
    return {
        "rollout": rollout,
        "percent": holds.percent(rollout),
        "held": holds.explain(rollout),
        "reports": sum(reported for _, reported in jobs),
        "controls": controls,
        "unreported": sum(missing),
        "unreported_controls": missing_controls,
        "lacks_reports": any(
            count_excess(lacking, started, missing_controls, control_starts)
            for lacking, (started, _) in zip(missing, jobs, strict=True)
        ),
        "missing_pairs": missing_pairs if is_undecided and missing_pairs > 0 else None,
        "verdict": rollout.reason or (progress.reason if progress else ""),
        "progress": progress,
    }


def gain_chart(rollout: RollOut, times: Sequence[JobTime], starts: Sequence[JobStart]) -> Chart | None:
    """Draw the change of step time of each arm against the control over reports; None = no pair of jobs yet."""
    lines, rows, ends = [], [], [0.0, 100 * rollout.loss_limit]
    for number, arm in enumerate(rollout.arms):
        traced = [
            (reports, gain)
            for reports, gain in trace_gains(rollout, number, times, starts, most=_MOST_GAINS)
            if math.isfinite(gain.interval[1]) and gain.interval[0] > 0
        ]
        if not traced:
            continue
        points: list[tuple[Any, ...]] = [
            (reports, _to_change(gain.estimate), f"{gain.pairs} pairs", *map(_to_change, reversed(gain.interval)))
            for reports, gain in traced
        ]
        ends += [end for point in points for end in point[3:]]
        lines.append(Line.through(f"revision {arm.recommendation}", _TONES[number], "line", points))
        rows += [(arm.recommendation, str(reports), *_write_gain(gain)) for reports, gain in traced]
    if not lines:
        return None
    return Chart(
        id="gain",
        title="Step time against the control",
        description="From pairs of jobs; below 0 is faster. The 95 % interval is valid at every look.",
        x=Axis("Reports", "count", low=0),
        y=Axis("Change", "percent", low=max(min(ends) - 1, -_WIDEST), high=min(max(ends) + 1, _WIDEST)),
        lines=lines,
        levels=[Level(0.0, "no change"), Level(100 * rollout.loss_limit, "loss limit", "failed")],
        table=ChartTable(("Revision", "Reports", "Pairs", "Change", "95 % CI"), rows),
    )


def starts_chart(rollout: RollOut, times: Sequence[JobTime], starts: Sequence[JobStart]) -> Chart | None:
    """Draw started and reported jobs of each arm and of the control over time; None = no job has started."""
    if not starts:
        return None
    first_s = min(start.issued_s for start in starts)
    issued_s = {start.job: start.issued_s for start in starts}
    groups = [(f"revision {arm.recommendation}", arm.recommendation) for arm in rollout.arms]
    groups.append(("control", rollout.control))
    rows: list[tuple[str, str, str]] = []
    series: list[tuple[str, Tone, Mark, list[float]]] = []
    for (label, id), tone in zip(groups, (*_TONES[: len(rollout.arms)], "default"), strict=True):
        started_h = [(start.issued_s - first_s) / 3600 for start in starts if start.recommendation == id]
        reported_h = [
            (issued_s[report.job] + report.waited_s - first_s) / 3600
            for report in times
            if report.recommendation == id and report.job in issued_s
        ]
        series.append((f"{label}, started", tone, "dashed", sorted(started_h)))
        series.append((f"{label}, reported", tone, "line", sorted(reported_h)))
        rows.append((label, str(len(started_h)), str(len(reported_h))))
    last_h = max((hour for *_, hours in series for hour in hours), default=0.0) or 1.0
    moments = [last_h * part / _MOMENTS for part in range(_MOMENTS + 1)]
    return Chart(
        id="starts",
        title="Started and reported jobs",
        description="If the gap between the lines grows only for a revision, its jobs hang or fail.",
        x=Axis("Since the first start", "hours", low=0),
        y=Axis("Jobs", "count", low=0),
        lines=[
            Line.through(label, tone, mark, [(moment, bisect_right(hours, moment)) for moment in moments])
            for label, tone, mark, hours in series
        ],
        table=ChartTable(("Jobs with", "Started", "Reported"), rows),
    )


def _to_change(speedup: float) -> float:
    """Return the change of step time of a speed-up, in percent."""
    return 100 / speedup - 100


def _write_gain(gain: PairedGain) -> tuple[str, str, str]:
    """Return the number of pairs, the change and its interval as text."""
    change, low, high = (format_change(_to_change(value) / 100) for value in (gain.estimate, *reversed(gain.interval)))
    return str(gain.pairs), change, f"{low} to {high}"
