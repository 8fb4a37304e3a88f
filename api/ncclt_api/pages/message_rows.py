"""Default against policy, message by message."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.message import Message
from ncclt.core.recommendation import PolicyVerdict
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Study, Trial
from ncclt.core.workload import MessageCalls, Workload
from ncclt.prove.evidence import LaunchEvidence
from ncclt.prove.study_summary import proven_times_us


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLine:
    """One message under the default and under the policy.

    Attributes:
        calls: the message with its calls per step.
        default_us, policy_us: time of a call, µs; None where it was not measured.
        setting: what the policy forces on it, as text.
    """

    calls: MessageCalls
    default_us: float | None
    policy_us: float | None
    setting: str

    @property
    def message(self) -> Message:
        """Return what is sent."""
        return self.calls.message

    @property
    def speedup(self) -> float | None:
        """Return default / policy; above 1 = the policy is faster."""
        return self.default_us / self.policy_us if self.default_us and self.policy_us else None

    @property
    def step_us(self) -> float:
        """Return its default time per step, µs, 0 where not measured: what the rows are ordered by."""
        return self.calls.calls_per_step * (self.default_us or 0.0)

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
    """Return the workload's messages as the verification of an arm measured them, the longest per step first."""
    default_us, policy_us = proven_times_us(evidence, arm, proven.verdict, study.workload)
    return _rows(study, default_us, policy_us, lambda message: proven.policy.setting_for(message).label)


def best_setting_rows(study: Study, trials: Sequence[Trial], best: Setting) -> tuple[MessageLine, ...]:
    """Return the workload's messages as the search measured them under the default and under its best setting."""
    version = study.cluster.version
    return _rows(
        study,
        _median_times(trial for trial in trials if trial.setting.is_default and trial.policy is None),
        _median_times(trial for trial in trials if trial.setting == best and trial.policy is None),
        lambda message: best.applied_to(message.collective, version=version).label,
    )


def interpolated_messages(trials: Iterable[Trial], workload: Workload) -> frozenset[Message]:
    """Return the workload's messages whose size was not itself measured; the sizes beside them are no rows."""
    found = {m.message for trial in trials for m in trial.result.measurements if m.interpolated}
    return frozenset(calls.message for calls in workload.messages if calls.message in found)


def _median_times(trials: Iterable[Trial]) -> dict[Message, float]:
    samples: dict[Message, list[float]] = {}
    for trial in trials:
        if trial.score_us is not None:
            for measurement in trial.result.measurements:
                samples.setdefault(measurement.message, []).append(measurement.time_us)
    return {message: statistics.median(times) for message, times in samples.items()}


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
