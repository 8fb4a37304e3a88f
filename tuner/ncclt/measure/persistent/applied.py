"""What the tuner plugin has attested: that NCCL really has the choices that the shared table asks for.

The plugin asks for what NCCL offers and for nothing else. A choice that is not offered, and a plugin that was never
loaded, leave NCCL's own choice, so a trial would measure the default and take it for the setting. So the first trial of
each choice closes its communicators, on which the plugin reports every decision, and is believed only then.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclt.core.message import Message
from ncclt.measure.persistent.commands import decided
from ncclt.nccl.switching import Force

_Choice = tuple[object, ...]


class Attested:
    """Remembers the choices that were seen to be applied; a cluster offers the same ones from launch to launch.

    Under the same variables: a single channel, for example, takes NVLS away (nccl.md 4.2).
    """

    def __init__(self) -> None:
        self._seen: set[_Choice] = set()

    def lacks(self, wanted: Force, messages: Sequence[Message]) -> bool:
        """Tell whether some message would be sent by a choice that nobody has seen applied yet."""
        return not self._seen.issuperset(_choices(wanted, messages))

    def check(self, lines: Sequence[object], wanted: Force, messages: Sequence[Message]) -> str:
        """Look for the choices of a trial in the plugin's reports, and remember those that were applied.

        Args:
            lines: of the reports, parsed.
            wanted: what was to be in force in that trial.
            messages: that were sent.

        Returns:
            why the trial did not measure its setting; empty = it did.

        Raises:
            BenchmarkError: these are no reports of the plugin.
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


def _choices(wanted: Force, messages: Sequence[Message]) -> set[_Choice]:
    return {
        (wanted.variables, rule.algorithm, rule.protocol, m.collective, m.dtype, m.group_size, m.spans_nodes)
        for rule in wanted.rules
        for m in messages
        if rule.matches(m)
    }
