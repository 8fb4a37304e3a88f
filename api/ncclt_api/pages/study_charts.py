"""The charts of one study, and the times of its messages that they show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from statistics import median
from typing import Self

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
from ncclt.prove.levels import INTERVAL_ERROR
from ncclt.prove.study_summary import proven_times_us
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

_Scored = tuple[Trial, float]
"""A trial with its speed-up over the default."""

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


def policy_rows(
    study: Study, evidence: LaunchEvidence, proven: PolicyVerdict, arm: Arm = Arm.TABLE
) -> tuple[MessageLine, ...]:
    """Return the workload's messages as the A/B test of an arm measured them, the longest per step first."""
    default_us, policy_us = proven_times_us(evidence, arm, proven.verdict, study.workload)
    return _build_rows(study, default_us, policy_us, lambda message: proven.policy.setting_for(message).label)


def best_setting_rows(study: Study, trials: Sequence[Trial], best: Setting) -> tuple[MessageLine, ...]:
    """Return the workload's messages as the search measured them under the default and under its best setting."""
    default_us, best_us = (
        {message: median(times_us) for message, times_us in setting_times(trials, setting, "", "quiet").of.items()}
        for setting in (DEFAULT, best)
    )
    version = study.cluster.version
    return _build_rows(
        study, default_us, best_us, lambda message: best.applied_to(message.collective, version=version).label
    )


def interpolated_messages(trials: Iterable[Trial], workload: Workload) -> frozenset[Message]:
    """Return the workload's messages whose size was not itself measured; the sizes beside them are no rows."""
    interpolated = {row.message for trial in trials for row in trial.result.measurements if row.interpolated}
    return frozenset(calls.message for calls in workload.messages if calls.message in interpolated)


def _build_rows(
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

    @classmethod
    def collect(cls, timed: Iterable[tuple[Message, float]], label: str, tone: Tone) -> Self:
        """Return some times by message."""
        samples: dict[Message, list[float]] = {}
        for message, time_us in timed:
            samples.setdefault(message, []).append(time_us)
        return cls(label=label, tone=tone, of=samples)


def arm_times(evidence: LaunchEvidence, arm: Arm, label: str, tone: Tone) -> SizeTimes:
    """Return the times of an arm of the A/B test."""
    launches = [launch for launch in evidence.launches if launch.arm is arm]
    return SizeTimes.collect((pair for launch in launches for pair in launch.message_us.items()), label, tone)


def setting_times(trials: Iterable[Trial], setting: Setting, label: str, tone: Tone) -> SizeTimes:
    """Return the times of a setting, outside of policies and of trials that failed."""
    rows = (
        (row.message, row.time_us)
        for trial in trials
        if trial.setting == setting and trial.policy is None and trial.score_us is not None
        for row in trial.result.measurements
    )
    return SizeTimes.collect(rows, label, tone)


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
    if default_us is None or not scored:
        return None
    failed = [trial for trial in searched if trial.score_us is None]
    records: list[_Scored] = []  # each better than all before
    for trial, ratio in scored:
        if not records or ratio > records[-1][1]:
            records.append((trial, ratio))
    highest = records[-1][1]
    proven = [(launch, default_us / launch.time_us) for launch in proof if launch.time_us]
    top = max([1.05, highest, *(ratio for _, ratio in proven)])
    drawn = _thin(scored, MOST_POINTS)
    more = "" if len(drawn) == len(scored) else f" {len(drawn)} are drawn, the extremes of each stretch."
    best = [(trial.number, ratio) for trial, ratio in records]
    if best[-1][0] < searched[-1].number:  # the line reaches the last trial
        best.append((searched[-1].number, highest))
    rows = [
        (str(trial.number), format_speedup(ratio), format_time(trial.score_us), trial.label)
        for trial, ratio in records[-20:]
    ]
    return Chart(
        id="search-chart",
        title="Search trials",
        description=f"{len(scored)} measured, {len(failed)} failed; best so far {format_speedup(highest)}, before "
        f"validation.{more}",
        x=Axis("trial", "count"),
        y=Axis("speed-up over the default", "ratio", low=_FLOOR, high=top + 0.05 * (top - _FLOOR)),
        lines=_search_lines(drawn, failed, proven, best),
        levels=[Level(1.0, "NCCL default")],
        table=ChartTable(("Trial", "Speed-up", f"Time {per}", "Setting"), rows),
    )


def _search_lines(
    scored: Sequence[_Scored],
    failed: Sequence[Trial],
    proven: Sequence[tuple[ArmLaunch, float]],
    best: Sequence[tuple[int, float]],
) -> list[Line]:
    """Return the trials by phase and the launches of the A/B test; at the edge those too slow for the axis."""

    def of_phase(phase: Phase) -> list[tuple[int, float, str]]:
        return [(trial.number, r, trial.label) for trial, r in scored if trial.phase is phase and r >= LEAST_RATIO]

    def of_arms(*arms: Arm) -> list[tuple[int, float, str]]:
        launches = [row for row in proven if row[0].arm in arms]
        return [
            (row.order, max(r, LEAST_RATIO), f"{row.arm.value}, launch {row.block + 1}: {format_speedup(r)}")
            for row, r in launches[:: max(1, -(-len(launches) // _MOST_LAUNCHES))]
        ]

    slow = [
        (trial.number, LEAST_RATIO, f"{format_speedup(r)}: {trial.label}") for trial, r in scored if r < LEAST_RATIO
    ]
    crosses = [
        (row.number, _FAILED_AT, f"{format_state(row.result.outcome)}: {row.label}")
        for row in failed[:: max(1, len(failed) // _MOST_LAUNCHES)]
    ]
    series: list[tuple[str, Tone, Mark, Sequence[tuple[object, ...]]]] = [
        ("search", "quiet", "dot", of_phase(Phase.SEARCH)),
        ("confirmation", "policy", "dot", of_phase(Phase.CONFIRM)),
        (f"below {LEAST_RATIO}× (at the edge)", "quiet", "ring", slow),
        ("default, A/B test", "default", "ring", of_arms(Arm.DEFAULT)),
        ("policy, A/B test", "good", "dot", of_arms(Arm.TABLE, Arm.VARIABLES)),
        ("best so far", "best", "step", best),
        ("failed", "failed", "cross", crosses),
    ]
    return [Line.through(*row) for row in series if row[3]]


def _thin(scored: Sequence[_Scored], most: int) -> Sequence[_Scored]:
    """Return the slowest and the fastest point of each of `most` / 2 stretches, by number."""
    if len(scored) <= most:
        return scored
    length = -(-2 * len(scored) // most)
    thinned: list[_Scored] = []
    for start in range(0, len(scored), length):
        stretch = scored[start : start + length]
        ends = {pick(stretch, key=lambda row: row[1])[0].number for pick in (min, max)}
        thinned += [row for row in stretch if row[0].number in ends]
    return thinned


def message_group(message: Message) -> Group:
    """Return the group of a message."""
    return message.collective, message.group_size, message.spans_nodes


def group_name(group: Group, among: Iterable[Group]) -> str:
    """Return the name of a group, as short as the others allow.

    >>> group_name((Collective.ALL_REDUCE, 8, False), [])
    'all_reduce'
    """
    collective, ranks, spans = group
    siblings = [sibling for sibling in among if sibling[0] is collective and sibling != group]
    name = str(collective.value)
    if any(sibling[1] != ranks for sibling in siblings):
        name += f", {ranks} ranks"
    if any(sibling[1] == ranks for sibling in siblings):
        name += " across nodes" if spans else " in a node"
    return name


def rank_groups(study: Study, times: SizeTimes) -> tuple[Group, ...]:
    """Return the groups of a workload, the longest time per step first; the largest first where nothing is measured."""
    weight: dict[Group, tuple[float, float]] = {}
    for calls in study.workload.messages:
        key = message_group(calls.message)
        times_us = times.of.get(calls.message)
        step_us, sent = weight.get(key, (0.0, 0.0))
        step_us += calls.calls_per_step * (median(times_us) if times_us else 0.0)
        weight[key] = (step_us, sent + calls.calls_per_step * calls.message.size_bytes)
    return tuple(sorted(weight, key=lambda key: weight[key], reverse=True))


def _join_spans(row: int, parts: Iterable[tuple[float, float, str, str]], tones: dict[str, Tone]) -> Iterator[Span]:
    """Yield the spans of a row; merge neighbours with the same label, and join their first and last note.

    Args:
        row: number of the row.
        parts: consecutive parts: start, end, label and note.
        tones: colours so far, one per pair of algorithm and protocol in order of occurrence.
    """
    for label, joined in itertools.groupby(parts, itemgetter(2)):
        members = list(joined)
        (start, _, _, first), (_, end, _, last) = members[0], members[-1]
        is_default = label == _DEFAULT
        family = _FAMILIES[len(tones) % len(_FAMILIES)]
        tone = "default" if is_default else tones.setdefault(label.partition(" ")[0], family)
        note = first if first == last else f"{first} | {last}"
        yield Span(row=row, start=start, end=end, label=label, tone=tone, note=note, gap=is_default)


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
    drawn = [calls.message for calls in study.workload.messages if message_group(calls.message) in groups]
    ends = (min(m.size_bytes for m in drawn) / 2, max(m.size_bytes for m in drawn) * 2)
    fastest = {
        message: _find_fastest(study, message, default, candidates)
        for message in _sort_by_size(study, default)
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
            spans += _join_spans(len(rows), _list_rules(policy, group, ends), tones)
            rows.append(f"{name}: policy")
        members = {message: row for message, row in fastest.items() if message_group(message) == group}
        if members:
            spans += _join_spans(len(rows), _list_fastest(members, default, ends), tones)
            rows.append(f"{name}: fastest")
    figures = [
        (
            message.label,
            _name_setting(policy.setting_for(message)) if policy is not None else NONE,
            label,
            format_us(time_us),
            format_us(median(default.of[message])),
        )
        for message, (label, time_us) in fastest.items()
    ]
    return Chart(
        id="wins-chart",
        title="Policy and fastest setting by message size",
        description="Algorithm, protocol and channels. Dashed: NCCL default. Fastest: best setting measured at the "
        "sizes of this workload; the NCCL default unless another one is over 1 % faster.",
        x=Axis("message size", "bytes", log=2, low=ends[0], high=ends[1]),
        y=Axis("", "number"),
        rows=rows,
        spans=spans,
        table=ChartTable(("Message", "Policy", "Fastest measured", "Fastest µs", "Default µs"), figures),
    )


def _name_setting(setting: Setting) -> str:
    """Return a setting without process-wide parameters as text."""
    bare = replace(setting, parameters=())
    return _DEFAULT if bare.is_default else bare.label


def _sort_by_size(study: Study, default: SizeTimes) -> list[Message]:
    """Return one message of each group and size that was measured."""
    messages = {
        (*message_group(calls.message), calls.message.size_bytes): calls.message
        for calls in study.workload.messages
        if calls.message in default.of
    }
    return sorted(messages.values(), key=lambda message: (message.collective, message.group_size, message.size_bytes))


def _find_fastest(
    study: Study, message: Message, default: SizeTimes, candidates: Mapping[Setting, SizeTimes]
) -> tuple[str, float]:
    """Return label and time of the fastest setting, µs."""
    version, default_us = study.cluster.version, median(default.of[message])
    measured = [
        (median(times.of[message]), setting.applied_to(message.collective, version=version).label)
        for setting, times in candidates.items()
        if message in times.of and setting != DEFAULT
    ]
    best_us, label = min(measured, default=(default_us, ""))
    if default_us <= best_us * AS_GOOD or label == DEFAULT.label:
        return _DEFAULT, default_us
    return label, best_us


def _list_rules(policy: Policy, group: Group, ends: tuple[float, float]) -> Iterator[tuple[float, float, str, str]]:
    """Yield the setting of the policy for each part of the axis between ends of rules."""
    collective, ranks, across = group
    rules = [rule for rule in policy.rules if rule.collective is collective]
    edges = {float(edge) for rule in rules for edge in (rule.min_bytes, (rule.max_bytes or 0) + 1)}
    for start, end in itertools.pairwise(sorted({*ends, *(edge for edge in edges if ends[0] < edge < ends[1])})):
        size = math.ceil(start)
        inside = Message(collective=collective, dtype="int8", size_bytes=size, group_size=ranks, spans_nodes=across)
        label = _name_setting(policy.setting_for(inside))
        yield start, end, label, "no rule: NCCL default" if label == _DEFAULT else f"rule: {label}"


def _list_fastest(
    fastest: Mapping[Message, tuple[str, float]], default: SizeTimes, ends: tuple[float, float]
) -> Iterator[tuple[float, float, str, str]]:
    """Yield the fastest setting around each size of a group."""
    sizes = [message.size_bytes for message in fastest]
    between = [math.sqrt(smaller * larger) for smaller, larger in itertools.pairwise(sizes)]
    edges = [max(ends[0], sizes[0] / 2), *between, min(ends[1], sizes[-1] * 2)]
    for (message, (label, time_us)), (start, end) in zip(fastest.items(), itertools.pairwise(edges), strict=True):
        default_us = format_us(median(default.of[message]))
        note = f"{format_bytes(message.size_bytes)}: {label}, {format_us(time_us)} µs; NCCL default {default_us} µs"
        yield start, end, label, note


def size_curves(study: Study, shown: Sequence[SizeTimes]) -> dict[str, tuple[Chart, Chart]]:
    """Draw time and bus bandwidth by size, for the groups that take longest and have more than one size, by name."""
    groups = rank_groups(study, shown[0])
    curves: dict[str, tuple[Chart, Chart]] = {}
    for group in groups:
        messages = [message for message in _sort_by_size(study, shown[0]) if message_group(message) == group]
        if len(messages) > 1 and len(curves) < MOST_GROUPS:
            name = group_name(group, groups)
            curves[name] = _draw_curves(name, len(curves), messages, shown)
    return curves


def _draw_curves(
    name: str, number: int, messages: Sequence[Message], shown: Sequence[SizeTimes]
) -> tuple[Chart, Chart]:
    def table(unit: str, cell: Callable[[Message, Sequence[float]], str]) -> ChartTable:
        rows = [
            [format_bytes(m.size_bytes), *(cell(m, times.of[m]) if m in times.of else NONE for times in shown)]
            for m in messages
        ]
        return ChartTable(("Size", *(f"{times.label}, {unit}" for times in shown)), rows)

    x = Axis("message size", "bytes", log=2)
    return (
        Chart(
            id=f"time-chart-{number}",
            title=f"{name}: time per call",
            description="Median over launches; band: fastest to slowest.",
            x=x,
            y=Axis("time", "us", log=10),
            lines=_curve_lines(messages, shown, lambda _, time_us: time_us),
            table=table("µs", lambda _, us: f"{format_us(median(us))} ({format_us(min(us))}–{format_us(max(us))})"),
        ),
        Chart(
            id=f"bandwidth-chart-{number}",
            title=f"{name}: bus bandwidth",
            description="As in nccl-tests.",
            x=x,
            y=Axis("bus bandwidth", "gbps", low=0.0),
            lines=_curve_lines(messages, shown, Message.busbw_gbps),
            table=table("GB/s", lambda message, us: format_bandwidth(message.busbw_gbps(median(us)))),
        ),
    )


def _curve_lines(
    messages: Sequence[Message], shown: Iterable[SizeTimes], convert: Callable[[Message, float], float]
) -> list[Line]:
    """Return the median of each by size, and a band between its extremes."""

    def point(message: Message, times_us: Sequence[float] | None) -> tuple[object, ...]:
        if not times_us:
            return message.size_bytes, None
        low, high = sorted((convert(message, min(times_us)), convert(message, max(times_us))))
        return message.size_bytes, convert(message, median(times_us)), "", low, high

    return [
        Line.through(
            times.label,
            times.tone,
            "dashed" if times.tone == "best" else "line",
            [point(message, times.of.get(message)) for message in messages],
        )
        for times in shown
        if any(times.of.get(message) for message in messages)
    ]


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
        (default.time_us, policy.time_us)
        for default, policy in blocks
        if default.time_us is not None and policy.time_us is not None
    ]
    if not pairs:
        return None
    return _pairs_chart(pairs, per), _interval_chart(_estimate_looks(pairs), min_effect)


def _pairs_chart(pairs: list[tuple[float, float]], per: str) -> Chart:
    first = max(0, len(pairs) - MOST_PAIRS)
    faster = sum(policy < default for default, policy in pairs)
    shown = [(n, *pair, format_speedup(pair[0] / pair[1])) for n, pair in enumerate(pairs[first:], first + 1)]
    return Chart(
        id="pairs-chart",
        title="A/B test by pair",
        description=f"Interleaved launches: the policy was faster in {faster} of {len(pairs)} pairs.",
        x=Axis("pair", "count", low=first + 0.5, high=len(pairs) + 0.5),
        y=Axis(f"time {per}", "us"),
        lines=[
            Line.through("default", "default", "ring", [(n, default, ratio) for n, default, _, ratio in shown]),
            Line.through("policy", "policy", "dot", [(n, policy, ratio) for n, _, policy, ratio in shown]),
            Line.through("one pair", "quiet", "stem", [(n, None, "", min(a, b), max(a, b)) for n, a, b, _ in shown]),
        ],
        table=ChartTable(
            ("Pair", "Default", "Policy", "Ratio"),
            [(str(n), format_time(default), format_time(policy), ratio) for n, default, policy, ratio in shown],
        ),
    )


def _estimate_looks(pairs: list[tuple[float, float]]) -> list[tuple[int, Interval]]:
    """Return the interval after some numbers of blocks."""
    gains = [math.log(default / policy) for default, policy in pairs]
    blocks = len(pairs) // 2
    if not blocks:
        return []
    looks = sorted({1 + round(place * (blocks - 1) / max(1, MOST_LOOKS - 1)) for place in range(MOST_LOOKS)})
    return [(look, estimate_interval(gains[: 2 * look], error=INTERVAL_ERROR)) for look in looks]


def _interval_chart(looks: Sequence[tuple[int, Interval]], min_effect: float) -> Chart:
    blocks, last = looks[-1]
    ends = [last.low, last.high, *(interval.estimate for _, interval in looks)]
    reach = max(0.03, *(1.6 * abs(end - 1) for end in ends if 0 < end < 3))
    bottom, top = max(0.0, 1 - reach), 1 + reach
    points = [(look, row.estimate, "", max(row.low, bottom), min(row.high, top)) for look, row in looks]
    return Chart(
        id="interval-chart",
        title="95 % CI by block",
        description=f"{format_interval((last.low, last.high))} after {count_noun(blocks, 'block')}; valid at any time.",
        x=Axis("block", "count"),
        y=Axis("speed-up", "ratio", low=bottom, high=top),
        lines=[Line.through("speed-up with 95 % CI", "policy", "line", points)],
        levels=[Level(1.0, "no change"), Level(1 + min_effect, "threshold", "warn")],
        table=ChartTable(
            ("Blocks", "Speed-up", "95 % CI"),
            [(str(look), format_speedup(row.estimate), format_interval((row.low, row.high))) for look, row in looks],
        ),
    )


def verification_charts(verification: Verification) -> tuple[Chart, ...]:
    """Draw the step times of a verification by launch, and its interval by block.

    The interval is that of the verdict: as it is stored with the launches, else where their times give the same.
    """
    launches = verification.launches
    timed = [(launch.order + 1, launch.side, launch.time_us) for launch in launches if launch.time_us is not None]
    if not timed:
        return ()
    base, tuned = ([(order, time_us) for order, of, time_us in timed if of is side] for side in Side)
    steps = Chart(
        id="steps-chart",
        title="Step time by launch",
        description="Median step of each launch; in live tuning, of each block of steps.",
        x=Axis("launch", "count"),
        y=Axis("step time", "us"),
        lines=[
            Line.through("without", "default", "ring", base),
            Line.through("with", "policy", "dot", tuned),
        ],
        table=ChartTable(
            ("Launch", "Side", "Step time"),
            [(str(order), side.value, format_time(time_us)) for order, side, time_us in timed],
        ),
    )
    pairs = [(default_us, policy_us) for (_, default_us), (_, policy_us) in zip(base, tuned, strict=False)]
    looks = [
        (launch.order + 1, Interval(estimate=launch.estimate[0], low=launch.estimate[1], high=launch.estimate[2]))
        for launch in launches
        if launch.estimate is not None
    ] or _estimate_looks(pairs[: len(pairs) // 2 * 2])
    ends = (looks[-1][1].low, looks[-1][1].high) if looks else ()
    if not looks or not all(map(partial(math.isclose, rel_tol=1e-6), ends, verification.verdict.interval)):
        return (steps,)
    interval = _interval_chart(looks, verification.verdict.min_effect)
    return steps, replace(interval, id="steps-interval-chart", title="95 % CI of the step time by block")
