"""The pictures of a study, drawn on the server from plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from markupsafe import Markup

from ncclt.core.message import format_bytes
from ncclt.core.trial import Outcome
from ncclt_api.pages import svg
from ncclt_api.pages.message_rows import MessageLine
from ncclt_api.pages.scale import Scale, scale_over
from ncclt_api.pages.wording import format_interval, format_speedup, format_time

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_WIDTH = 960.0
_LEFT, _RIGHT = 64.0, 16.0
_FAILED_LANE = 18.0
"""Height below the plot for failed trials, which have no time."""
_MS_FROM_US = 2000.0
"""Axes that reach further are labelled in ms."""

CHART_MESSAGES = 20
"""The longest messages are drawn; the table holds them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPoint:
    """One trial of the search.

    Attributes:
        number: of the trial.
        score_us: communication time per step, µs; None = it failed.
        outcome: how it ended.
        label: its setting, as text.
    """

    number: int
    score_us: float | None
    outcome: Outcome
    label: str


def history_chart(points: Sequence[SearchPoint], default_us: float | None) -> Markup | None:
    """Draw every trial's score, the best so far and the default; None before anything was measured.

    Args:
        points: by number.
        default_us: score of the default setting, µs; None = not measured.
    """
    scored = [(point, point.score_us) for point in points if point.score_us is not None]
    if not scored:
        return None
    height, top, bottom = 330.0, 44.0, 280.0
    values = [score for _, score in scored] + ([default_us] if default_us else [])
    y = scale_over(values, start=bottom - _FAILED_LANE, end=top)
    last = max(point.number for point in points)
    x = Scale(low=-0.5, high=last + 0.5, start=_LEFT, end=_WIDTH - _RIGHT)
    best = min(score for _, score in scored)
    failed = [point for point in points if point.score_us is None]
    root = svg.drawing(
        id="history",
        title="Optimisation history",
        description=f"{len(scored)} measured and {len(failed)} failed trials; best {format_time(best)}"
        + (f", default {format_time(default_us)}." if default_us else "."),
        width=_WIDTH,
        height=height,
        kind="plot",
    )
    unit = 1000.0 if y.high >= _MS_FROM_US else 1.0
    title = f"communication time, {'ms' if unit > 1 else 'µs'}{' (logarithmic)' if y.log else ''}"
    svg.vertical_axis(root, y, left=_LEFT, right=_WIDTH - _RIGHT, title=title, unit=unit)
    _trial_axis(root, x, last=last, bottom=bottom)
    if default_us:
        line = svg.add(root, "line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y.position(default_us), y2=y.position(default_us))
        line.set("class", "default-line")
    _best_line(root, [(point.number, score) for point, score in scored], x=x, y=y)
    for point, score in scored:
        dot = svg.add(root, "circle", cx=x.position(point.number), cy=y.position(score), r=3.2, class_="trial")
        svg.tooltip(dot, f"trial {point.number}: {format_time(score)}, {point.label}")
    for point in failed:
        _cross(
            root,
            x.position(point.number),
            bottom - _FAILED_LANE / 2,
            f"trial {point.number}: {point.outcome}, {point.label}",
        )
    entries = [("trial", "trial"), ("best-line", "best so far")]
    entries += [("failed", "failed")] if failed else []
    entries += [("default-line", "NCCL's own choice")] if default_us else []
    _legend(root, entries, y=22)
    return svg.markup(root)


def _trial_axis(root: Element, x: Scale, *, last: int, bottom: float) -> None:
    svg.add(root, "line", x1=x.start, x2=x.end, y1=bottom, y2=bottom, class_="base")
    for value in sorted({round(tick) for tick in Scale(low=0, high=max(last, 1), start=0, end=1).ticks(8)}):
        svg.text(root, str(value), x=x.position(value), y=bottom + 18, kind="tick", anchor="middle")
    svg.text(root, "trial", x=(x.start + x.end) / 2, y=bottom + 38, kind="axis", anchor="middle")


def _best_line(root: Element, scores: Sequence[tuple[int, float]], *, x: Scale, y: Scale) -> None:
    best = list(accumulate((score for _, score in scores), min))
    path = [f"M{x.position(scores[0][0])} {y.position(best[0])}"]
    for (number, _), value in zip(scores[1:], best[1:], strict=True):
        path.append(f"H{x.position(number)}V{y.position(value)}")
    path.append(f"H{x.end}")
    svg.add(root, "path", d="".join(path), class_="best-line")


def _cross(root: Element, x: float, y: float, words: str) -> None:
    mark = svg.add(root, "path", d=f"M{x - 3.5:g} {y - 3.5:g}l7 7m0 -7l-7 7", class_="failed")
    svg.tooltip(mark, words)


def _legend(root: Element, entries: Sequence[tuple[str, str]], *, y: float) -> None:
    x = _WIDTH - _RIGHT
    for kind, words in reversed(entries):
        x -= 6.6 * len(words)
        svg.text(root, words, x=x, y=y + 4, kind="tick")
        if kind.endswith("line"):
            svg.add(root, "line", x1=x - 26, x2=x - 7, y1=y, y2=y, class_=kind)
        elif kind == "failed":
            _cross(root, x - 13, y, words)
        else:
            svg.add(root, "circle", cx=x - 13, cy=y, r=4, class_=kind)
        x -= 42


def messages_chart(rows: Sequence[MessageLine], *, policy_name: str) -> Markup | None:
    """Draw the time of each message under default and policy, the longest per step first.

    Args:
        rows: in the order to draw; those that were not measured under both are left out.
        policy_name: what the filled dots represent.
    """
    measured = [
        (row, row.default_us, row.policy_us)
        for row in rows[:CHART_MESSAGES]
        if row.default_us is not None and row.policy_us is not None
    ]
    if not measured:
        return None
    left, top, step = 250.0, 44.0, 24.0
    bottom = top + step * len(measured)
    x = scale_over([t for _, *times in measured for t in times], start=left, end=_WIDTH - 64)
    faster = sum(1 for _, default_us, policy_us in measured if policy_us < default_us)
    root = svg.drawing(
        id="messages",
        title="Time of each message",
        description=f"{len(measured)} messages, {faster} of them faster under the {policy_name} than by default.",
        width=_WIDTH,
        height=bottom + 50,
        kind="plot",
    )
    unit = 1000.0 if x.low >= _MS_FROM_US else 1.0
    title = f"time of one call, {'ms' if unit > 1 else 'µs'}{' (logarithmic)' if x.log else ''}"
    svg.horizontal_axis(root, x, top=top - 6, bottom=bottom, title=title, unit=unit)
    for index, (row, default_us, policy_us) in enumerate(measured):
        _message_line(root, row, default_us, policy_us, x=x, y=top + step * (index + 0.5) - 3)
    _legend(root, [("hollow", "NCCL's own choice"), ("filled", policy_name)], y=18)
    return svg.markup(root)


def _message_line(root: Element, row: MessageLine, default_us: float, policy_us: float, *, x: Scale, y: float) -> None:
    faster = policy_us <= default_us
    group = svg.add(root, "g", class_="gain" if faster else "loss")
    svg.tooltip(group, f"{row.message.label}: {format_time(default_us)} → {format_time(policy_us)}, {row.setting}")
    svg.text(group, f"{row.message.collective}", x=8, y=y + 4, kind="label")
    svg.text(group, format_bytes(row.message.size_bytes), x=228, y=y + 4, kind="label", anchor="end")
    start, end = x.position(default_us), x.position(policy_us)
    svg.add(group, "line", x1=start, x2=end, y1=y, y2=y, class_="change")
    svg.add(group, "circle", cx=start, cy=y, r=4, class_="hollow")
    svg.add(group, "circle", cx=end, cy=y, r=4, class_="filled")
    svg.text(group, f"{default_us / policy_us:.2f}×", x=_WIDTH - 8, y=y + 4, kind="value", anchor="end")


def interval_reach(intervals: Iterable[tuple[float, float]]) -> float:
    """Return how far from 1 an axis must reach to hold all bounded intervals; never less than 5 %."""
    bounds = [bound for interval in intervals if math.isfinite(interval[1]) for bound in interval]
    return 1.1 * max([abs(bound - 1) for bound in bounds] + [0.05])


def interval_chart(
    speedup: float, interval: tuple[float, float], *, id: str, reach: float | None = None
) -> Markup | None:
    """Draw a speed-up with its interval beside the line of no change, in the size of a word.

    Args:
        speedup: above 1 = faster.
        interval: 95 %; without bounds nothing is drawn.
        id: unique in the page.
        reach: half the width of the axis, the same for all that are compared; None = what this one needs.
    """
    low, high = interval
    if not math.isfinite(high):
        return None
    half = reach or interval_reach([interval])
    x = Scale(low=1 - half, high=1 + half, start=4, end=108)
    root = svg.drawing(
        id=id,
        title="Speed-up with its 95 % interval",
        description=f"{format_speedup(speedup)}, from {format_interval(interval)}; the line stands at 1, no change.",
        width=112,
        height=18,
        kind="interval " + ("gain" if low > 1 else "loss" if high < 1 else "open"),
    )
    svg.add(root, "line", x1=x.position(1), x2=x.position(1), y1=1, y2=17, class_="base")
    svg.add(root, "line", x1=x.position(low), x2=x.position(high), y1=9, y2=9, class_="whisker")
    svg.add(root, "circle", cx=x.position(speedup), cy=9, r=3.4, class_="filled")
    return svg.markup(root)
