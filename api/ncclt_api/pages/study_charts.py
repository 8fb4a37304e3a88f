"""The charts of one study, and the times of its messages that they show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from ncclt.core.message import Collective, Message, format_bytes
from ncclt.core.plural import count_noun
from ncclt.core.policy import Policy
from ncclt.core.recommendation import PolicyVerdict
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, Study, Trial
from ncclt.core.verification import Side, Verification
from ncclt.core.workload import MessageCalls, Workload
from ncclt.prove.confidence import Interval, estimate_interval
from ncclt.prove.evidence import ArmLaunch, LaunchEvidence
from ncclt.prove.study_summary import proven_times_us
from ncclt.prove.verdict import INTERVAL_ERROR
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Level, Line, Mark, Span, Tone
from ncclt_api.pages.wording import (
    NONE,
    format_bandwidth,
    format_interval,
    format_speedup,
    format_state,
    format_time,
    format_us,
)

Group = tuple[Collective, int, bool]
"""Messages that are drawn as one curve: collective, ranks, whether they span nodes."""

MOST_POINTS = 900
"""Trials drawn in the chart of the search; of more, the fastest and the slowest of each stretch are."""

MOST_PAIRS = 200
"""Pairs of the A/B test that are drawn; of more, the last ones."""

MOST_LOOKS = 24
"""Points of the interval: each takes a few hundredths of a second to compute at the worst."""

MOST_GROUPS = 3
"""Groups whose curves are drawn, those with the longest time per step."""

LEAST_RATIO = 0.6
"""Settings slower than this are drawn at the lower edge: one terrible setting must not flatten all others."""

AS_GOOD = 1.01
"""The NCCL default is called the fastest unless another one is faster by more than this."""

_MOST_ROWS = 4
_MOST_LAUNCHES = 200
_FAILED_AT = 0.565
_FLOOR = 0.54
_FAMILIES: tuple[Tone, ...] = ("c1", "c2", "c3", "c4", "c5", "c6")
_DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLine:
    """One message under the default and under the policy.

    Attributes:
        calls: the message with its calls per step.
        default_us, policy_us: time of a call, µs; None where it was not measured.
        setting: of the policy, as text.
    """

    calls: MessageCalls
    default_us: float | None
    policy_us: float | None
    setting: str

    @property
    def message(self) -> Message:
        """Return the message."""
        return self.calls.message

    @property
    def speedup(self) -> float | None:
        """Return default / policy; above 1 = the policy is faster."""
        return self.default_us / self.policy_us if self.default_us and self.policy_us else None

    @property
    def step_us(self) -> float:
        """Return its default time per step, µs, 0 where not measured."""
        return self.calls.calls_per_step * (self.default_us or 0.0)

    @property
    def saved_us(self) -> float | None:
        """Return the time that the policy saves per step, µs."""
        if self.default_us is None or self.policy_us is None:
            return None
        return self.calls.calls_per_step * (self.default_us - self.policy_us)

    @property
    def default_busbw_gbps(self) -> float | None:
        """Return the bus bandwidth under the default, 1e9 bytes/s."""
        return self.message.busbw_gbps(self.default_us) if self.default_us else None

    @property
    def policy_busbw_gbps(self) -> float | None:
        """Return the bus bandwidth under the policy, 1e9 bytes/s."""
        return self.message.busbw_gbps(self.policy_us) if self.policy_us else None


def policy_rows(
    study: Study, evidence: LaunchEvidence, proven: PolicyVerdict, arm: Arm = Arm.TABLE
) -> tuple[MessageLine, ...]:
    """Return the workload's messages as the A/B test of an arm measured them, the longest per step first."""
    default_us, policy_us = proven_times_us(evidence, arm, proven.verdict, study.workload)
    return _rows(study, default_us, policy_us, lambda message: proven.policy.setting_for(message).label)


def best_setting_rows(study: Study, trials: Sequence[Trial], best: Setting) -> tuple[MessageLine, ...]:
    """Return the workload's messages as the search measured them under the default and under its best setting."""
    version = study.cluster.version
    default, other = (setting_times(trials, setting, "", "quiet") for setting in (DEFAULT, best))
    return _rows(
        study,
        {message: median(times_us) for message, times_us in default.of.items()},
        {message: median(times_us) for message, times_us in other.of.items()},
        lambda message: best.applied_to(message.collective, version=version).label,
    )


def interpolated_messages(trials: Iterable[Trial], workload: Workload) -> frozenset[Message]:
    """Return the workload's messages whose size was not itself measured; the sizes beside them are no rows."""
    found = {m.message for trial in trials for m in trial.result.measurements if m.interpolated}
    return frozenset(calls.message for calls in workload.messages if calls.message in found)


def _rows(
    study: Study,
    default_us: Mapping[Message, float],
    policy_us: Mapping[Message, float],
    label: Callable[[Message], str],
) -> tuple[MessageLine, ...]:
    rows = [
        MessageLine(
            calls=calls,
            default_us=default_us.get(calls.message),
            policy_us=policy_us.get(calls.message),
            setting=label(calls.message),
        )
        for calls in study.workload.messages
    ]
    return tuple(sorted(rows, key=lambda row: -row.step_us))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTimes:
    """Times of one setting or policy.

    Attributes:
        label: its name in a legend.
        tone: its colour.
        of: times per call of each message that was measured, µs.
    """

    label: str
    tone: Tone
    of: Mapping[Message, Sequence[float]]


def arm_times(evidence: LaunchEvidence, arm: Arm, label: str, tone: Tone) -> SizeTimes:
    """Return the times of an arm of the A/B test."""
    launches = [launch for launch in evidence.launches if launch.arm is arm]
    return _size_times((pair for launch in launches for pair in launch.message_us.items()), label, tone)


def setting_times(trials: Iterable[Trial], setting: Setting, label: str, tone: Tone) -> SizeTimes:
    """Return the times of a setting, outside of policies and of trials that failed."""
    mine = [one for one in trials if one.setting == setting and one.policy is None and one.score_us is not None]
    measured = (one for trial in mine for one in trial.result.measurements)
    return _size_times(((one.message, one.time_us) for one in measured), label, tone)


def _size_times(timed: Iterable[tuple[Message, float]], label: str, tone: Tone) -> SizeTimes:
    samples: dict[Message, list[float]] = {}
    for message, time_us in timed:
        samples.setdefault(message, []).append(time_us)
    return SizeTimes(label=label, tone=tone, of=samples)


def search_chart(
    trials: Sequence[Trial],
    default_us: float | None,
    proof: Sequence[ArmLaunch] = (),
    *,
    per: str = "per step",
) -> Chart | None:
    """Draw each trial as its speed-up over the default; None before the default was measured.

    Args:
        trials: by number; those of the A/B test are in `proof`.
        default_us: median score of the default setting, µs; None = not measured.
        proof: launches of the A/B test, drawn behind the search.
        per: unit of the times (`Workload.per`).
    """
    searched = [trial for trial in trials if trial.phase is not Phase.PROVE]
    scored = [(trial, default_us / trial.score_us) for trial in searched if default_us and trial.score_us]
    if not scored:
        return None
    failed = [trial for trial in searched if trial.score_us is None]
    best: list[tuple[Trial, float]] = []
    for trial, ratio in scored:
        if not best or ratio > best[-1][1]:
            best.append((trial, ratio))
    shown = _thin(scored, MOST_POINTS)
    shown_failed = failed[:: max(1, len(failed) // 200)]
    last = max(trial.number for trial in searched)
    top = max([1.05, best[-1][1], *(default_us / launch.time_us for launch in proof if default_us and launch.time_us)])
    clipped = [(trial, ratio) for trial, ratio in shown if ratio < LEAST_RATIO]
    inside = [(trial, ratio) for trial, ratio in shown if ratio >= LEAST_RATIO]
    lines = [
        _dots("search", "quiet", [one for one in inside if one[0].phase is Phase.SEARCH]),
        _dots("confirmation", "policy", [one for one in inside if one[0].phase is Phase.CONFIRM]),
        _proof_line("default, A/B test", "default", "ring", default_us, proof, (Arm.DEFAULT,)),
        _proof_line("policy, A/B test", "good", "dot", default_us, proof, (Arm.TABLE, Arm.VARIABLES)),
        Line(
            label="best so far",
            tone="best",
            mark="step",
            x=[*(trial.number for trial, _ in best), *([last] if best[-1][0].number < last else [])],
            y=[*(ratio for _, ratio in best), *([best[-1][1]] if best[-1][0].number < last else [])],
        ),
        Line(
            label=f"below {LEAST_RATIO}× (at the edge)",
            tone="quiet",
            mark="ring",
            x=[trial.number for trial, _ in clipped],
            y=[LEAST_RATIO] * len(clipped),
            notes=[f"{format_speedup(ratio)}: {trial.label}" for trial, ratio in clipped],
        ),
        Line(
            label="failed",
            tone="failed",
            mark="cross",
            x=[trial.number for trial in shown_failed],
            y=[_FAILED_AT] * len(shown_failed),
            notes=[f"{format_state(trial.result.outcome)}: {trial.label}" for trial in shown_failed],
        ),
    ]
    more = "" if len(shown) == len(scored) else f" {len(shown)} are drawn, the extremes of each stretch."
    return Chart(
        id="search-chart",
        title="Search trials",
        description=f"{len(scored)} measured, {len(failed)} failed; best so far {format_speedup(best[-1][1])}, before "
        f"validation.{more}",
        x=Axis(label="trial", unit="count"),
        y=Axis(label="speed-up over the default", unit="ratio", low=_FLOOR, high=top + 0.05 * (top - _FLOOR)),
        lines=[line for line in lines if line.x],
        levels=[Level(at=1.0, label="NCCL default")],
        table=ChartTable(
            columns=("Trial", "Speed-up", f"Time {per}", "Setting"),
            rows=[
                (str(trial.number), format_speedup(ratio), format_time(trial.score_us), trial.label)
                for trial, ratio in best[-20:]
            ],
        ),
    )


def _proof_line(
    label: str, tone: Tone, mark: Mark, default_us: float | None, proof: Sequence[ArmLaunch], arms: Sequence[Arm]
) -> Line:
    """Return the launches of some arms against the default of the search; slower ones are drawn at the edge."""
    mine = [launch for launch in proof if launch.arm in arms and launch.time_us and default_us]
    every = max(1, -(-len(mine) // _MOST_LAUNCHES))
    ratios = [(launch, (default_us or 0.0) / (launch.time_us or 1.0)) for launch in mine[::every]]
    return Line(
        label=label,
        tone=tone,
        mark=mark,
        x=[launch.order for launch, _ in ratios],
        y=[max(ratio, LEAST_RATIO) for _, ratio in ratios],
        notes=[f"{launch.arm.value}, launch {launch.block + 1}: {format_speedup(ratio)}" for launch, ratio in ratios],
    )


def _dots(label: str, tone: Tone, trials: Sequence[tuple[Trial, float]]) -> Line:
    return Line(
        label=label,
        tone=tone,
        mark="dot",
        x=[trial.number for trial, _ in trials],
        y=[ratio for _, ratio in trials],
        notes=[trial.label for trial, _ in trials],
    )


def _thin(scored: Sequence[tuple[Trial, float]], most: int) -> list[tuple[Trial, float]]:
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


def message_group(message: Message) -> Group:
    """Return the group of a message."""
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


def rank_groups(study: Study, times: SizeTimes) -> tuple[Group, ...]:
    """Return the groups of a workload, the longest time per step first; the largest first where nothing is measured."""
    weight: dict[Group, tuple[float, float]] = {}
    for calls in study.workload.messages:
        key = message_group(calls.message)
        times_us = times.of.get(calls.message)
        step, sent = weight.get(key, (0.0, 0.0))
        step += calls.calls_per_step * (median(times_us) if times_us else 0.0)
        weight[key] = (step, sent + calls.calls_per_step * calls.message.size_bytes)
    return tuple(sorted(weight, key=lambda key: weight[key], reverse=True))


def wins_chart(
    study: Study, policy: Policy | None, default: SizeTimes, candidates: Mapping[Setting, SizeTimes]
) -> Chart | None:
    """Draw the policy and the fastest setting by message size; None before anything was measured.

    Args:
        study: for its messages.
        policy: whose rules and gaps are drawn; None = there is none yet.
        default: times under the NCCL default.
        candidates: times of the settings that are compared.
    """
    groups = rank_groups(study, default)[:_MOST_ROWS]
    sizes = {
        group: sorted({c.message.size_bytes for c in study.workload.messages if message_group(c.message) == group})
        for group in groups
    }
    low, high = min(s[0] for s in sizes.values()) / 2, max(s[-1] for s in sizes.values()) * 2
    fastest = {
        message: _fastest(study, message, default, candidates)
        for message in _by_size(study, default)
        if message_group(message) in groups
    }
    if not fastest:
        return None
    rows: list[str] = []
    spans: list[Span] = []
    tones: dict[str, Tone] = {}
    for group in groups:
        name = group_name(group, groups)
        if policy is not None and not policy.is_default:
            spans += _rule_spans(policy, group, row=len(rows), ends=(low, high), tones=tones)
            rows.append(f"{name}: policy")
        mine = [message for message in fastest if message_group(message) == group]
        if mine:
            spans += _fastest_spans(mine, fastest, default, row=len(rows), ends=(low, high), tones=tones)
            rows.append(f"{name}: fastest")
    return Chart(
        id="wins-chart",
        title="Policy and fastest setting by message size",
        description="Algorithm, protocol and channels. Dashed: NCCL default. Fastest: best setting measured at the "
        "sizes of this workload; the NCCL default unless another one is over 1 % faster.",
        x=Axis(label="message size", unit="bytes", log=2, low=low, high=high),
        y=Axis(label="", unit="number"),
        rows=rows,
        spans=spans,
        table=ChartTable(
            columns=("Message", "Policy", "Fastest measured", "Fastest µs", "Default µs"),
            rows=[
                (
                    message.label,
                    _label(policy.setting_for(message)) if policy is not None else NONE,
                    label,
                    format_us(time_us),
                    format_us(median(default.of[message])),
                )
                for message, (label, time_us) in fastest.items()
            ],
        ),
    )


def _tone(label: str, tones: dict[str, Tone]) -> Tone:
    """Return one colour for each pair of algorithm and protocol, in the order in which they occur."""
    if label == _DEFAULT:
        return "default"
    return tones.setdefault(label.partition(" ")[0], _FAMILIES[len(tones) % len(_FAMILIES)])


def _label(setting: Setting) -> str:
    bare = replace(setting, parameters=())
    return _DEFAULT if bare.is_default else bare.label


def _by_size(study: Study, default: SizeTimes) -> list[Message]:
    found = {
        (*message_group(c.message), c.message.size_bytes): c.message
        for c in study.workload.messages
        if c.message in default.of
    }
    return sorted(found.values(), key=lambda message: (message.collective, message.group_size, message.size_bytes))


def _fastest(
    study: Study, message: Message, default: SizeTimes, candidates: Mapping[Setting, SizeTimes]
) -> tuple[str, float]:
    """Return label and time of the fastest setting, µs."""
    version, own = study.cluster.version, median(default.of[message])
    found = [
        (median(times.of[message]), setting.applied_to(message.collective, version=version).label)
        for setting, times in candidates.items()
        if message in times.of and setting != DEFAULT
    ]
    best_us, label = min(found, default=(own, ""))
    if own <= best_us * AS_GOOD or label == DEFAULT.label:
        return _DEFAULT, own
    return label, best_us


def _rule_spans(
    policy: Policy, group: Group, *, row: int, ends: tuple[float, float], tones: dict[str, Tone]
) -> list[Span]:
    """Return the setting of the policy in each part of the axis between the ends of rules."""
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
        gap = label == _DEFAULT
        note = "no rule: NCCL default" if gap else f"rule: {label}"
        spans.append(Span(row=row, start=start, end=end, label=label, tone=_tone(label, tones), note=note, gap=gap))
    return spans


def _fastest_spans(
    mine: Sequence[Message],
    fastest: Mapping[Message, tuple[str, float]],
    default: SizeTimes,
    *,
    row: int,
    ends: tuple[float, float],
    tones: dict[str, Tone],
) -> list[Span]:
    sizes = [message.size_bytes for message in mine]
    between = [math.sqrt(one * other) for one, other in itertools.pairwise(sizes)]
    edges = [max(ends[0], sizes[0] / 2), *between, min(ends[1], sizes[-1] * 2)]
    spans: list[Span] = []
    for message, (start, end) in zip(mine, itertools.pairwise(edges), strict=True):
        label, time_us = fastest[message]
        note = (
            f"{format_bytes(message.size_bytes)}: {label}, {format_us(time_us)} µs; "
            f"NCCL default {format_us(median(default.of[message]))} µs"
        )
        if spans and spans[-1].label == label:
            spans[-1] = replace(spans[-1], end=end, note=f"{spans[-1].note.partition(' | ')[0]} | {note}")
            continue
        tone = _tone(label, tones)
        spans.append(Span(row=row, start=start, end=end, label=label, tone=tone, note=note, gap=label == _DEFAULT))
    return spans


def size_curves(study: Study, shown: Sequence[SizeTimes]) -> dict[str, tuple[Chart, Chart]]:
    """Draw time and bus bandwidth by size, for the groups that take longest and have more than one size, by name."""
    groups = rank_groups(study, shown[0])
    found: dict[str, tuple[Chart, Chart]] = {}
    for group in groups:
        messages = [one for one in _by_size(study, shown[0]) if message_group(one) == group]
        if len(messages) > 1:
            name = group_name(group, groups)
            found[name] = _draw_curves(name, len(found), messages, shown)
        if len(found) == MOST_GROUPS:
            break
    return found


def _draw_curves(
    name: str, number: int, messages: Sequence[Message], shown: Sequence[SizeTimes]
) -> tuple[Chart, Chart]:
    x = Axis(label="message size", unit="bytes", log=2)
    sizes = [message.size_bytes for message in messages]

    def lines(as_bandwidth: bool) -> list[Line]:
        drawn = []
        for times in shown:
            found = [times.of.get(message) for message in messages]

            def value(
                pick: Callable[[Sequence[float]], float], found: Sequence[Sequence[float] | None] = found
            ) -> list[float | None]:
                picked = [pick(times_us) if times_us else None for times_us in found]
                if not as_bandwidth:
                    return picked
                return [one and message.busbw_gbps(one) for message, one in zip(messages, picked, strict=True)]

            if any(found):
                drawn.append(
                    Line(
                        label=times.label,
                        tone=times.tone,
                        mark="dashed" if times.tone == "best" else "line",
                        x=sizes,
                        y=value(median),
                        low=value(max if as_bandwidth else min),
                        high=value(min if as_bandwidth else max),
                    )
                )
        return drawn

    def table(unit: str, as_bandwidth: bool) -> ChartTable:
        def cell(times: SizeTimes, message: Message) -> str:
            times_us = times.of.get(message)
            if times_us is None:
                return NONE
            if as_bandwidth:
                return format_bandwidth(message.busbw_gbps(median(times_us)))
            return f"{format_us(median(times_us))} ({format_us(min(times_us))}–{format_us(max(times_us))})"

        return ChartTable(
            columns=("Size", *(f"{times.label}, {unit}" for times in shown)),
            rows=[(format_bytes(one.size_bytes), *(cell(times, one) for times in shown)) for one in messages],
        )

    return (
        Chart(
            id=f"time-chart-{number}",
            title=f"{name}: time per call",
            description="Median over launches; band: fastest to slowest.",
            x=x,
            y=Axis(label="time", unit="us", log=10),
            lines=lines(False),
            table=table("µs", False),
        ),
        Chart(
            id=f"bandwidth-chart-{number}",
            title=f"{name}: bus bandwidth",
            description="As in nccl-tests.",
            x=x,
            y=Axis(label="bus bandwidth", unit="gbps", low=0.0),
            lines=lines(True),
            table=table("GB/s", True),
        ),
    )


def proof_charts(
    blocks: Sequence[tuple[ArmLaunch, ArmLaunch]], *, min_effect: float, per: str = "per step"
) -> tuple[Chart, Chart] | None:
    """Draw the pairs of the A/B test of one arm, and its interval after each block; None before the first whole block.

    Args:
        blocks: pairs of default and arm with the times that the verdict counts (`ncclt.prove.proof.average_unchanged`).
        min_effect: smallest gain that counts, as a share.
        per: unit of the times (`Workload.per`).
    """
    pairs = [
        (default.time_us, other.time_us)
        for default, other in blocks
        if default.time_us is not None and other.time_us is not None
    ]
    if not pairs:
        return None
    return _pairs_chart(pairs, per), _interval_chart(_looks_at(pairs), min_effect)


def _pairs_chart(pairs: list[tuple[float, float]], per: str) -> Chart:
    first = max(0, len(pairs) - MOST_PAIRS)
    numbers = range(first + 1, len(pairs) + 1)
    shown = pairs[first:]
    faster = sum(1 for default, policy in pairs if policy < default)
    default_us, policy_us = [one[0] for one in shown], [one[1] for one in shown]
    ratios = [format_speedup(default / policy) for default, policy in shown]
    return Chart(
        id="pairs-chart",
        title="A/B test by pair",
        description=f"Interleaved launches: the policy was faster in {faster} of {len(pairs)} pairs.",
        x=Axis(label="pair", unit="count", low=first + 0.5, high=len(pairs) + 0.5),
        y=Axis(label=f"time {per}", unit="us"),
        lines=[
            Line(label="default", tone="default", mark="ring", x=numbers, y=default_us, notes=ratios),
            Line(label="policy", tone="policy", mark="dot", x=numbers, y=policy_us, notes=ratios),
            Line(
                label="one pair",
                tone="quiet",
                mark="stem",
                x=numbers,
                y=[None] * len(shown),
                low=[min(pair) for pair in shown],
                high=[max(pair) for pair in shown],
            ),
        ],
        table=ChartTable(
            columns=("Pair", "Default", "Policy", "Ratio"),
            rows=[
                (str(number), format_time(default), format_time(policy), ratio)
                for number, default, policy, ratio in zip(numbers, default_us, policy_us, ratios, strict=True)
            ],
        ),
    )


def _looks_at(pairs: list[tuple[float, float]]) -> list[tuple[int, Interval]]:
    """Return the interval after some numbers of blocks."""
    gains = [math.log(default / policy) for default, policy in pairs]
    blocks = len(pairs) // 2
    if not blocks:
        return []
    looks = sorted({1 + round(place * (blocks - 1) / max(1, MOST_LOOKS - 1)) for place in range(MOST_LOOKS)})
    return [(look, estimate_interval(gains[: 2 * look], error=INTERVAL_ERROR)) for look in looks]


def _interval_chart(looks_at: Sequence[tuple[int, Interval]], min_effect: float) -> Chart:
    looks, found = zip(*looks_at, strict=True)
    last, after = found[-1], count_noun(looks[-1], "block")
    ends = [last.low, last.high, *(one.estimate for one in found)]
    reach = max(0.03, *(1.6 * abs(end - 1) for end in ends if 0 < end < 3))
    bottom, top = max(0.0, 1 - reach), 1 + reach
    return Chart(
        id="interval-chart",
        title="95 % CI by block",
        description=f"{format_interval((last.low, last.high))} after {after}; valid at any time.",
        x=Axis(label="block", unit="count"),
        y=Axis(label="speed-up", unit="ratio", low=bottom, high=top),
        lines=[
            Line(
                label="speed-up with 95 % CI",
                tone="policy",
                x=looks,
                y=[one.estimate for one in found],
                low=[max(one.low, bottom) for one in found],
                high=[min(one.high, top) for one in found],
            )
        ],
        levels=[
            Level(at=1.0, label="no change"),
            Level(at=1 + min_effect, label="threshold", tone="warn"),
        ],
        table=ChartTable(
            columns=("Blocks", "Speed-up", "95 % CI"),
            rows=[
                (str(look), format_speedup(one.estimate), format_interval((one.low, one.high)))
                for look, one in zip(looks, found, strict=True)
            ],
        ),
    )


def verification_charts(found: Verification) -> tuple[Chart, ...]:
    """Draw the step times of a verification by launch, and its interval by block.

    The interval is that of the verdict: as it is stored with the launches, else where their times give the same.
    """
    timed = [(launch.order + 1, launch.side, launch.time_us) for launch in found.launches if launch.time_us is not None]
    if not timed:
        return ()
    base, tuned = ([(order, time_us) for order, of, time_us in timed if of is side] for side in Side)
    steps = Chart(
        id="steps-chart",
        title="Step time by launch",
        description="Median step of each launch; in live tuning, of each block of steps.",
        x=Axis(label="launch", unit="count"),
        y=Axis(label="step time", unit="us"),
        lines=[
            Line(label="without", tone="default", mark="ring", x=[at for at, _ in base], y=[us for _, us in base]),
            Line(label="with", tone="policy", mark="dot", x=[at for at, _ in tuned], y=[us for _, us in tuned]),
        ],
        table=ChartTable(
            columns=("Launch", "Side", "Step time"),
            rows=[(str(order), side.value, format_time(time_us)) for order, side, time_us in timed],
        ),
    )
    pairs = [(default, policy) for (_, default), (_, policy) in zip(base, tuned, strict=False)]
    looks = [
        (launch.order + 1, Interval(estimate=launch.estimate[0], low=launch.estimate[1], high=launch.estimate[2]))
        for launch in found.launches
        if launch.estimate is not None
    ] or _looks_at(pairs[: len(pairs) // 2 * 2])
    ends = (looks[-1][1].low, looks[-1][1].high) if looks else ()
    if not looks or not all(map(partial(math.isclose, rel_tol=1e-6), ends, found.verdict.interval)):
        return (steps,)
    interval = _interval_chart(looks, found.verdict.min_effect)
    return steps, replace(interval, id="steps-interval-chart", title="95 % CI of the step time by block")
