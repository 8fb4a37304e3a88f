"""Gain over time of one workload on one cluster: verdicts, rechecks, stale marks, and the jobs of roll-outs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from ncclt.core.plural import count_noun
from ncclt.core.recheck import Recheck
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.revision import HistoryEvent
from ncclt.core.rollout import JobStart, JobTime, RollOut
from ncclt.core.trial import TimesOrigin
from ncclt.prove.rollout import find_grace
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Level, Line, Mark, Tone
from ncclt_api.pages.overview import ORIGIN_ORDER, REGRESSION
from ncclt_api.pages.results import Result, build_result
from ncclt_api.pages.wording import (
    format_change,
    format_interval,
    format_shape,
    format_speedup,
    format_state,
    format_time,
    format_when,
)


def group_comparable(found: Iterable[Recommendation]) -> dict[str, list[Recommendation]]:
    """Group revisions by what their times depend on besides NCCL: job size, GPU and origin; measured ones first.

    Args:
        found: newest first; groups and their members keep this order.
    """
    groups: dict[str, list[Recommendation]] = {}
    for one in sorted(found, key=lambda one: ORIGIN_ORDER[one.origin]):
        origin = "step times of jobs" if one.has_step_times else one.origin.value
        groups.setdefault(f"{format_shape(one.fingerprint)}, {origin}", []).append(one)
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
    def found(self) -> Recommendation:
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
        verdict = self.result.verdict
        gain = f" {format_speedup(verdict.speedup)} ({format_interval(verdict.interval)})" if verdict.blocks else ""
        return (
            f"{format_state(self.found.verdict_word(verdict))}{gain}, {self.found.origin}, "
            f"NCCL {self.found.fingerprint.nccl_version}, revision {self.found.revision}"
            f"{', changed workload' if self.is_changed else ''}"
        )


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
    first = points[0].found
    is_measured = first.origin is TimesOrigin.MEASURED
    mark: Mark = "dot" if is_measured else "ring"
    of = {point.found.id: point for point in points}
    checked = [(one, of[one.recommendation], str(one.freshness)) for one in rechecks if one.recommendation in of]
    stale = [(one, of[one.recommendation], one.why) for one in marks if one.recommendation in of]
    tried = [one for one in rollouts if any(arm.recommendation in of for arm in one.arms)]
    gains = [point for point in points if point.is_gain]
    unused = [point for point in points if not point.is_gain and point.result.policy_us]
    kind, gain_kind = ("", "") if is_measured else (f", {first.origin}", f", {first.origin} (demonstration)")
    medians, levels = _compare_releases(points)
    times_us = [
        time for point in points for time in (point.default_us, *(point.policy_ends_us or (point.delivered_us,)))
    ]
    room_us = 0.1 * (max(times_us) - min(times_us)) or 0.01 * max(times_us)
    lines = [
        *medians,
        *_policy_lines(f"tuned policy{gain_kind}", "good" if is_measured else "warn", mark, gains),
        *_policy_lines(f"tested policy, not used{kind}", "quiet", mark, unused),
        Line(
            label=f"NCCL default{kind}",
            tone="default",
            mark=mark,
            x=[point.at for point in points],
            y=[point.default_us for point in points],
            notes=[point.words for point in points],
        ),
        _event_line("recheck", "c4", "ring", checked),
        _event_line("stale", "failed", "cross", stale),
        *(_rollout_line(one, min(times_us) - room_us, now) for one in tried),
    ]
    rows: list[tuple[str, str, float | None, float | None]] = []
    rows += [(point.found.created, point.words, point.default_us, point.delivered_us) for point in points]
    rows += [(one.created, f"recheck: {why}", None, None) for one, _, why in checked]
    rows += [(one.created, f"stale: {why}", None, None) for one, _, why in stale]
    rows += [(one.created, f"roll-out {one.id} started", None, None) for one in tried]
    rows += [(one.ended, f"roll-out {one.id} {one.state}: {one.reason}", None, None) for one in tried if one.ended]
    return Chart(
        id="gain-chart",
        title="Default and policy over time",
        description=f"{count_noun(len(points), 'verdict')}, {len(gains)} tuned{gain_kind}. Lower is faster; bars are "
        "95 % intervals; steps are medians per NCCL release.",
        x=Axis(label="", unit="date"),
        y=Axis(
            label="step time of jobs" if first.has_step_times else "communication per step",
            unit="us",
            high=max(times_us) + 3 * room_us,  # the names of the releases are written there
        ),
        lines=[line for line in lines if line.x],
        levels=levels,
        table=ChartTable(
            columns=("Time", "Event", "Default", "With ncclt"),
            rows=[
                (format_when(when), words, format_time(default_us), format_time(delivered_us))
                for when, words, default_us, delivered_us in sorted(rows, key=lambda row: row[0], reverse=True)
            ],
        ),
    )


def _place(verdicts: Iterable[Recommendation]) -> list[_Point]:
    """Return the verdicts with a time of the default, oldest first."""
    points: list[_Point] = []
    for result in map(build_result, sorted(verdicts, key=lambda one: one.created)):
        if result.default_us:
            at = max(_seconds(result.recommendation.created), points[-1].at + 1 if points else 0)
            changed = bool(points) and points[-1].found.workload_digest != result.recommendation.workload_digest
            points.append(_Point(at=at, result=result, default_us=result.default_us, is_changed=changed))
    return points


def _compare_releases(points: Sequence[_Point]) -> tuple[list[Line], list[Level]]:
    """Return the step lines of the medians per NCCL release, and a level where each release begins.

    Times before and after a change of the workload are not compared.
    """
    releases: dict[tuple[str, str], list[_Point]] = {}
    for point in points:
        releases.setdefault((point.found.fingerprint.nccl_version, point.found.workload_digest), []).append(point)
    default_us = [median(point.default_us for point in found) for found in releases.values()]
    delivered_us = [median(point.delivered_us for point in found) for found in releases.values()]
    levels: list[Level] = []
    for number, ((version, digest), found) in enumerate(releases.items()):
        label = f"NCCL {version}"
        tone: Tone = "quiet"
        if number and digest != list(releases)[number - 1][1]:
            label += ", changed workload"
        elif number:
            change = default_us[number] / default_us[number - 1] - 1
            label += f": {format_change(change)}"
            tone = "failed" if change >= REGRESSION else "good" if change <= -REGRESSION else "quiet"
        levels.append(Level(at=found[0].at, label=label, tone=tone, axis="x"))
    at = [found[0].at for found in releases.values()]
    ending = [points[-1].at] if points[-1].at > at[-1] else []
    notes = [f"NCCL {version}, {count_noun(len(found), 'verdict')}" for (version, _), found in releases.items()]
    series: list[tuple[str, Tone, list[float]]] = [
        ("default", "default", default_us),
        ("with ncclt", "policy", delivered_us),
    ]
    lines = [
        Line(
            label=f"{name}, median per NCCL release",
            tone=tone,
            mark="step",
            x=at + ending,
            y=times_us + times_us[-1:] * len(ending),
            notes=notes + notes[-1:] * len(ending),
        )
        for name, tone, times_us in series
    ]
    return lines, levels


def _policy_lines(label: str, tone: Tone, mark: Mark, points: Sequence[_Point]) -> list[Line]:
    """Return the policies of some verdicts with their intervals."""
    bounded = [(point.at, ends) for point in points if (ends := point.policy_ends_us)]
    at, ends_us = [at for at, _ in bounded], [ends for _, ends in bounded]
    low, high = [low for low, _ in ends_us], [high for _, high in ends_us]
    return [
        Line(label=label, tone=tone, mark="stem", x=at, y=[None] * len(at), low=low, high=high),
        Line(
            label=label,
            tone=tone,
            mark=mark,
            x=[point.at for point in points],
            y=[point.result.policy_us for point in points],
            notes=[point.words for point in points],
        ),
    ]


def _event_line(
    label: str, tone: Tone, mark: Mark, events: Iterable[tuple[Recheck | HistoryEvent, _Point, str]]
) -> Line:
    """Return events of revisions, each at the height of the revision's verdict."""
    placed = {_seconds(one.created): (point.delivered_us, why) for one, point, why in events}
    at = sorted(placed)
    return Line(
        label=label,
        tone=tone,
        mark=mark,
        x=at,
        y=[placed[when][0] for when in at],
        notes=[placed[when][1] for when in at],
    )


def _rollout_line(rollout: RollOut, height_us: float, now: datetime) -> Line:
    """Return a roll-out from its start to its end, or until now."""
    start = _seconds(rollout.created)
    end = _seconds(rollout.ended) if rollout.ended else int(now.timestamp())
    words = f"{rollout.state}: {rollout.reason}" if rollout.reason else rollout.state
    return Line(label="roll-out", tone="c6", x=[start, max(end, start + 1)], y=[height_us] * 2, notes=[words] * 2)


def _seconds(iso: str) -> int:
    """Return an ISO time as Unix time."""
    when = datetime.fromisoformat(iso)
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """Job of a roll-out with its effect.

    Attributes:
        start: the revision that it got, and when.
        started: the same time, ISO in UTC.
        is_control: it got the control of the roll-out.
        step_us: median step time that it reported, µs; None = no report yet.
        change: of the step time against the median of the control's jobs, as a share; None = not known.
        is_missing: it has not reported in the time that jobs of this roll-out take.
    """

    start: JobStart
    started: str
    is_control: bool
    step_us: float | None
    change: float | None
    is_missing: bool


def compare_jobs(starts: Iterable[tuple[JobStart, str]], times: Iterable[JobTime], *, now: datetime) -> list[JobRow]:
    """Return jobs with their step times against the median of their roll-out's control.

    Args:
        starts: each with the control of its roll-out; the rows keep their order.
        times: of all jobs of these roll-outs.
        now: for the age of starts without a report.
    """
    starts = list(starts)
    reports: dict[str, dict[str, JobTime]] = {start.rollout: {} for start, _ in starts}
    for time in times:
        reports[time.rollout][time.job] = time
    usual_us: dict[str, float] = {}
    for id, control in {start.rollout: control for start, control in starts}.items():
        if steps_us := [time.step_us for time in reports[id].values() if time.recommendation == control]:
            usual_us[id] = median(steps_us)
    grace_s = {id: find_grace(list(found.values())) for id, found in reports.items()}
    rows = []
    for start, control in starts:
        report, before_us = reports[start.rollout].get(start.job), usual_us.get(start.rollout)
        rows.append(
            JobRow(
                start=start,
                started=datetime.fromtimestamp(start.issued_s, UTC).isoformat(timespec="seconds"),
                is_control=start.recommendation == control,
                step_us=report.step_us if report else None,
                change=report.step_us / before_us - 1 if report and before_us else None,
                is_missing=report is None and now.timestamp() - start.issued_s > grace_s[start.rollout],
            )
        )
    return rows
