"""One proof for several studies: a launch of the default and one of a table that holds the rules of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ncclt.core.effort import MAX_BLOCKS
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome, Runner
from ncclt.core.workload import Workload
from ncclt.measure.shared_log import Share, SharedTrialLog, union_of
from ncclt.measure.trial import TrialLog, launch
from ncclt.prove.evidence import collect_evidence, last_verification
from ncclt.prove.interleave import Step, block_steps
from ncclt.prove.proof import pairs_of
from ncclt.prove.verdict import MIN_EFFECT, Pairs, decide


@dataclass(slots=True, kw_only=True)
class Member:
    """A study in a proof that it shares.

    Attributes:
        trial_log: of the study, which keeps its part of every launch.
        workload: placed.
        policy: of the study: the rules of the table that its messages meet.
        probes: what the first pair measures beside the workload, to see how far the policy's rules hold.
        failed: a launch of the table failed, which may be due to the rules of another study.
    """

    trial_log: TrialLog
    workload: Workload
    policy: Policy
    probes: tuple[Message, ...] = ()
    failed: bool = False
    _held: list[Trial] = field(default_factory=list)
    _seen: list[Trial] = field(default_factory=list)

    def begin(self, *, anew: bool) -> None:
        """Begin with what the trial log holds of the proof, or with nothing."""
        self._held = [] if anew else last_verification(self.trial_log.trials())
        self._seen = []
        self.failed = False

    def takes(self, step: Step) -> bool:
        """Take the launch of a step from the trial log; False = it has yet to be made.

        Raises:
            OtherProofError: the trial log holds another proof.
        """
        if not self._held:
            return False
        trial = self._held.pop(0)
        policy = self.policy if step.policy is not None else None
        if (trial.arm, trial.block, trial.setting, trial.policy) != (step.arm, step.block, step.setting, policy):
            raise OtherProofError
        self._see(trial)
        return True

    def share(self) -> Share:
        """Return what the study keeps of a launch."""
        return Share(trial_log=self.trial_log, workload=self.workload, policy=self.policy, probes=self.probes)

    def see_last(self) -> None:
        """Count the launch that was just kept."""
        self._see(max(self.trial_log.trials(), key=lambda trial: trial.number))

    def _see(self, trial: Trial) -> None:
        self._seen.append(trial)
        self.failed = self.failed or (trial.arm is Arm.TABLE and trial.result.outcome is not Outcome.OK)

    @property
    def has_no_default(self) -> bool:
        """Return whether a launch of the default failed, which ends the proof."""
        return any(t.arm is Arm.DEFAULT and t.result.outcome is not Outcome.OK for t in self._seen)

    def pairs(self) -> Pairs:
        """Return the pairs of all whole blocks."""
        blocks = collect_evidence(self._seen).whole_blocks(Arm.TABLE)
        return pairs_of(Arm.TABLE, self.policy, blocks, self.workload)


class OtherProofError(Exception):
    """The launches in a trial log do not belong to this proof."""


def prove_together(
    runner: Runner,
    members: Sequence[Member],
    table: Policy,
    *,
    blocks: int = MAX_BLOCKS,
    min_effect: float = MIN_EFFECT,
    anew: bool = False,
    seed: str = "",
    interrupted: Callable[[], str],
    watch: Callable[[Trial, int, Pairs | None], None],
) -> bool:
    """Launch what the trial logs lack; return whether the proof is complete.

    After each block every study is judged by its own messages, and those of a decided one are not measured again. A
    launch of the table that fails ends the proof of all, for whose rules it failed is not known.

    Args:
        runner: applies whole policies.
        members: the studies.
        table: the rules of all of them; at each message of a study it says the same as the study's own policy.
        others: as `ncclt.prove.interleave.prove` takes them.
    """
    for fresh in (anew, True):
        for member in members:
            member.begin(anew=fresh)
        try:
            return _prove(
                runner, members, {Arm.DEFAULT: Policy(), Arm.TABLE: table},
                blocks=blocks, min_effect=min_effect, seed=seed, interrupted=interrupted, watch=watch,
            )  # fmt: skip
        except OtherProofError:
            continue
    raise AssertionError("nothing is taken from the trial logs the second time")


def _prove(
    runner: Runner,
    members: Sequence[Member],
    policies: Mapping[Arm, Policy],
    *,
    blocks: int,
    min_effect: float,
    seed: str,
    interrupted: Callable[[], str],
    watch: Callable[[Trial, int, Pairs | None], None],
) -> bool:
    left, pairs = list(members), None
    for block in range(blocks):
        probes = sorted({probe for member in left for probe in member.probes})
        steps = block_steps(policies, union_of([m.workload for m in left]), block, whole=True, seed=seed, probes=probes)
        for step in steps:
            lacking = [member for member in left if not member.takes(step)]
            if lacking:
                if interrupted():
                    return False
                watch(_launch(runner, lacking, step), block, pairs)
            left = [member for member in left if not (member.failed or member.has_no_default)]
            if not left:
                return True
        judged = [(member, member.pairs()) for member in left]
        judged = [(m, own) for m, own in judged if decide(own, min_effect=min_effect) is Decision.UNDECIDED]
        if not judged:
            return True
        left, pairs = [member for member, _ in judged], judged[0][1]
    return True


def _launch(runner: Runner, lacking: Sequence[Member], step: Step) -> Trial:
    shared = SharedTrialLog([member.share() for member in lacking])
    theirs = {calls.message for calls in shared.workload.messages}.union(*(member.probes for member in lacking))
    trial = launch(
        runner, shared.workload, shared, step.setting,
        phase=Phase.VERIFY, messages=[message for message in step.messages if message in theirs],
        arm=step.arm, block=step.block, policy=step.policy,
    )  # fmt: skip
    for member in lacking:
        member.see_last()
    return trial
