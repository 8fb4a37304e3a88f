"""Charts as records: lines, rows and spans with their axes, and a table of the same data beside each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, Self

from markupsafe import Markup

Unit = Literal["bytes", "us", "gbps", "ratio", "percent", "count", "hours", "number", "date"]
Mark = Literal["line", "dashed", "step", "dot", "ring", "cross", "stem", "span"]
Tone = Literal["default", "policy", "best", "quiet", "good", "failed", "warn", "c1", "c2", "c3", "c4", "c5", "c6"]
Number = float | int | None


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis.

    Attributes:
        label: its name.
        unit: format of its ticks; times in µs, bandwidth in 1e9 bytes/s, dates as whole Unix seconds.
        log: base of a logarithmic axis, 2 or 10; 0 = linear.
        low, high: fixed ends; None = those of the data.
    """

    label: str
    unit: Unit
    log: int = 0
    low: float | None = None
    high: float | None = None


class Point(NamedTuple):
    """Point of a line with its tooltip line and its noise band; None = a gap, or no band."""

    x: Number
    y: Number
    note: str = ""
    low: Number = None
    high: Number = None


@dataclass(frozen=True, slots=True)
class Line:
    """One series; `x` rises strictly.

    Attributes:
        label: its name in the legend.
        tone: colour of the stylesheet: the same thing has the same tone in every chart.
        mark: shape of the points; a stem goes from `low` to `high`.
        x, y: the points; a missing y is a gap.
        low, high: noise band around y; empty = none.
        notes: one tooltip line per point; empty = none.
    """

    label: str
    tone: Tone
    x: Sequence[Number]
    y: Sequence[Number]
    mark: Mark = "line"
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    notes: Sequence[str] = ()

    @classmethod
    def through(cls, label: str, tone: Tone, mark: Mark, points: Iterable[tuple[Any, ...]]) -> Self:
        """Build a series from points, each with the fields of a `Point`; fields that all points lack are empty."""
        rows = [Point(*point) for point in points]

        def column(name: str) -> list[Any]:
            values = [getattr(row, name) for row in rows]
            return values if any(value not in ("", None) for value in values) else []

        x, y = [row.x for row in rows], [row.y for row in rows]
        return cls(label, tone, x, y, mark, low=column("low"), high=column("high"), notes=column("note"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one row.

    Attributes:
        row: its row, from 0.
        start, end: on the x axis.
        label: written on it where there is room.
        tone: its colour.
        note: tooltip.
        gap: drawn as something that is missing.
    """

    row: int
    start: float
    end: float
    label: str
    tone: Tone
    note: str = ""
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """A line across the whole plot.

    Attributes:
        at: its value.
        label: written at its end.
        tone: its colour.
        axis: the axis that has the value.
    """

    at: float
    label: str
    tone: Tone = "default"
    axis: Literal["x", "y"] = "y"


@dataclass(frozen=True, slots=True)
class ChartTable:
    """The figures of a chart, for readers who cannot see it or have no script.

    Attributes:
        columns: headings.
        rows: cells as text; the first one names the row.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture.

    Attributes:
        id: unique in the page; also its anchor.
        title, description: of its caption.
        x, y: its axes.
        lines: its series.
        rows: names of the rows of `spans`; with them the y axis counts rows.
        spans: stretches of rows.
        levels: lines across.
        names_spans: the legend lists the spans; not where the label of each is its own value.
        table: the same figures.
    """

    id: str
    title: str
    description: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    rows: Sequence[str] = ()
    spans: Sequence[Span] = ()
    levels: Sequence[Level] = ()
    names_spans: bool = True
    table: ChartTable | None = None

    @property
    def legend(self) -> tuple[tuple[str, Tone, Mark], ...]:
        """Return label, tone and mark of what the legend lists, each once."""
        spans = [span for span in self.spans if self.names_spans and not span.gap]
        entries: list[tuple[str, Tone, Mark]] = [(line.label, line.tone, line.mark) for line in self.lines]
        entries += [(span.label, span.tone, "span") for span in spans]
        return tuple({(label, tone): (label, tone, mark) for label, tone, mark in entries}.values())

    def to_json(self) -> Markup:
        """Return the data for the browser, fit for a script element: no tag can end it. Numbers have five digits."""
        document = asdict(replace(self, table=None))
        for name in ("id", "title", "description", "names_spans", "table"):
            del document[name]
        for line in document["lines"]:
            for name in ("low", "high", "notes"):
                if not line[name]:
                    del line[name]
            for name in line.keys() & {"x", "y", "low", "high"}:
                line[name] = [_round(value) for value in line[name]]
        text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        return Markup(safe)  # noqa: S704 - JSON without the characters that HTML gives a meaning


def _round(value: Number) -> Number:
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None
