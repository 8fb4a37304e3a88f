"""The proof: pairs of launches, default beside policies, each pair in random order, until each policy is decided."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from ncclt.core.budget import MAX_BLOCKS
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome, PolicyRunner, Runner
from ncclt.core.workload import Workload
from ncclt.measure.trial import TrialLog, claim_launch, measure_claim
from ncclt.prove.evidence import LAUNCHES_PER_BLOCK, LaunchEvidence, collect_evidence, last_proof
from ncclt.prove.probes import find_hang_probes, find_probes
from ncclt.prove.proof import build_pairs
from ncclt.prove.verdict import MIN_EFFECT, Pairs, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLaunch:
    """One launch of the proof: an arm in a pair, or a part of it.

    Attributes:
        arm: what it stands for.
        block: number of the pair, from 0; two pairs make a block.
        setting: forced; of a whole policy, its process-wide parameters.
        messages: to measure.
        policy: to launch as a whole; None = the setting is launched.
    """

    arm: Arm
    block: int
    setting: Setting
    messages: tuple[Message, ...]
    policy: Policy | None = None

    def matches(self, trial: Trial) -> bool:
        """Check that a stored trial is this launch."""
        is_same = (self.arm, self.block, self.setting, self.policy) == (
            trial.arm,
            trial.block,
            trial.setting,
            trial.policy,
        )
        return is_same and {m.message for m in trial.result.measurements} <= set(self.messages)


def can_apply(runner: Runner, policy: Policy) -> bool:
    """Check that one launch of the runner measures the policy as it is delivered."""
    return policy.is_default or (isinstance(runner, PolicyRunner) and runner.applies(policy))


_Side = TypeVar("_Side")


def launch_order(sides: Sequence[_Side], pair: int, *, seed: str) -> list[_Side]:
    """Return the sides of a pair in a random order, each order equally probable.

    No disturbance can fall into step with it, whatever its rhythm, and a drift helps each side as often. With three
    sides each changes its place too, so that none keeps the middle.
    """
    return random.Random(f"{seed}|{pair}").sample(list(sides), len(sides))


def plan_block(
    policies: Mapping[Arm, Policy],
    workload: Workload,
    block: int,
    *,
    whole: bool,
    seed: str = "",
    probes: Sequence[Message] = (),
    gates: Mapping[Arm, Sequence[Message]] = MappingProxyType({}),
) -> tuple[PlannedLaunch, ...]:
    """Return the launches of one block in order: two pairs, each with its arms in a random order (`launch_order`).

    Args:
        policies: the arms; the first one is the default.
        workload: placed.
        block: from 0.
        whole: each arm is one launch. Else each takes one per setting of the policies, the default too: a sum of
            launches has other noise than a single one, so both sides of a comparison are the same sum.
        seed: of the order.
        probes: measured too in the very first pair, by launches of whole policies.
        gates: calls that the first launch of an arm has to end as well, by arm.
    """
    messages = tuple(calls.message for calls in workload.messages)
    parts: dict[tuple[Setting, ...], list[Message]] = {}
    for message in messages:
        key = () if whole else tuple(policy.setting_for(message) for policy in policies.values())
        parts.setdefault(key, []).append(message)
    steps = []
    for pair in range(LAUNCHES_PER_BLOCK * block, LAUNCHES_PER_BLOCK * (block + 1)):
        for arm in launch_order(list(policies), pair, seed=seed):
            policy = policies[arm]
            also = (*(probes if whole else ()), *gates.get(arm, ())) if not pair else ()
            steps += [
                PlannedLaunch(
                    arm=arm,
                    block=pair,
                    setting=Setting(parameters=policy.parameters) if whole else policy.setting_for(part[0]),
                    messages=tuple(dict.fromkeys((*part, *also))),
                    policy=policy if whole and not policy.is_default else None,
                )
                for part in parts.values()
            ]
    return tuple(steps)


@dataclass(slots=True, kw_only=True)
class Proof:
    """One proof: default and policies launched in interleaved blocks until each policy is decided.

    After each block every policy is judged, and a decided one is not launched again: against the default, and where
    there is an arm of today, against that too. Today's arm is launched until it is decided whether the default is
    faster, and as long as a policy is compared with it. A failed launch disqualifies its arm; a failed default ends the
    proof.

    Attributes:
        runner: where trials run.
        workload: placed.
        trial_log: where trials are kept; an interrupted proof resumes where it stopped, and an undecided one resumes
            when there are more blocks.
        policies: the arms; the first one is the default. With only the default there is nothing to prove.
        runners: where trials of some arms run instead: each arm is measured as jobs run it.
        blocks: at most.
        min_effect: smallest gain that justifies a change, as a share.
        seed: of the order of launches; the same seed gives the same order.
        covers: whether a size that the workload lacks can be measured under a setting: how far rules hold
            (`ncclt.prove.probes`).
        interrupted: called before every launch; returns why to stop, empty = continue.
        watch: called after every launch with the trial, the whole blocks before it, and the pairs of these of the
            first arm that is undecided; None in the first block.
    """

    runner: Runner
    workload: Workload
    trial_log: TrialLog
    policies: Mapping[Arm, Policy]
    runners: Mapping[Arm, Runner] = field(default_factory=dict)
    blocks: int = MAX_BLOCKS
    min_effect: float = MIN_EFFECT
    seed: str = ""
    covers: Callable[[Message, Setting], bool] = lambda _message, _setting: False
    interrupted: Callable[[], str]
    watch: Callable[[Trial, int, Pairs | None], None]

    def run(self, *, anew: bool = False) -> bool:
        """Launch what is not in the trial log yet; return whether the proof is complete.

        Args:
            anew: start a new proof, whatever is in the trial log.
        """
        held = [] if anew else last_proof(self.trial_log.trials())
        is_complete = self._run(held, held[0].proof) if held else None
        if is_complete is None:
            is_complete = self._run([], 1 + max((trial.proof for trial in self.trial_log.trials()), default=0))
        return bool(is_complete)

    def _run(self, held: list[Trial], number: int) -> bool | None:
        """Continue after the stored trials; None if they compared other policies, or with another minimum effect."""
        policies, workload = self.policies, self.workload
        runners = dict.fromkeys(Arm, self.runner) | dict(self.runners)
        probes = find_probes(policies.get(Arm.TABLE, Policy()), workload, covers=self.covers)
        gates = {
            arm: [
                probe
                for probe in find_hang_probes(policy, workload, self.runner.cluster)
                if self.covers(probe, Setting(parameters=policy.parameters))
            ]
            for arm, policy in policies.items()
        }
        is_whole = all(can_apply(runners[arm], policy) for arm, policy in policies.items())
        # Only launches up to the current block are judged: a resumed proof decides as it did when it was launched.
        judged: list[Trial] = []
        left: dict[Arm, Policy] = {arm: policy for arm, policy in policies.items() if arm is not Arm.DEFAULT}
        pairs: Pairs | None = None
        for block in range(self.blocks):
            if not left:
                break
            arms = {Arm.DEFAULT: policies[Arm.DEFAULT], **left}
            steps = list(plan_block(arms, workload, block, whole=is_whole, seed=self.seed, probes=probes, gates=gates))
            while steps:
                # Trials of an earlier run are taken in the order in which they were launched, whatever that was then.
                step = next((s for s in steps if s.matches(held[0])), None) if held else steps[0]
                if step is None:
                    return None
                steps.remove(step)
                if held:
                    trial = held.pop(0)
                elif self.interrupted():
                    return False
                else:
                    runner = runners[step.arm]
                    claim = claim_launch(self.trial_log, step.setting, phase=Phase.PROVE)
                    trial = measure_claim(
                        runner, workload, self.trial_log, claim, messages=step.messages, policy=step.policy
                    )
                    trial = self.trial_log.add(replace(trial, arm=step.arm, block=step.block, proof=number))
                    self.watch(trial, block, pairs)
                judged.append(trial)
                if trial.result.outcome is not Outcome.OK:
                    if step.arm is Arm.DEFAULT:
                        return True
                    del left[step.arm]
                    steps = [planned for planned in steps if planned.arm is not step.arm]
            evidence = collect_evidence(judged)
            undecided = {arm: self._find_undecided_pairs(arm, left, evidence) for arm in left}
            is_compared = any(undecided[arm] for arm in left if arm is not Arm.TODAY)
            left = {arm: left[arm] for arm in left if undecided[arm] or (arm is Arm.TODAY and is_compared)}
            pairs = next(filter(None, (undecided[arm] for arm in left)), None)
        return True

    def _find_undecided_pairs(self, arm: Arm, left: Mapping[Arm, Policy], evidence: LaunchEvidence) -> Pairs | None:
        """Return the pairs of an undecided arm; None = the arm is decided."""
        if arm is Arm.TODAY:
            sides = [(Arm.DEFAULT, Arm.TODAY, Policy())]
        else:
            baselines = (Arm.DEFAULT, Arm.TODAY) if Arm.TODAY in left else (Arm.DEFAULT,)
            sides = [(arm, baseline, left[arm]) for baseline in baselines]
        for side, baseline, policy in sides:
            pairs = build_pairs(side, policy, evidence.whole_blocks(side, baseline=baseline), self.workload)
            decision = decide(pairs, min_effect=self.min_effect)
            if decision is not Decision.TUNED:
                return pairs if decision is Decision.UNDECIDED else None
        return None
