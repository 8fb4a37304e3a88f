"""The evidence of a verdict: the interleaved launches of default and policies, kept so that it can be recomputed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ncclt.core.attestation import Form
from ncclt.core.message import Message
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome

LAUNCHES_PER_BLOCK = 2
"""Each arm is launched twice in a block, in two pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmLaunch:
    """One measurement of a whole arm, put together from several trials where no launch can apply a whole policy.

    Attributes:
        arm: default, today, table or variables.
        block: counts this arm's launches from 0, two per block.
        order: number of its first trial, which shows the interleaving.
        time_us: communication time per step, µs; None where a trial failed.
        failure: outcome and detail of the failed trial, as text.
        message_us: time of one call of each message, µs; empty where a trial failed.
        left: messages of a table for which nothing was forced, so that it can differ from the default by noise alone.
    """

    arm: Arm
    block: int
    order: int
    time_us: float | None
    failure: str = ""
    message_us: Mapping[Message, float] = field(default_factory=dict)
    left: frozenset[Message] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEvidence:
    """The launches of the last proof of a study, in order."""

    launches: tuple[ArmLaunch, ...]

    def times_us(self, arm: Arm) -> tuple[float, ...]:
        """Return the times per step of an arm's launches, µs, in order, without the failed ones."""
        return tuple(launch.time_us for launch in self.launches if launch.arm is arm and launch.time_us is not None)

    def failure(self, arm: Arm) -> str:
        """Return the first failure of an arm; empty = none."""
        return next((launch.failure for launch in self.launches if launch.arm is arm and launch.failure), "")

    def message_times_us(self, arm: Arm) -> dict[Message, float]:
        """Return the median time of one call per message under an arm, µs."""
        samples: dict[Message, list[float]] = {}
        for launch in self.launches:
            if launch.arm is arm:
                for message, time_us in launch.message_us.items():
                    samples.setdefault(message, []).append(time_us)
        return {message: statistics.median(times_us) for message, times_us in samples.items()}

    def proven_arm(self, form: Form | None) -> Arm:
        """Return the arm that proves a form; where no launch applies a table, variables are proven in its place."""
        if form is Form.VARIABLES or not self.message_times_us(Arm.TABLE):
            return Arm.VARIABLES
        return Arm.TABLE

    def whole_blocks(self, arm: Arm, *, baseline: Arm = Arm.DEFAULT) -> tuple[tuple[ArmLaunch, ArmLaunch], ...]:
        """Return pairs of launches, baseline and arm, of every block in which both were measured twice, in order.

        The first launch of the baseline is paired with the first of the arm, and the second with the second: they are
        neighbours in random order.
        """
        measured = {(launch.arm, launch.block): launch for launch in self.launches if launch.time_us is not None}
        last = max((launch.block for launch in self.launches), default=-1)
        pairs: list[tuple[ArmLaunch, ArmLaunch]] = []
        for first in range(0, last + 1, LAUNCHES_PER_BLOCK):
            halves = range(first, first + LAUNCHES_PER_BLOCK)
            if all((side, half) in measured for side in (baseline, arm) for half in halves):
                pairs += [(measured[baseline, half], measured[arm, half]) for half in halves]
        return tuple(pairs)


def last_proof(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials of the last proof by number.

    Those before the last search or confirmation judged an older policy, and so did earlier proofs.
    """
    ordered = sorted(trials, key=lambda trial: trial.number)
    newest = max((i for i, trial in enumerate(ordered) if trial.phase is not Phase.PROVE), default=-1)
    verification = ordered[newest + 1 :]
    return [trial for trial in verification if trial.proof == verification[-1].proof]


def collect_evidence(trials: Sequence[Trial]) -> LaunchEvidence:
    """Gather the launches of the last proof from all trials of a study."""
    grouped: dict[tuple[Arm, int], list[Trial]] = {}
    for trial in last_proof(trials):
        assert trial.arm is not None
        grouped.setdefault((trial.arm, trial.block), []).append(trial)
    launches = [_launch(arm, block, parts) for (arm, block), parts in grouped.items()]
    return LaunchEvidence(launches=tuple(sorted(launches, key=lambda launch: launch.order)))


def _launch(arm: Arm, block: int, parts: Sequence[Trial]) -> ArmLaunch:
    measured = [(t, m.message) for t in parts for m in t.result.measurements] if arm is Arm.TABLE else []
    failed = next((t for t in parts if t.result.outcome is not Outcome.OK or t.score_us is None), None)
    return ArmLaunch(
        arm=arm,
        block=block,
        order=parts[0].number,
        time_us=None if failed else sum(t.score_us for t in parts if t.score_us is not None),
        failure=f"{failed.result.outcome}: {failed.result.detail}" if failed else "",
        message_us={} if failed else {m.message: m.time_us for t in parts for m in t.result.measurements},
        left=frozenset(message for trial, message in measured if trial.setting_for(message).is_default),
    )
