"""What the tuner plugin has attested: that NCCL really made the choices of the shared table.

The plugin selects only choices that NCCL makes available. A choice that is not available, and a plugin that was never
loaded, leave the NCCL default, so a trial would measure the default and take it for the setting. So the first trial of
each choice closes its communicators, upon which the plugin reports every decision, and counts only then.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclt.core.message import Message
from ncclt.measure.persistent.commands import decided
from ncclt.nccl.switching import ForcedState

_Choice = tuple[object, ...]


class Attested:
    """Remembers the choices that were applied; they are the same in every launch on a cluster.

    They depend on the variables: a single channel, for example, disables NVLS.
    """

    def __init__(self) -> None:
        self._seen: set[_Choice] = set()

    def lacks(self, wanted: ForcedState, messages: Sequence[Message]) -> bool:
        """Return whether some message would be sent by a choice that is not attested yet."""
        return not self._seen.issuperset(_choices(wanted, messages))

    def check(self, lines: Sequence[object], wanted: ForcedState, messages: Sequence[Message]) -> str:
        """Look for the choices of a trial in the plugin's reports, and remember those that were applied.

        Args:
            lines: of the reports, parsed.
            wanted: what the trial was to apply.
            messages: that were sent.

        Returns:
            why the trial did not measure its setting; empty = it did.

        Raises:
            BenchmarkError: the lines are not reports of the plugin.
        """
        decisions, unused = decided(lines)
        if unused and wanted.rules:
            return f"the tuner plugin took no part: {unused}"
        outcomes: dict[_Choice, set[str]] = {}
        for line in decisions:
            forced = (line.get("collective"), line.get("algorithm"), line.get("protocol"))
            outcomes.setdefault(forced, set()).add(str(line.get("outcome")))
        for rule in wanted.rules:
            forced = (rule.collective.value, str(rule.algorithm), str(rule.protocol))
            if any(rule.matches(message) for message in messages) and outcomes.get(forced) != {"applied"}:
                what = "does not offer" if "unavailable" in outcomes.get(forced, ()) else "was never asked for"
                return f"NCCL {what} {rule.algorithm}/{rule.protocol} for {rule.collective} here"
        self._seen.update(_choices(wanted, messages))
        return ""


def _choices(wanted: ForcedState, messages: Sequence[Message]) -> set[_Choice]:
    return {
        (wanted.variables, rule.algorithm, rule.protocol, m.collective, m.dtype, m.group_size, m.spans_nodes)
        for rule in wanted.rules
        for m in messages
        if rule.matches(m)
    }
