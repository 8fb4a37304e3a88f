"""The gain of each part of a merged workload, by the launches of the one proof."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ncclt.core.study import Trial
from ncclt.core.workload import Workload, WorkloadPart
from ncclt.deliver.use import DeliveredForm
from ncclt.prove.confidence import interval_of
from ncclt.prove.evidence import ArmLaunch, collect_evidence
from ncclt.prove.proof import counted
from ncclt.prove.verdict import INTERVAL_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class PartGain:
    """Gain of the proven policy for one part of a merged workload.

    Attributes:
        name, weight: of the part.
        default_us: communication time of one step of the part under the default, µs; None = no proof.
        speedup: of the policy; None = no proof.
        interval: 95 % interval of the speed-up; None = no proof.
        note: why there is no proof, or how much of the part it leaves out; empty = it covers the whole part.
    """

    name: str
    weight: float
    default_us: float | None = None
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    note: str = ""

    @property
    def policy_us(self) -> float | None:
        """Return the communication time of one step of the part under the policy, µs, as the speed-up gives it."""
        return self.default_us / self.speedup if self.default_us is not None and self.speedup is not None else None

    def to_document(self) -> dict[str, Any]:
        """Return the gain as a JSON object; an interval without an end has null there."""
        ends = self.interval and [end if math.isfinite(end) else None for end in self.interval]
        return {
            "name": self.name,
            "weight": self.weight,
            "default_us": self.default_us,
            "policy_us": self.policy_us,
            "speedup": self.speedup,
            "interval": ends,
            "note": self.note,
        }


def measure_parts(use: DeliveredForm, trials: Sequence[Trial], workload: Workload) -> tuple[PartGain, ...]:
    """Return the gain of every part of a workload; empty where it was not merged.

    The pairs of launches are those of the verdict, each summed over the calls of one part. As in the verdict, messages
    that the policy leaves to NCCL count the same on both sides (`ncclt.prove.proof.counted`).

    Args:
        use: of what was published.
        trials: all trials of the study.
        workload: of the study, placed and cut to what can be measured there.
    """
    if not workload.parts:
        return ()
    evidence = collect_evidence(trials)
    blocks = evidence.whole_blocks(evidence.proven_arm(use.form)) if use.proven.verdict.blocks else ()
    return tuple(_measure_part(part, blocks, workload) for part in workload.parts)


def _measure_part(part: WorkloadPart, blocks: Sequence[tuple[ArmLaunch, ArmLaunch]], workload: Workload) -> PartGain:
    sent = {calls.message for calls in workload.messages}
    kept = tuple(calls for calls in part.messages if calls.message in sent)
    if not blocks or not kept:
        why = "none of its messages can be measured here" if blocks else "no policy was measured against the default"
        return PartGain(name=part.name, weight=part.weight, note=f"no proof: {why}")

    def cut(launch: ArmLaunch) -> ArmLaunch:
        return replace(launch, time_us=sum(c.calls_per_step * launch.message_us[c.message] for c in kept))

    pairs = counted([(cut(default), cut(policy)) for default, policy in blocks], replace(workload, messages=kept))
    times_us = [(default.time_us or 0.0, policy.time_us or 0.0) for default, policy in pairs]
    found = interval_of([math.log(default / policy) for default, policy in times_us], error=INTERVAL_ERROR)
    lacking = len(part.messages) - len(kept)
    return PartGain(
        name=part.name,
        weight=part.weight,
        default_us=statistics.median(default for default, _ in times_us),
        speedup=found.estimate,
        interval=(found.low, found.high),
        note=f"without {lacking} of its {len(part.messages)} messages, which cannot be measured here"
        if lacking
        else "",
    )
