"""Default against policy, message by message, as a finished study measured them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Trial
from ncclt.core.workload import MessageCalls, Workload
from ncclt.prove.evidence import collect_evidence
from ncclt.search.assemble import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One message, default against policy.

    Attributes:
        calls: the message and its calls per step.
        default_us, tuned_us: median time of one call, µs.
        setting: what the policy uses for it.
        interpolated: the landscape had no such size.
    """

    calls: MessageCalls
    default_us: float
    tuned_us: float
    setting: Setting
    interpolated: bool = False

    @property
    def gain(self) -> float:
        """Return the share of time that the policy saves on this message."""
        return 1 - self.tuned_us / self.default_us


def message_rows(policy: Policy, trials: Sequence[Trial], workload: Workload, times: Times) -> tuple[MessageRow, ...]:
    """Return one row per message, most time per step first.

    Times come from the proof where it measured the policy, else from search and confirmation.
    """
    evidence = collect_evidence(trials)
    default_us = {**times.default, **evidence.message_times_us(Arm.DEFAULT)}
    tuned_us = evidence.message_times_us(Arm.TABLE)
    interpolated = {m.message for t in trials for m in t.result.measurements if m.interpolated}
    rows = [
        MessageRow(
            calls=calls,
            default_us=default_us[calls.message],
            tuned_us=tuned_us.get(calls.message, default_us[calls.message]),
            setting=policy.setting_for(calls.message),
            interpolated=calls.message in interpolated,
        )
        for calls in workload.messages
    ]
    return tuple(sorted(rows, key=lambda row: -row.calls.calls_per_step * row.default_us))
