"""The proof: default and policies launched in turn, A B B A and then B A A B, until each policy is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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

MAX_BLOCKS = 16
"""Blocks of a proof at most. A gain of 5 % under a noise of 2 % needs 4 to 10 of them, none at all about 12."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One launch of the proof: a part of an arm in a block."""

    arm: Arm
    block: int
    setting: Setting
    messages: tuple[Message, ...]


def block_steps(policies: Mapping[Arm, Policy], workload: Workload, block: int) -> tuple[Step, ...]:
    """Return the launches of one block in order: the arms forth and back, and in every second block back and forth.

    What a linear drift adds to one arm cancels within a block, what a bent one adds within two.

    Args:
        policies: the arms; the first one is the default.
        workload: placed.
        block: from 0.
    """
    return tuple(_steps(policies, workload, block))


def _steps(policies: Mapping[Arm, Policy], workload: Workload, block: int) -> Iterator[Step]:
    messages = [calls.message for calls in workload.messages]
    forth = list(policies)
    halves = (forth, forth[::-1]) if block % 2 == 0 else (forth[::-1], forth)
    for half, order in enumerate(halves):
        for arm in order:
            for setting, part in policies[arm].by_setting(messages).items():
                yield Step(arm=arm, block=2 * block + half, setting=setting, messages=tuple(part))


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
    """Launch what the trial log does not hold yet; return whether the proof is complete.

    After each block every policy is judged, and one that is decided is launched no more. A failed launch disqualifies
    its arm; a default that fails ends the proof.

    Args:
        runner: where trials run.
        workload: placed.
        trial_log: where trials are kept; a verification that was cut off goes on where it stopped, and one that ended
            undecided goes on when there are more blocks.
        policies: the arms; the first one is the default. With the default alone there is nothing to prove.
        by_variables: where trials of the arm of plain variables run, if `runner` forces settings in another way: each
            arm is proven as it is delivered. None = `runner` does it.
        blocks: at most.
        min_effect: smallest gain worth a change, as a share.
        anew: begin a proof of its own, whatever the trial log holds.
        interrupted: asked before every launch: why to stop; empty = go on.
        watch: told after every launch: the trial, launches done, and launches at most, if nothing is decided earlier.
    """
    held = [] if anew else last_verification(trial_log.trials())
    runners = dict.fromkeys(Arm, runner) | ({Arm.VARIABLES: by_variables} if by_variables is not None else {})
    try:
        return _prove(
            runners, workload, trial_log, policies, held,
            blocks=blocks, min_effect=min_effect, interrupted=interrupted, watch=watch,
        )  # fmt: skip
    except _OtherProofError:
        # What is held proved other policies, or by another minimum effect: it starts anew.
        return _prove(
            runners, workload, trial_log, policies, [],
            blocks=blocks, min_effect=min_effect, interrupted=interrupted, watch=watch,
        )  # fmt: skip


class _OtherProofError(Exception):
    """The launches that are held do not belong to this proof."""


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
    # Only launches up to the present block are judged: so a proof that goes on decides as it did when it was launched.
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
