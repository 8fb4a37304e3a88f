"""The proof: default and policies launched in turn, A B B A, and judged by blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.evidence import Evidence, collect_evidence, last_verification
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Verdict
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome, Runner
from ncclt.core.verdict import judge
from ncclt.core.workload import Workload
from ncclt.search.launching import Journal, launch

DEFAULT_BLOCKS = 6
"""A B B A blocks of a proof; six of them tell a gain of 2 % from a noise of 2 %."""

_WEIGHTY_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One launch of the proof: a part of an arm in a block."""

    arm: Arm
    block: int
    setting: Setting
    messages: tuple[Message, ...]


def plan(policies: Mapping[Arm, Policy], workload: Workload, *, blocks: int) -> tuple[Step, ...]:
    """Return all launches of a proof in order: each block walks the arms forth and back.

    Args:
        policies: the arms; the first one is the default.
        workload: placed.
        blocks: A B B A blocks.
    """
    return tuple(_steps(policies, workload, blocks))


def _steps(policies: Mapping[Arm, Policy], workload: Workload, blocks: int) -> Iterator[Step]:
    messages = [calls.message for calls in workload.messages]
    forth = list(policies)
    for block in range(blocks):
        for half, order in enumerate((forth, forth[::-1])):
            for arm in order:
                for setting, part in policies[arm].by_setting(messages).items():
                    yield Step(arm=arm, block=2 * block + half, setting=setting, messages=tuple(part))


def prove(
    runner: Runner,
    workload: Workload,
    journal: Journal,
    steps: Sequence[Step],
    *,
    interrupted: Callable[[], bool],
    watch: Callable[[Trial, int, int], None],
) -> bool:
    """Launch the steps that the journal does not hold yet; return whether the proof is complete.

    A failed launch disqualifies its arm, which is not launched again; a default that fails ends the proof.

    Args:
        runner: where trials run.
        workload: placed.
        journal: where trials are kept; a verification that was cut off goes on where it stopped.
        steps: of `plan`.
        interrupted: asked before every launch.
        watch: told after every launch: the trial, steps done, steps in all.
    """
    held = last_verification(journal.trials())
    disqualified: set[Arm] = set()
    for number, step in enumerate(steps, start=1):
        if step.arm in disqualified:
            continue
        if held and _is_step(held[0], step):
            trial = held.pop(0)
        elif interrupted():
            return False
        else:
            trial = launch(
                runner,
                workload,
                journal,
                step.setting,
                phase=Phase.VERIFY,
                messages=step.messages,
                arm=step.arm,
                block=step.block,
            )
            watch(trial, number, len(steps))
        if trial.result.outcome is not Outcome.OK:
            disqualified.add(step.arm)
        if Arm.DEFAULT in disqualified:
            break
    return True


def _is_step(trial: Trial, step: Step) -> bool:
    return (trial.arm, trial.block, trial.setting) == (step.arm, step.block, step.setting)


def verdict_of(
    arm: Arm, policy: Policy, trials: Sequence[Trial], workload: Workload, *, seed: int, min_effect: float
) -> Verdict:
    """Judge one arm against the default by the last verification among the trials.

    Args:
        arm: which one.
        policy: what the arm forced.
        trials: all trials of the study.
        workload: placed.
        seed: of the bootstrap.
        min_effect: smallest gain worth a change, as a share.
    """
    evidence = collect_evidence(trials)
    default_us, policy_us = evidence.times_us(Arm.DEFAULT), evidence.times_us(arm)
    complete = min(len(default_us), len(policy_us)) // 2 * 2
    message, loss = _worst_message(arm, policy, evidence, workload)
    return judge(
        default_us[:complete],
        policy_us[:complete],
        seed=seed,
        failure=evidence.failure(arm) or evidence.failure(Arm.DEFAULT),
        worst_message=message,
        worst_loss=loss,
        min_effect=min_effect,
    )


def _worst_message(arm: Arm, policy: Policy, evidence: Evidence, workload: Workload) -> tuple[str, float]:
    """Return the message of weight that loses most under a policy and its loss as a share (0 = none loses)."""
    before, after = evidence.message_times_us(Arm.DEFAULT), evidence.message_times_us(arm)
    total = sum(calls.calls_per_step * before.get(calls.message, 0.0) for calls in workload.messages)
    worst = ("", 0.0)
    for calls in workload.messages:
        message = calls.message
        if message not in before or message not in after or policy.setting_for(message).is_default:
            continue
        weighty = calls.calls_per_step * before[message] >= _WEIGHTY_SHARE * total
        loss = after[message] / before[message] - 1
        if weighty and loss > worst[1]:
            worst = (message.label, loss)
    return worst
