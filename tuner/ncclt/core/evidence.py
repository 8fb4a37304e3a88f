"""What a verdict rests on: the interleaved launches of default and policies, kept and re-computable by anyone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.message import Message
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmLaunch:
    """One measurement of a whole arm: a policy with several settings takes one trial for each of them.

    Attributes:
        arm: default, table or variables.
        block: counts this arm's launches from 0, two to a block of A B B A.
        order: number of its first trial, so that the interleaving can be seen.
        time_us: communication time per step, µs; None where a trial failed.
        failure: outcome and detail of the trial that failed, for people.
    """

    arm: Arm
    block: int
    order: int
    time_us: float | None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The launches of the last verification of a study, in order, and the times per message behind them."""

    launches: tuple[ArmLaunch, ...]
    message_samples_us: Mapping[Arm, Mapping[Message, tuple[float, ...]]]

    def times_us(self, arm: Arm) -> tuple[float, ...]:
        """Return the times per step of an arm's launches, µs, in order, without the failed ones."""
        return tuple(launch.time_us for launch in self.launches if launch.arm is arm and launch.time_us is not None)

    def failure(self, arm: Arm) -> str:
        """Return what went wrong with an arm, empty when nothing did."""
        return next((launch.failure for launch in self.launches if launch.arm is arm and launch.failure), "")

    def message_times_us(self, arm: Arm) -> dict[Message, float]:
        """Return the median time of one call per message under an arm, µs."""
        return {m: statistics.median(samples) for m, samples in self.message_samples_us.get(arm, {}).items()}


def last_verification(trials: Sequence[Trial]) -> list[Trial]:
    """Return the verification trials after the last search or confirmation: earlier ones judged an older policy."""
    numbers = [t.number for t in trials if t.phase is not Phase.VERIFY]
    newest = max(numbers, default=-1)
    return [t for t in trials if t.phase is Phase.VERIFY and t.number > newest]


def collect_evidence(trials: Sequence[Trial]) -> Evidence:
    """Gather the launches of the last verification out of all trials of a study."""
    grouped: dict[tuple[Arm, int], list[Trial]] = {}
    samples: dict[Arm, dict[Message, list[float]]] = {}
    for trial in last_verification(trials):
        assert trial.arm is not None
        grouped.setdefault((trial.arm, trial.block), []).append(trial)
        mine = samples.setdefault(trial.arm, {})
        for measurement in trial.result.measurements:
            mine.setdefault(measurement.message, []).append(measurement.time_us)
    launches = [_launch(arm, block, parts) for (arm, block), parts in grouped.items()]
    return Evidence(
        launches=tuple(sorted(launches, key=lambda launch: launch.order)),
        message_samples_us={arm: {m: tuple(s) for m, s in mine.items()} for arm, mine in samples.items()},
    )


def _launch(arm: Arm, block: int, parts: Sequence[Trial]) -> ArmLaunch:
    failed = next((t for t in parts if t.result.outcome is not Outcome.OK or t.score_us is None), None)
    return ArmLaunch(
        arm=arm,
        block=block,
        order=parts[0].number,
        time_us=None if failed else sum(t.score_us for t in parts if t.score_us is not None),
        failure=f"{failed.result.outcome}: {failed.result.detail}" if failed else "",
    )
