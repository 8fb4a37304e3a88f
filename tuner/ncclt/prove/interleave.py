"""The proof: default and policies launched in turn, A B B A and then B A A B, until each policy is decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ncclt.core.effort import MAX_BLOCKS
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome, Runner
from ncclt.core.workload import Workload
from ncclt.measure.trial import TrialLog, launch
from ncclt.prove.evidence import collect_evidence, last_verification
from ncclt.prove.proof import pairs_of
from ncclt.prove.verdict import MIN_BLOCKS, MIN_EFFECT, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One launch of the proof: a part of an arm in a block."""

    arm: Arm
    block: int
    setting: Setting
    messages: tuple[Message, ...]


def block_steps(policies: Mapping[Arm, Policy], workload: Workload, block: int) -> tuple[Step, ...]:
    """Return the launches of one block in order: the arms forwards and backwards, every second block vice versa.

    A linear drift cancels within a block, a quadratic one within two.

    Args:
        policies: the arms; the first one is the default.
        workload: placed.
        block: from 0.
    """
    messages = [calls.message for calls in workload.messages]
    forwards = list(policies)
    halves = (forwards, forwards[::-1]) if block % 2 == 0 else (forwards[::-1], forwards)
    return tuple(
        Step(arm=arm, block=2 * block + half, setting=setting, messages=tuple(part))
        for half, order in enumerate(halves)
        for arm in order
        for setting, part in policies[arm].by_setting(messages).items()
    )


def prove(
    runner: Runner,
    workload: Workload,
    trial_log: TrialLog,
    policies: Mapping[Arm, Policy],
    *,
    by_variables: Runner | None = None,
    blocks: int = MAX_BLOCKS,
    min_effect: float = MIN_EFFECT,
    anew: bool = False,
    interrupted: Callable[[], str],
    watch: Callable[[Trial, int, int], None],
) -> bool:
    """Launch what is not in the trial log yet; return whether the proof is complete.

    After each block every policy is judged, and a decided one is not launched again. A failed launch disqualifies its
    arm; a failed default ends the proof.

    Args:
        runner: where trials run.
        workload: placed.
        trial_log: where trials are kept; an interrupted proof resumes where it stopped, and an undecided one resumes
            when there are more blocks.
        policies: the arms; the first one is the default. With only the default there is nothing to prove.
        by_variables: where trials of the arm of plain variables run, if `runner` forces settings in another way: each
            arm is proven as it is delivered. None = `runner` does it.
        blocks: at most.
        min_effect: smallest gain that justifies a change, as a share.
        anew: start a new proof, whatever is in the trial log.
        interrupted: called before every launch; returns why to stop, empty = continue.
        watch: called after every launch with the trial, launches done, and the most launches if nothing is decided
            earlier.
    """
    held = [] if anew else last_verification(trial_log.trials())
    runners = dict.fromkeys(Arm, runner) | ({Arm.VARIABLES: by_variables} if by_variables is not None else {})
    proof = partial(
        _prove, runners, workload, trial_log, policies,
        blocks=blocks, min_effect=min_effect, interrupted=interrupted, watch=watch,
    )  # fmt: skip
    try:
        return proof(held)
    except _OtherProofError:
        # The trials in the log proved other policies, or with another minimum effect: start again.
        return proof([])


class _OtherProofError(Exception):
    """The launches in the trial log do not belong to this proof."""


def _prove(
    runners: Mapping[Arm, Runner],
    workload: Workload,
    trial_log: TrialLog,
    policies: Mapping[Arm, Policy],
    held: list[Trial],
    *,
    blocks: int,
    min_effect: float,
    interrupted: Callable[[], str],
    watch: Callable[[Trial, int, int], None],
) -> bool:
    # Only launches up to the current block are judged, so that a resumed proof decides as it did when it was launched.
    seen: list[Trial] = []
    left: dict[Arm, Policy] = {arm: policy for arm, policy in policies.items() if arm is not Arm.DEFAULT}
    for block in range(blocks):
        if not left:
            break
        steps = block_steps({Arm.DEFAULT: policies[Arm.DEFAULT], **left}, workload, block)
        most = len(seen) + len(steps) * (blocks - block)
        for step in steps:
            if step.arm is not Arm.DEFAULT and step.arm not in left:
                continue
            if held:
                trial = held.pop(0)
                if not _is_step(trial, step):
                    raise _OtherProofError
            elif interrupted():
                return False
            else:
                trial = _launch(runners[step.arm], workload, trial_log, step)
                watch(trial, len(seen) + 1, most)
            seen.append(trial)
            if trial.result.outcome is not Outcome.OK:
                if step.arm is Arm.DEFAULT:
                    return True
                del left[step.arm]
        left = _undecided(left, seen, workload, min_effect=min_effect)
    return True


def _launch(runner: Runner, workload: Workload, trial_log: TrialLog, step: Step) -> Trial:
    return launch(
        runner, workload, trial_log, step.setting,
        phase=Phase.VERIFY, messages=step.messages, arm=step.arm, block=step.block,
    )  # fmt: skip


def _is_step(trial: Trial, step: Step) -> bool:
    return (trial.arm, trial.block, trial.setting) == (step.arm, step.block, step.setting)


def _undecided(
    arms: Mapping[Arm, Policy], trials: Sequence[Trial], workload: Workload, *, min_effect: float
) -> dict[Arm, Policy]:
    """Return the arms that need more blocks."""
    evidence = collect_evidence(trials)
    left = {}
    for arm, policy in arms.items():
        launches = evidence.whole_blocks(arm)
        few = len(launches) < 2 * MIN_BLOCKS
        if few or decide(pairs_of(policy, launches, workload), min_effect=min_effect) is Decision.UNDECIDED:
            left[arm] = policy
    return left
