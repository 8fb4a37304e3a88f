"""Default against policy, message by message, as a finished study measured them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ncclt.core.recommendation import Recommendation
from ncclt.core.setting import Setting
from ncclt.core.study import Trial
from ncclt.core.workload import MessageCalls, Workload
from ncclt.deliver.render.delivery import choose_form
from ncclt.prove.evidence import collect_evidence
from ncclt.prove.study_summary import proven_times_us, scale_times
from ncclt.search.assemble import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One message, default against policy.

    Attributes:
        calls: the message and its calls per step.
        default_us, tuned_us: time of one call, µs, as `proven_times_us` gives it.
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

    @property
    def saved_us(self) -> float:
        """Return the time per step that the policy saves on this message, µs."""
        return self.calls.calls_per_step * (self.default_us - self.tuned_us)

    def to_document(self) -> dict[str, Any]:
        """Return the row as a JSON object, with bus bandwidths in GB/s."""
        message = self.calls.message
        return {
            "collective": message.collective.value,
            "dtype": message.dtype,
            "size_bytes": message.size_bytes,
            "group_size": message.group_size,
            "calls_per_step": self.calls.calls_per_step,
            "default_us": self.default_us,
            "tuned_us": self.tuned_us,
            "default_busbw_gbps": message.busbw_gbps(self.default_us),
            "tuned_busbw_gbps": message.busbw_gbps(self.tuned_us),
            "gain": self.gain,
            "saved_us_per_step": self.saved_us,
            "setting": self.setting.to_document(),
            "interpolated": self.interpolated,
        }


def message_rows(
    found: Recommendation, trials: Sequence[Trial], workload: Workload, times: Times
) -> tuple[MessageRow, ...]:
    """Return one row per message for the form in which a recommendation is used, most time per step first.

    Times come from the proof where it measured the policy, else from search and confirmation.
    """
    use = choose_form(found)
    evidence, policy, verdict = collect_evidence(trials), use.proven.policy, use.proven.verdict
    proven_us, tuned_us = proven_times_us(evidence, evidence.proven_arm(use.form), verdict, workload)
    default_us = {**times.default, **proven_us}
    if not verdict.blocks and verdict.default_us:  # nothing to prove: the times of the search, which the verdict sums
        default_us, tuned_us = scale_times(verdict.default_us, times.default, workload), {}
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
