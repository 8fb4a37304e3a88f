"""The result of a study as Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from ncclt.core.message import format_bytes
from ncclt.core.recommendation import Recommendation
from ncclt_api.pages.study_view import StudyView
from ncclt_api.pages.trial_table import TrialTable
from ncclt_api.pages.wording import (
    NONE,
    cut_in_the_middle,
    format_count,
    format_interval,
    format_range,
    format_speedup,
    format_time,
    format_us,
)

_LONGEST = 200
"""Characters of a name that are shown."""

_MOST_MESSAGES = 30


def markdown(view: StudyView, trials: TrialTable, *, instead: Recommendation | None, made: str) -> str:
    """Return the report; names stand in code spans, in which nothing is a link, a tag or a mention.

    Args:
        view: of the study.
        trials: how many there are.
        instead: the revision of another study that jobs are given; None = this one.
        made: time of the report, as text.
    """
    study, cluster = view.study, view.study.cluster
    lines = [f"# {code(study.workload.name)} on {code(cluster.name)}", ""]
    if study.label:
        what = "come from a model of the cluster" if study.simulated else "were recorded elsewhere and replayed"
        lines += [f"> **{'SIMULATED' if study.simulated else prose(study.label)}**: these times {what}.", ""]
    lines += [f"**{prose(view.heading.word)}**: {prose(view.heading.sentence)}", ""]
    if instead:
        lines += [f"**Superseded**: jobs are given revision {instead.revision} of study {code(instead.study)}.", ""]
    if view.ending and view.ending.use.command:
        lines += ["## Use it", "", _block(view.ending.use.command), ""]
    for note in view.ending.notes if view.ending else ():
        lines += [f"Note: {prose(note)}.", ""]
    lines += _table(("", ""), _facts(view, trials))
    lines += _verdicts(view)
    if view.rows:
        lines += ["## Messages", ""]
        header = (
            "Message",
            "Size",
            "Ranks",
            f"Calls / {study.workload.unit}",
            "Default µs",
            f"{view.compared.capitalize()} µs",
            "Speed-up",
            "Setting",
        )
        lines += _table(header, _messages(view), numbers=range(1, 7))
        if any(row.message in view.interpolated for row in view.rows[:_MOST_MESSAGES]):
            lines += ["\\* This size was not recorded: interpolated between recorded sizes.", ""]
        if len(view.rows) > _MOST_MESSAGES:
            lines += [f"The {_MOST_MESSAGES} longest {study.workload.per} of {len(view.rows)}.", ""]
    if view.recommendation and view.recommendation.table.policy.rules:
        rules = view.recommendation.table.policy.rules
        rows = [
            (
                rule.collective.value, format_range(rule), rule.algorithm.value if rule.algorithm else "NCCL's",
                rule.protocol.value if rule.protocol else "NCCL's", str(rule.channels or "NCCL's"),
            )
            for rule in rules
        ]  # fmt: skip
        lines += ["## Policy", "", *_table(("Collective", "Sizes", "Algorithm", "Protocol", "Channels"), rows)]
        lines += ["What no rule covers is left to NCCL.", ""]
    return "\n".join([*lines, f"Study {code(study.id)}, report of {made}.", ""])


def _facts(view: StudyView, trials: TrialTable) -> list[tuple[str, str]]:
    study, cluster = view.study, view.study.cluster
    facts = [
        ("Study", code(study.name)),
        ("Job", f"{cluster.nodes} × {cluster.gpus_per_node} {code(cluster.gpu)}"),
        ("NCCL", code(cluster.nccl_version)),
        ("Launcher", code(study.launcher)),
        ("Trials", f"{trials.total}, {trials.failed} failed"),
    ]
    if view.cost:
        facts.append(("Cost of all launches", prose(view.cost)))
    if study.reason:
        facts.append(("The search ended", prose(study.reason)))
    return facts


def _verdicts(view: StudyView) -> list[str]:
    rows = []
    for form in view.forms:
        if form.policy_verdict is None:
            continue
        verdict = form.policy_verdict.verdict
        rows.append(
            (
                form.name, verdict.decision.value,
                format_speedup(verdict.speedup) if verdict.blocks else NONE,
                format_interval(verdict.interval) if verdict.blocks else NONE,
                str(verdict.blocks), format_time(verdict.default_us),
                format_time(verdict.paired_policy_us) if verdict.blocks else NONE,
            )
        )  # fmt: skip
    times = (f"{side} {view.study.workload.per}" for side in ("Default", "Policy"))
    header = ("Form", "Verdict", "Speed-up", "95 % interval", "Blocks", *times)
    return ["## Proof", "", *_table(header, rows, numbers=range(2, 7))] if rows else []


def _messages(view: StudyView) -> Iterable[Sequence[str]]:
    for row in view.rows[:_MOST_MESSAGES]:
        message = row.message
        yield (
            f"{message.collective.value} {code(message.dtype)}",
            format_bytes(message.size_bytes) + ("\\*" if message in view.interpolated else ""),
            str(message.group_size or NONE), format_count(row.calls.calls_per_step), format_us(row.default_us),
            format_us(row.policy_us), format_speedup(row.speedup), code(row.setting),
        )  # fmt: skip


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = ()) -> list[str]:
    right = set(numbers)
    ruler = ["---:" if place in right else "---" for place in range(len(header))]
    return [*(f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows)), ""]


def _plain(text: str) -> str:
    """Return a text in one line, without controls: some turn the direction of all that follows (UAX 9)."""
    shown = "".join(
        " " if one.isspace() else one for one in text if one.isspace() or unicodedata.category(one)[0] != "C"
    )
    return " ".join(shown.split())


def code(text: str) -> str:
    r"""Return a name as a code span (CommonMark 6.1), also in a table (GFM 4.10).

    >>> code("a`|b")
    '``a`\\|b``'
    """
    shown = cut_in_the_middle(_plain(text), _LONGEST) or NONE
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    room = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{room}{shown}{room}{ticks}".replace("|", "\\|")


def prose(text: str) -> str:
    r"""Return a sentence in which no character means anything to Markdown, and no name is notified.

    >>> prose("<b> @team")
    '\\<b\\> \\@\u2060team'
    """
    shown = cut_in_the_middle(_plain(text), 5 * _LONGEST)
    return re.sub(r"([\\`*_{}\[\]<>#!|~&@])", r"\\\1", shown).replace("@", "@\u2060")


def _block(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}sh\n{_plain(text)}\n{fence}"
