"""Choices that the tuner plugin has attested: NCCL really made those of the shared table.

The plugin selects only choices that NCCL makes available. A choice that is not available, and a plugin that was never
loaded, leave the NCCL default, so a trial would measure the default and take it for the setting. So the first trial of
each choice closes its communicators, upon which the plugin reports every decision, and counts only then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ncclt.core.message import Message
from ncclt.core.trial import Outcome, TrialResult
from ncclt.errors import BenchmarkError
from ncclt.nccl.switching import ForcedState


def read_decisions(lines: Sequence[object]) -> tuple[tuple[Mapping[str, object], ...], str]:
    """Return the decisions that the plugin reports, and why its table was not in use; empty = it was.

    Args:
        lines: of its reports (docs/internals/tuner-plugin.md), parsed: first each communicator, then its decisions.

    Raises:
        BenchmarkError: they are not reports of the plugin.
    """
    decisions: list[Mapping[str, object]] = []
    unused, heads = "", 0
    for line in lines:
        if not isinstance(line, Mapping):
            raise BenchmarkError("the report of the plugin cannot be read", hint="the plugin is of another release")
        if "ncclt_plugin_report" in line:
            heads += 1
            unused = unused or str(line.get("not_in_use", ""))
        elif "outcome" in line:
            decisions.append(line)
    if not heads:
        return (), "NCCL did not load it"
    return tuple(decisions), unused


_Choice = tuple[object, ...]


class Attested:
    """Remembers the choices that were applied; they are the same in every launch on a cluster.

    They depend on the variables: a single channel, for example, disables NVLS.
    """

    def __init__(self) -> None:
        self._seen: set[_Choice] = set()

    def lacks(self, wanted: ForcedState, messages: Sequence[Message]) -> bool:
        """Return True if some message would be sent by a choice that is not attested yet."""
        return not self._seen.issuperset(_choices(wanted, messages))

    def judge(
        self, result: TrialResult, lines: Iterable[object], wanted: ForcedState, messages: Sequence[Message]
    ) -> TrialResult:
        """Mark a good result `substituted` if NCCL made other choices, or `invalid` if its reports are unreadable.

        For the arguments see `check`.
        """
        try:
            problem = self.check(list(lines), wanted, messages)
        except BenchmarkError as error:
            return replace(result, outcome=Outcome.INVALID, detail=error.message, measurements=())
        if not problem:
            return result
        detail = f"{problem}; the NCCL default ran instead"
        return replace(result, outcome=Outcome.SUBSTITUTED, detail=detail, measurements=())

    def check(self, lines: Sequence[object], wanted: ForcedState, messages: Sequence[Message]) -> str:
        """Look for the choices of a trial in the plugin's reports, and remember those that were applied.

        Args:
            lines: of the reports, parsed.

        Returns:
            why the trial did not measure its setting; empty = it did.

        Raises:
            BenchmarkError: the lines are not reports of the plugin.
        """
        decisions, unused = read_decisions(lines)
        if unused and wanted.rules:
            return f"the tuner plugin took no part: {unused}"
        outcomes: dict[_Choice, set[str]] = {}
        for line in decisions:
            forced = (line.get("collective"), line.get("algorithm"), line.get("protocol"))
            outcomes.setdefault(forced, set()).add(str(line.get("outcome")))
        for rule in wanted.rules:
            forced = (rule.collective.value, str(rule.algorithm), str(rule.protocol))
            if any(rule.matches(message) for message in messages) and outcomes.get(forced) != {"applied"}:
                problem = "does not offer" if "unavailable" in outcomes.get(forced, ()) else "was never asked for"
                return f"NCCL {problem} {rule.algorithm}/{rule.protocol} for {rule.collective} here"
        self._seen.update(_choices(wanted, messages))
        return ""


def _choices(wanted: ForcedState, messages: Sequence[Message]) -> set[_Choice]:
    return {
        (wanted.variables, rule.algorithm, rule.protocol, m.collective, m.dtype, m.group_size, m.spans_nodes)
        for rule in wanted.rules
        for m in messages
        if rule.matches(m)
    }
