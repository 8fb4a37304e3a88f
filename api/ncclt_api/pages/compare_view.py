"""The content of the page that sets up to six results side by side, computed before any HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from ncclt.core.message import Collective
from ncclt.core.policy import Rule
from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study
from ncclt.deliver.use import use_of
from ncclt_api.pages.home_view import ShownGain, gain_of
from ncclt_api.pages.wording import NONE, format_range, format_time

FEWEST, MOST = 2, 6
"""Columns that can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What is compared: a study, and the revision that stands for it; None = it has published none."""

    study: Study
    recommendation: Recommendation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One of the results.

    Attributes:
        title, under: what it is, in two lines.
        href: the page of its study.
        mood, word: the badge.
        label: the mark that goes with every number of it.
        gain: None before there is a verdict.
        is_best: it has the largest proven speed-up of all that are served; only where all times have one origin.
    """

    title: str
    under: str
    href: str
    mood: str
    word: str
    label: str
    gain: ShownGain | None
    is_best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRow:
    """One respect: its name, a value per column, and whether they differ."""

    name: str
    values: tuple[str, ...]
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareView:
    """The content of the page: what the results are, where they are valid, and what they choose at which size.

    Attributes:
        same_messages: they were tuned for the same messages on the same shape, so times can be compared.
        note: why times cannot be compared; empty where they can.
    """

    columns: tuple[Column, ...]
    facts: tuple[CompareRow, ...]
    rules: tuple[CompareRow, ...]
    same_messages: bool
    note: str


def compare_view(found: Sequence[Compared], *, now: datetime) -> CompareView:
    """Return the content of the page for `FEWEST` to `MOST` results, in their order."""
    gains = [gain_of(one.recommendation, now=now) if one.recommendation else None for one in found]
    proven = [g.speedup for g in gains if g and g.speedup and g.mood == "tuned"]
    # A simulated gain is never better than a measured one: they are not compared.
    best = max(proven, default=0.0) if len({g.origin for g in gains if g}) == 1 else 0.0
    same = len({one.study.workload.digest() for one in found}) == 1
    return CompareView(
        columns=tuple(
            Column(
                title=f"{one.study.workload.name} on {one.study.cluster.name}",
                under=f"revision {gain.revision}, {gain.age}" if gain else one.study.name,
                href=f"/studies/{quote(one.study.id, safe='')}",
                mood=gain.mood if gain else "open",
                word=gain.word if gain else one.study.state.value,
                label=one.study.label,
                gain=gain,
                is_best=bool(gain and best and gain.mood == "tuned" and gain.speedup == best),
            )
            for one, gain in zip(found, gains, strict=True)
        ),
        facts=_facts(found, gains),
        rules=_rules(found),
        same_messages=same,
        note=""
        if same
        else "Their messages, or the sizes of their jobs, differ: compare the speed-ups, not the times.",
    )


def _row(name: str, values: Sequence[str]) -> CompareRow:
    return CompareRow(name=name, values=tuple(values), differs=len(set(values)) > 1)


def _facts(found: Sequence[Compared], gains: Sequence[ShownGain | None]) -> tuple[CompareRow, ...]:
    def of_gain(text: Callable[[ShownGain], str]) -> list[str]:
        return [text(gain) if gain else NONE for gain in gains]

    def of_study(text: Callable[[Study], str]) -> list[str]:
        return [text(one.study) for one in found]

    per = " or ".join(sorted({one.study.workload.per for one in found}, reverse=True))
    return (
        _row("95 % interval", of_gain(lambda g: NONE if g.low is None else f"{g.low:.3f}–{g.high:.3f}")),
        _row(f"Default, {per}", of_gain(lambda g: format_time(g.default_us))),
        _row(f"Policy, {per}", of_gain(lambda g: "default" if g.policy_us is None else format_time(g.policy_us))),
        _row("Times", of_study(lambda s: "SIMULATED" if s.simulated else s.label or "measured there")),
        _row("NCCL", of_study(lambda s: s.cluster.nccl_version)),
        _row("Job", of_study(lambda s: f"{s.cluster.nodes} × {s.cluster.gpus_per_node} {s.cluster.gpu}")),
        _row("In the node", of_study(lambda s: s.cluster.link_class)),
        _row("Between nodes", of_study(lambda s: s.cluster.fabric if s.cluster.nodes > 1 else NONE)),
        _row("Driver", of_study(lambda s: s.cluster.driver or NONE)),
        _row("Fingerprint", of_study(lambda s: s.cluster.fingerprint().digest())),
        _row("Messages", of_study(lambda s: s.workload.digest())),
        _row("Used as", [_form(one.recommendation) for one in found]),
        _row("Process-wide", [_parameters(one.recommendation) for one in found]),
    )


def _form(found: Recommendation | None) -> str:
    form = use_of(found).form if found else None
    return {"table": "tuner table", "variables": "plain variables"}.get(form.value, "") if form else NONE


def _parameters(found: Recommendation | None) -> str:
    policy = use_of(found).proven.policy if found else None
    return " ".join(f"NCCL_{name}={value}" for name, value in policy.parameters) or NONE if policy else NONE


def _rules(found: Sequence[Compared]) -> tuple[CompareRow, ...]:
    """Return what each chooses in every range of sizes in which none of them changes its choice."""
    policies = [use_of(one.recommendation).proven.policy if one.recommendation else None for one in found]
    rules = [rule for policy in policies if policy for rule in policy.rules]
    rows = []
    for collective in sorted({rule.collective for rule in rules}):
        mine = [rule for rule in rules if rule.collective is collective]
        starts = {0, *(rule.min_bytes for rule in mine), *(rule.max_bytes + 1 for rule in mine if rule.max_bytes)}
        edges = sorted(starts)
        for start, following in zip(edges, [*edges[1:], None], strict=True):
            span = Rule(collective=collective, min_bytes=start, max_bytes=following - 1 if following else None)
            values = [_choice(policy.rules, collective, start) if policy is not None else NONE for policy in policies]
            rows.append(_row(f"{collective.value}, {format_range(span)}", values))
    return tuple(rows)


def _choice(rules: Sequence[Rule], collective: Collective, size_bytes: int) -> str:
    """Return what a policy chooses for a size; rules for one size of group are named with it."""
    fitting = [
        rule
        for rule in rules
        if rule.collective is collective
        and rule.min_bytes <= size_bytes
        and (rule.max_bytes is None or size_bytes <= rule.max_bytes)
    ]
    texts = []
    for rule in fitting:
        pair = f"{rule.algorithm.value if rule.algorithm else '*'}/{rule.protocol.value if rule.protocol else '*'}"
        channels = f" c={rule.channels}" if rule.channels else ""
        texts.append(f"{pair}{channels}" + (f" ({rule.group_size} ranks)" if rule.group_size else ""))
    return ", ".join(texts) or "NCCL's choice"
