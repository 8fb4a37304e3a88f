"""What a study found per message size: which choice wins, times and bandwidths, and what each message saves."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclt.core.message import Collective, Message, format_bytes
from ncclt.core.policy import Policy
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Study, Trial
from ncclt.prove.evidence import LaunchEvidence
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Level, Line, Span, Tone
from ncclt_api.pages.message_rows import MessageLine
from ncclt_api.pages.wording import NONE, format_bandwidth, format_us

Group = tuple[Collective, int, bool]
"""Messages that are drawn as one curve: collective, ranks, whether they span nodes."""

AS_GOOD = 1.01
"""The NCCL default is called the fastest unless another one is faster by more than this."""

MOST_GROUPS = 3
"""Groups whose curves are drawn, those with the longest time per step."""

MOST_SHARES = 10
"""Messages whose saving is drawn."""

_MOST_ROWS = 4
_FAMILIES: tuple[Tone, ...] = ("c1", "c2", "c3", "c4", "c5", "c6")
_NCCLS = "NCCL's own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Time of one call over all launches, µs."""

    median_us: float
    low_us: float
    high_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTimes:
    """What one choice took.

    Attributes:
        label: its name in a legend.
        tone: its colour.
        of: time of a call of each message that was measured.
    """

    label: str
    tone: Tone
    of: Mapping[Message, Spread]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Time and bus bandwidth of one group over the size."""

    name: str
    time: Chart
    bandwidth: Chart


def arm_times(evidence: LaunchEvidence, arm: Arm, label: str, tone: Tone) -> SizeTimes:
    """Return what the launches of an arm of the proof took."""
    samples: dict[Message, list[float]] = {}
    for launch in evidence.launches:
        if launch.arm is arm:
            for message, time_us in launch.message_us.items():
                samples.setdefault(message, []).append(time_us)
    return SizeTimes(label=label, tone=tone, of={message: _spread(times) for message, times in samples.items()})


def setting_times(trials: Iterable[Trial], setting: Setting, label: str, tone: Tone) -> SizeTimes:
    """Return what the launches of a setting took, outside of policies."""
    samples: dict[Message, list[float]] = {}
    for trial in trials:
        if trial.setting == setting and trial.policy is None:
            for one in trial.result.measurements:
                samples.setdefault(one.message, []).append(one.time_us)
    return SizeTimes(label=label, tone=tone, of={message: _spread(times) for message, times in samples.items()})


def _spread(times_us: Sequence[float]) -> Spread:
    return Spread(median_us=statistics.median(times_us), low_us=min(times_us), high_us=max(times_us))


def group_of(message: Message) -> Group:
    """Return the curve that a message belongs to."""
    return message.collective, message.group_size, message.spans_nodes


def group_name(group: Group, among: Iterable[Group]) -> str:
    """Return the name of a group, as short as the others allow.

    >>> group_name((Collective.ALL_REDUCE, 8, False), [])
    'all_reduce'
    """
    collective, ranks, spans = group
    same = [other for other in among if other[0] is collective and other != group]
    name = str(collective.value)
    if any(other[1] != ranks for other in same):
        name += f", {ranks} ranks"
    if any(other[1] == ranks for other in same):
        name += " across nodes" if spans else " in a node"
    return name


def groups_of(study: Study, times: SizeTimes) -> tuple[Group, ...]:
    """Return the groups of a workload, the longest time per step first; the largest first where nothing is measured."""
    weight: dict[Group, tuple[float, float]] = {}
    for calls in study.workload.messages:
        key = group_of(calls.message)
        spread = times.of.get(calls.message)
        step, sent = weight.get(key, (0.0, 0.0))
        step += calls.calls_per_step * (spread.median_us if spread else 0.0)
        weight[key] = (step, sent + calls.calls_per_step * calls.message.size_bytes)
    return tuple(sorted(weight, key=lambda key: weight[key], reverse=True))


def wins_chart(
    study: Study, policy: Policy | None, default: SizeTimes, candidates: Mapping[Setting, SizeTimes]
) -> Chart | None:
    """Draw which algorithm, protocol and channels win at which size; None before anything was measured.

    Args:
        study: for its messages.
        policy: whose rules and gaps are drawn; None = there is none yet.
        default: times under the NCCL default.
        candidates: times of the settings that are compared.
    """
    groups = groups_of(study, default)[:_MOST_ROWS]
    sizes = {
        group: sorted({c.message.size_bytes for c in study.workload.messages if group_of(c.message) == group})
        for group in groups
    }
    low, high = min(s[0] for s in sizes.values()) / 2, max(s[-1] for s in sizes.values()) * 2
    fastest = {
        message: _fastest(study, message, default, candidates)
        for message in _by_size(study, default)
        if group_of(message) in groups
    }
    if not fastest:
        return None
    rows: list[str] = []
    spans: list[Span] = []
    tones = _Tones()
    for group in groups:
        name = group_name(group, groups)
        if policy is not None and not policy.is_default:
            spans += _rule_spans(policy, group, row=len(rows), ends=(low, high), tones=tones)
            rows.append(f"{name}: policy")
        mine = [message for message in fastest if group_of(message) == group]
        if mine:
            spans += _fastest_spans(mine, fastest, row=len(rows), ends=(low, high), tones=tones)
            rows.append(f"{name}: fastest")
    return Chart(
        id="wins-chart",
        title="Rules, gaps and the fastest choice",
        description="Algorithm, protocol and channels over the message size. Dashed: left to NCCL. "
        "Fastest: of what was measured at the sizes of this workload; NCCL's own unless another is over 1 % faster.",
        x=Axis(label="message size", unit="bytes", log=2, low=low, high=high),
        y=Axis(label="", unit="number"),
        rows=rows,
        spans=spans,
        table=ChartTable(
            columns=("Message", "Policy", "Fastest measured", "Its µs", "NCCL's own µs"),
            rows=[
                (
                    message.label,
                    _label(policy.setting_for(message)) if policy is not None else NONE,
                    found.label,
                    format_us(found.time_us),
                    format_us(found.default_us),
                )
                for message, found in fastest.items()
            ],
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fastest:
    label: str
    time_us: float
    default_us: float


class _Tones:
    """One colour for each pair of algorithm and protocol, in the order in which they are met."""

    def __init__(self) -> None:
        self._of: dict[str, Tone] = {}

    def of(self, label: str) -> Tone:
        if label == _NCCLS:
            return "default"
        return self._of.setdefault(label.partition(" ")[0], _FAMILIES[len(self._of) % len(_FAMILIES)])


def _label(setting: Setting) -> str:
    bare = replace(setting, parameters=())
    return _NCCLS if bare.is_default else bare.label


def _by_size(study: Study, default: SizeTimes) -> list[Message]:
    found = {
        (*group_of(c.message), c.message.size_bytes): c.message
        for c in study.workload.messages
        if c.message in default.of
    }
    return sorted(found.values(), key=lambda message: (message.collective, message.group_size, message.size_bytes))


def _fastest(study: Study, message: Message, default: SizeTimes, candidates: Mapping[Setting, SizeTimes]) -> _Fastest:
    version, own = study.cluster.version, default.of[message].median_us
    found = [
        (times.of[message].median_us, setting.applied_to(message.collective, version=version).label)
        for setting, times in candidates.items()
        if message in times.of and setting != DEFAULT
    ]
    best_us, label = min(found, default=(own, ""))
    if own <= best_us * AS_GOOD or label == DEFAULT.label:
        return _Fastest(label=_NCCLS, time_us=own, default_us=own)
    return _Fastest(label=label, time_us=best_us, default_us=own)


def _rule_spans(policy: Policy, group: Group, *, row: int, ends: tuple[float, float], tones: _Tones) -> list[Span]:
    """Cut the axis where a rule begins or ends, and ask the policy what holds in each part."""
    low, high = ends
    cuts = {low, high}
    for rule in policy.rules:
        if rule.collective is group[0]:
            cuts |= {float(edge) for edge in (rule.min_bytes, (rule.max_bytes or 0) + 1) if low < edge < high}
    edges = sorted(cuts)
    spans: list[Span] = []
    for start, end in itertools.pairwise(edges):
        inside = Message(
            collective=group[0], dtype="int8", size_bytes=math.ceil(start), group_size=group[1], spans_nodes=group[2]
        )
        label = _label(policy.setting_for(inside))
        if spans and spans[-1].label == label:
            spans[-1] = replace(spans[-1], end=end)
            continue
        gap = label == _NCCLS
        note = "no rule: left to NCCL" if gap else f"rule: {label}"
        spans.append(Span(row=row, start=start, end=end, label=label, tone=tones.of(label), note=note, gap=gap))
    return spans


def _fastest_spans(
    mine: Sequence[Message],
    fastest: Mapping[Message, _Fastest],
    *,
    row: int,
    ends: tuple[float, float],
    tones: _Tones,
) -> list[Span]:
    sizes = [message.size_bytes for message in mine]
    between = [math.sqrt(one * other) for one, other in itertools.pairwise(sizes)]
    edges = [max(ends[0], sizes[0] / 2), *between, min(ends[1], sizes[-1] * 2)]
    spans: list[Span] = []
    for message, (start, end) in zip(mine, itertools.pairwise(edges), strict=True):
        found = fastest[message]
        note = (
            f"{format_bytes(message.size_bytes)}: {found.label}, {format_us(found.time_us)} µs; "
            f"NCCL's own {format_us(found.default_us)} µs"
        )
        if spans and spans[-1].label == found.label:
            spans[-1] = replace(spans[-1], end=end, note=f"{spans[-1].note.partition(' | ')[0]} | {note}")
            continue
        own = found.label == _NCCLS
        spans.append(
            Span(row=row, start=start, end=end, label=found.label, tone=tones.of(found.label), note=note, gap=own)
        )
    return spans


def curves_of(study: Study, shown: Sequence[SizeTimes]) -> tuple[Curves, ...]:
    """Draw time and bus bandwidth over the size, for the groups that take longest and have more than one size."""
    groups = groups_of(study, shown[0])
    found: list[Curves] = []
    for group in groups:
        messages = [one for one in _by_size(study, shown[0]) if group_of(one) == group]
        if len(messages) > 1:
            found.append(_curves(group_name(group, groups), len(found), messages, shown))
        if len(found) == MOST_GROUPS:
            break
    return tuple(found)


def _curves(name: str, number: int, messages: Sequence[Message], shown: Sequence[SizeTimes]) -> Curves:
    x = Axis(label="message size", unit="bytes", log=2)
    sizes = [message.size_bytes for message in messages]

    def lines(as_bandwidth: bool) -> list[Line]:
        drawn = []
        for times in shown:
            spreads = [times.of.get(message) for message in messages]

            def value(kind: str, spreads: Sequence[Spread | None] = spreads) -> list[float | None]:
                picked = [getattr(spread, kind) if spread else None for spread in spreads]
                if not as_bandwidth:
                    return picked
                return [one and message.busbw_gbps(one) for message, one in zip(messages, picked, strict=True)]

            low, high = ("high_us", "low_us") if as_bandwidth else ("low_us", "high_us")
            if any(spreads):
                drawn.append(
                    Line(
                        label=times.label,
                        tone=times.tone,
                        mark="dashed" if times.tone == "best" else "line",
                        x=sizes,
                        y=value("median_us"),
                        low=value(low),
                        high=value(high),
                    )
                )
        return drawn

    def table(unit: str, as_bandwidth: bool) -> ChartTable:
        def cell(times: SizeTimes, message: Message) -> str:
            spread = times.of.get(message)
            if spread is None:
                return NONE
            if as_bandwidth:
                return format_bandwidth(message.busbw_gbps(spread.median_us))
            return f"{format_us(spread.median_us)} ({format_us(spread.low_us)}–{format_us(spread.high_us)})"

        return ChartTable(
            columns=("Size", *(f"{times.label}, {unit}" for times in shown)),
            rows=[(format_bytes(one.size_bytes), *(cell(times, one) for times in shown)) for one in messages],
        )

    band = "Median of the launches; the band reaches from the fastest to the slowest."
    return Curves(
        name=name,
        time=Chart(
            id=f"time-chart-{number}",
            title=f"{name}: time of a call",
            description=band,
            x=x,
            y=Axis(label="time", unit="us", log=10),
            lines=lines(False),
            table=table("µs", False),
        ),
        bandwidth=Chart(
            id=f"bandwidth-chart-{number}",
            title=f"{name}: bus bandwidth",
            description="As nccl-tests counts it.",
            x=x,
            y=Axis(label="bus bandwidth", unit="gbps", low=0.0),
            lines=lines(True),
            table=table("GB/s", True),
        ),
    )


def shares_chart(study: Study, rows: Sequence[MessageLine], compared: str) -> Chart | None:
    """Draw which part of the communication per step each message saves; None where nothing can be compared."""
    known = [row for row in rows if row.default_us and row.policy_us]
    total = sum(row.step_us for row in known)
    if not total:
        return None
    saved = {row: row.calls.calls_per_step * ((row.default_us or 0.0) - (row.policy_us or 0.0)) for row in known}
    ordered = sorted(known, key=lambda row: -abs(saved[row]))
    shown = sorted(ordered[:MOST_SHARES], key=lambda row: -saved[row])

    def percent(us: float, of: float) -> str:
        return f"{100 * us / of:+.2f} %"

    spans = [
        Span(
            row=number,
            start=min(0.0, 100 * saved[row] / total),
            end=max(0.0, 100 * saved[row] / total),
            label=percent(saved[row], total),
            tone="good" if saved[row] >= 0 else "failed",
            note=f"{percent(saved[row], total)} of the communication, {format_us(saved[row])} µs {study.workload.per}",
        )
        for number, row in enumerate(shown)
    ]
    more = f" The {len(shown)} of {len(known)} messages that change most." if len(known) > len(shown) else ""
    return Chart(
        id="shares-chart",
        title="Communication saved by each message",
        description=f"Part of the communication time {study.workload.per} that the {compared} saves; all together "
        f"{percent(sum(saved.values()), total)}.{more}",
        x=Axis(label=f"share of the communication {study.workload.per}", unit="percent"),
        y=Axis(label="", unit="number"),
        rows=[f"{row.message.collective.value} {format_bytes(row.message.size_bytes)}" for row in shown],
        spans=[span for span in spans if span.end > span.start],
        levels=[Level(at=0.0, label="", axis="x")],
        names_spans=False,
        table=ChartTable(
            columns=("Message", "Saves, µs", "of the communication"),
            rows=[
                (
                    row.message.label,
                    format_us(saved[row]),
                    percent(saved[row], total),
                )
                for row in ordered[:50]
            ],
        ),
    )
