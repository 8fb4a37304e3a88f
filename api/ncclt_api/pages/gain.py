"""The page of one workload on one cluster over time: verdicts, later events, and the jobs of roll-outs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from ncclt.core.api_key import Role
from ncclt.core.plural import count_noun
from ncclt.core.recheck import Recheck
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.revision import Action, HistoryEvent
from ncclt.core.rollout import JobStart, JobTime, RollOut
from ncclt.core.trial import TimesOrigin
from ncclt.prove.rollout import find_grace
from ncclt_api.access import needs
from ncclt_api.dependencies import MOST_NUMBER, CurrentStore
from ncclt_api.pages import wording
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Level, Line, Mark, Tone
from ncclt_api.pages.cluster import find_cluster
from ncclt_api.pages.response import CurrentPage, PageQuery, page_router
from ncclt_api.pages.results import ORIGIN_ORDER, REGRESSION, Result, build_result

_Row = TypeVar("_Row", Recheck, HistoryEvent)

router = page_router(dependencies=needs(Role.READ))

MOST_VERDICTS, MOST_EVENTS, MOST_ROLLOUTS, JOBS_PER_PAGE = 150, 200, 20, 25
"""Revisions, entries of the history, roll-outs and jobs on the page."""


class GainQuery(PageQuery):
    """Group of verdicts in the chart, and page of the jobs of roll-outs; empty = the first."""

    jobs: str = Field("", max_length=200)
    before: int | None = Field(None, ge=1, le=MOST_NUMBER)


@router.get("/clusters/{name:path}/workloads/{model:path}")
def show_gain(
    name: str, model: str, query: Annotated[GainQuery, Query()], store: CurrentStore, page: CurrentPage
) -> Response:
    """Show one workload on one cluster over time: verdicts, later events, and the jobs of roll-outs."""
    now = datetime.now(UTC)
    verdicts = store.recommendations.find(cluster=name, model=model, limit=MOST_VERDICTS)
    if not verdicts:  # an unknown name is an error
        find_cluster(store, name)
        store.workloads.get(model)
    groups = group_comparable(verdicts)
    chosen = query.jobs if query.jobs in groups else next(iter(groups), "")
    group = groups.get(chosen, [])
    ids = [revision.id for revision in group]
    listed = store.revisions.newest_starts(cluster=name, model=model, before=query.before, limit=JOBS_PER_PAGE + 1)
    starts = [(start, control) for _, start, control in listed[:JOBS_PER_PAGE]]
    times = store.revisions.job_times(*{start.rollout for start, _ in starts})
    values: dict[str, Any] = {
        "cluster": name,
        "model": model,
        "groups": list(groups),
        "chosen": chosen,
        "timeline": gain_chart(
            group,
            rechecks=store.records.rechecks(*ids),
            marks=store.revisions.history(recommendation=ids, action=Action.STALE, limit=MOST_EVENTS),
            rollouts=store.revisions.rollouts(cluster=name, model=model, limit=MOST_ROLLOUTS),
            now=now,
        ),
        "jobs": compare_jobs(starts, times, now=now),
        "before": listed[JOBS_PER_PAGE - 1][0] if len(listed) > JOBS_PER_PAGE else None,
    }
    return page.write(
        "gain.html",
        query,
        values,
        newest=verdicts[0] if verdicts else None,
        revisions={revision.id: revision.revision for revision in verdicts},
        is_cut=len(verdicts) == MOST_VERDICTS,
        is_demonstration=bool(group) and bool(group[0].label),
        is_first=query.before is None,
    )


def group_comparable(verdicts: Iterable[Recommendation]) -> dict[str, list[Recommendation]]:
    """Group revisions by what their times depend on besides NCCL: job size, GPU and origin; measured ones first.

    Args:
        verdicts: newest first; groups and their members keep this order.
    """
    groups: dict[str, list[Recommendation]] = {}
    for revision in sorted(verdicts, key=lambda revision: ORIGIN_ORDER[revision.origin]):
        origin = "step times of jobs" if revision.has_step_times else revision.origin.value
        groups.setdefault(f"{wording.format_shape(revision.fingerprint)}, {origin}", []).append(revision)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """Verdict on the time axis.

    Attributes:
        at: Unix time of its publication, whole seconds; no two points have the same.
        result: of the revision.
        default_us: time of the NCCL default, µs.
        is_changed: the workload changed since the point before.
    """

    at: int
    result: Result
    default_us: float
    is_changed: bool

    @property
    def revision(self) -> Recommendation:
        """Return the revision."""
        return self.result.recommendation

    @property
    def is_gain(self) -> bool:
        """True for a validated gain, even if it became stale later."""
        return self.result.verdict.decision is Decision.TUNED

    @property
    def delivered_us(self) -> float:
        """Return the time of the delivered settings, µs: of the policy if it is a gain, else of the default."""
        return (self.result.policy_us if self.is_gain else None) or self.default_us

    @property
    def policy_ends_us(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the policy's time, µs, at this time of the default."""
        interval = self.result.interval
        return (self.default_us / interval[1], self.default_us / interval[0]) if interval and interval[0] > 0 else None

    @property
    def words(self) -> str:
        """Return verdict, gain, origin, NCCL version and revision in one line."""
        verdict, revision = self.result.verdict, self.revision
        gain = f" {wording.format_speedup(verdict.speedup)} ({wording.format_interval(verdict.interval)})"
        return (
            f"{wording.format_state(revision.verdict_word(verdict))}{gain if verdict.blocks else ''}, "
            f"{revision.origin}, NCCL {revision.fingerprint.nccl_version}, revision {revision.revision}"
            f"{', changed workload' if self.is_changed else ''}"
        )


class _Event(NamedTuple):
    """Later event of a revision, at the height of its verdict."""

    created: str
    point: _Point
    words: str


def gain_chart(
    verdicts: Iterable[Recommendation],
    *,
    rechecks: Iterable[Recheck] = (),
    marks: Iterable[HistoryEvent] = (),
    rollouts: Iterable[RollOut] = (),
    now: datetime,
) -> Chart | None:
    """Draw the default and the policy over time, and their medians per NCCL release; None without a verdict.

    Args:
        verdicts: of one group of `group_comparable`.
        rechecks, rollouts: those of other revisions are left out.
        marks: history entries of revisions that became stale; likewise.
        now: end of the open roll-outs.
    """
    points = _place(verdicts)
    if not points:
        return None
    by_id = {point.revision.id: point for point in points}
    checked = _find_events(rechecks, by_id, lambda recheck: str(recheck.freshness))
    stale = _find_events(marks, by_id, lambda mark: mark.why)
    tried = [row for row in rollouts if any(arm.recommendation in by_id for arm in row.arms)]
    times_us = [
        time for point in points for time in (point.default_us, *(point.policy_ends_us or (point.delivered_us,)))
    ]
    room_us = 0.1 * (max(times_us) - min(times_us)) or 0.01 * max(times_us)
    medians, levels = _compare_releases(points)
    lines = [
        *medians,
        *_verdict_lines(points),
        _event_line("recheck", "c4", "ring", checked),
        _event_line("stale", "failed", "cross", stale),
        *(_rollout_line(rollout, min(times_us) - room_us, now) for rollout in tried),
    ]
    first, gains = points[0].revision, sum(point.is_gain for point in points)
    return Chart(
        id="gain-chart",
        title="Default and policy over time",
        description=f"{count_noun(len(points), 'verdict')}, {gains} tuned{_describe_origin(first, is_gain=True)}. "
        "Lower is faster; bars are 95 % intervals; steps are medians per NCCL release.",
        x=Axis("", "date"),
        y=Axis(
            "step time of jobs" if first.has_step_times else "communication per step",
            "us",
            high=max(times_us) + 3 * room_us,  # the names of the releases are written there
        ),
        lines=[line for line in lines if line.x],
        levels=levels,
        table=_list_events(points, checked, stale, tried),
    )


def _find_events(rows: Iterable[_Row], by_id: Mapping[str, _Point], describe: Callable[[_Row], str]) -> list[_Event]:
    """Return the rechecks or history entries that are of revisions in the chart."""
    return [
        _Event(row.created, by_id[row.recommendation], describe(row)) for row in rows if row.recommendation in by_id
    ]


def _list_events(
    points: Iterable[_Point], checked: Iterable[_Event], stale: Iterable[_Event], tried: Iterable[RollOut]
) -> ChartTable:
    """Return all events, newest first."""
    rows: list[tuple[str, str, float | None, float | None]] = []
    rows += [(point.revision.created, point.words, point.default_us, point.delivered_us) for point in points]
    rows += [(event.created, f"recheck: {event.words}", None, None) for event in checked]
    rows += [(event.created, f"stale: {event.words}", None, None) for event in stale]
    rows += [(row.created, f"roll-out {row.id} started", None, None) for row in tried]
    rows += [(row.ended, f"roll-out {row.id} {row.state}: {row.reason}", None, None) for row in tried if row.ended]
    figures = [
        (wording.format_when(when), words, wording.format_time(default_us), wording.format_time(delivered_us))
        for when, words, default_us, delivered_us in sorted(rows, key=lambda row: row[0], reverse=True)
    ]
    return ChartTable(("Time", "Event", "Default", "With ncclt"), figures)


def _place(verdicts: Iterable[Recommendation]) -> list[_Point]:
    """Return the verdicts with a time of the default, oldest first."""
    points: list[_Point] = []
    for result in map(build_result, sorted(verdicts, key=lambda revision: revision.created)):
        if result.default_us:
            at = max(_to_unix_time(result.recommendation.created), points[-1].at + 1 if points else 0)
            is_changed = bool(points) and points[-1].revision.workload_digest != result.recommendation.workload_digest
            points.append(_Point(at=at, result=result, default_us=result.default_us, is_changed=is_changed))
    return points


def _describe_origin(revision: Recommendation, *, is_gain: bool) -> str:
    """Return the origin of times that were not measured, behind a comma."""
    if revision.origin is TimesOrigin.MEASURED:
        return ""
    return f", {revision.origin} (demonstration)" if is_gain else f", {revision.origin}"


def _compare_releases(points: Sequence[_Point]) -> tuple[list[Line], list[Level]]:
    """Return the step lines of the medians per NCCL release, and a level where each release begins.

    Times before and after a change of the workload are not compared.
    """
    by_release: dict[tuple[str, str], list[_Point]] = {}
    for point in points:
        revision = point.revision
        by_release.setdefault((revision.fingerprint.nccl_version, revision.workload_digest), []).append(point)
    releases = list(by_release.items())
    default_us = [median(point.default_us for point in members) for _, members in releases]
    delivered_us = [median(point.delivered_us for point in members) for _, members in releases]
    levels: list[Level] = []
    for number, ((version, digest), members) in enumerate(releases):
        label = f"NCCL {version}"
        tone: Tone = "quiet"
        if number and digest != releases[number - 1][0][1]:
            label += ", changed workload"
        elif number:
            change = default_us[number] / default_us[number - 1] - 1
            label += f": {wording.format_change(change)}"
            tone = "failed" if change >= REGRESSION else "good" if change <= -REGRESSION else "quiet"
        levels.append(Level(members[0].at, label, tone, axis="x"))
    at = [members[0].at for _, members in releases]
    notes = [f"NCCL {version}, {count_noun(len(members), 'verdict')}" for (version, _), members in releases]
    is_longer = points[-1].at > at[-1]  # the last step reaches the last verdict

    def step(name: str, tone: Tone, times_us: list[float]) -> Line:
        steps: list[tuple[int, float, str]] = list(zip(at, times_us, notes, strict=True))
        steps += [(points[-1].at, times_us[-1], notes[-1])] * is_longer
        return Line.through(f"{name}, median per NCCL release", tone, "step", steps)

    return [step("default", "default", default_us), step("with ncclt", "policy", delivered_us)], levels


def _verdict_lines(points: Sequence[_Point]) -> list[Line]:
    """Return the policies of the verdicts with their intervals, and the default."""
    first = points[0].revision
    is_measured = first.origin is TimesOrigin.MEASURED
    mark: Mark = "dot" if is_measured else "ring"
    series: list[tuple[str, Tone, list[_Point]]] = [
        ("tuned policy", "good" if is_measured else "warn", [point for point in points if point.is_gain]),
        ("tested policy, not used", "quiet", [row for row in points if not row.is_gain and row.result.policy_us]),
    ]
    lines = []
    for name, tone, members in series:
        label = name + _describe_origin(first, is_gain=tone != "quiet")
        bounded = [(point.at, None, "", *ends_us) for point in members if (ends_us := point.policy_ends_us)]
        policies = [(point.at, point.result.policy_us, point.words) for point in members]
        lines += [Line.through(label, tone, "stem", bounded), Line.through(label, tone, mark, policies)]
    default = [(point.at, point.default_us, point.words) for point in points]
    return [*lines, Line.through(f"NCCL default{_describe_origin(first, is_gain=False)}", "default", mark, default)]


def _event_line(label: str, tone: Tone, mark: Mark, events: Iterable[_Event]) -> Line:
    placed = {_to_unix_time(event.created): event for event in events}
    points = [(at, event.point.delivered_us, event.words) for at, event in sorted(placed.items(), key=lambda p: p[0])]
    return Line.through(label, tone, mark, points)


def _rollout_line(rollout: RollOut, height_us: float, now: datetime) -> Line:
    """Return a roll-out from its start to its end, or until now."""
    start = _to_unix_time(rollout.created)
    end = _to_unix_time(rollout.ended) if rollout.ended else int(now.timestamp())
    words = f"{rollout.state}: {rollout.reason}" if rollout.reason else rollout.state
    ends = [(start, height_us, words), (max(end, start + 1), height_us, words)]
    return Line.through("roll-out", "c6", "line", ends)


def _to_unix_time(iso: str) -> int:
    when = datetime.fromisoformat(iso)
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def compare_jobs(
    starts: Sequence[tuple[JobStart, str]], times: Iterable[JobTime], *, now: datetime
) -> list[dict[str, Any]]:
    """Compare the step times of jobs with the median of their roll-out's control jobs.

    Args:
        starts: job starts, each with the control of its roll-out; rows keep this order.
        times: step times of all jobs of these roll-outs.
        now: current time, for the age of starts without a report.

    Returns:
        start: revision and time of the start.
        started: ISO time of the start in UTC.
        is_control: the job runs the control of the roll-out.
        step_us: reported mean step time, µs; None = no report yet.
        change: change against the median of the control's jobs, as a share; None = unknown.
        is_missing: no report within the usual time of this roll-out.
    """
    reports: dict[str, dict[str, JobTime]] = {start.rollout: {} for start, _ in starts}
    for time in times:
        reports[time.rollout][time.job] = time
    usual_us: dict[str, float] = {}
    for id, control in {start.rollout: control for start, control in starts}.items():
        if steps_us := [time.step_us for time in reports[id].values() if time.recommendation == control]:
            usual_us[id] = median(steps_us)
    grace_s = {id: find_grace(list(jobs.values())) for id, jobs in reports.items()}
    rows = []
    for start, control in starts:
        report, before_us = reports[start.rollout].get(start.job), usual_us.get(start.rollout)
        rows.append(
            {
                "start": start,
                "started": datetime.fromtimestamp(start.issued_s, UTC).isoformat(timespec="seconds"),
                "is_control": start.recommendation == control,
                "step_us": report.step_us if report else None,
                "change": report.step_us / before_us - 1 if report and before_us else None,
                "is_missing": report is None and now.timestamp() - start.issued_s > grace_s[start.rollout],
            }
        )
    return rows
