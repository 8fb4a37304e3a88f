"""One launch at a time: claim a number, measure a setting, keep the trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol as Port

from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.score import score_us
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Claim, Phase, Trial
from ncclt.core.trial import Outcome, PolicyRunner, Runner, TrialResult
from ncclt.core.workload import Workload
from ncclt.errors import StudyStoppedError


class TrialLog(Port):
    """Store of trials; several workers may share it.

    Contract: what `add` returned survives the death of the process. A claim ends with the trial that is added for it,
    or with its worker. No two claims have the same number, and a setting is claimed again only by who knows of every
    earlier launch of it.
    """

    def trials(self) -> Sequence[Trial]:
        """Return all trials that are known, in the order in which they became known."""
        ...

    def refresh(self) -> Sequence[Claim]:
        """Look for trials of other workers, and return what all workers are launching now."""
        ...

    def claim(self, setting: Setting, *, phase: Phase, most: int | None = None) -> Claim | None:
        """Reserve a number for a launch, or return None when others were faster: with this setting, or to the budget.

        Args:
            most: launches of the phase in the whole study, this one included; None = any number.
        """
        ...

    def add(self, trial: Trial) -> Trial:
        """Keep the trial of a claim and return it as it was kept."""
        ...


def launch(
    runner: Runner,
    workload: Workload,
    trial_log: TrialLog,
    setting: Setting,
    *,
    phase: Phase,
    policy: Policy | None = None,
) -> Trial:
    """Measure all messages under one setting and store the trial, even if the setting was launched before.

    Args:
        workload: placed on the runner's cluster.
        policy: launched as a whole by a runner that applies it, `setting` being its process-wide parameters.
    """
    return launch_claim(runner, workload, trial_log, claim_launch(trial_log, setting, phase=phase), policy=policy)


def launch_claim(
    runner: Runner, workload: Workload, trial_log: TrialLog, claim: Claim, *, policy: Policy | None = None
) -> Trial:
    """Make the launch that was claimed and keep its trial; see `launch`."""
    return trial_log.add(measure_claim(runner, workload, trial_log, claim, policy=policy))


def claim_launch(trial_log: TrialLog, setting: Setting, *, phase: Phase) -> Claim:
    """Reserve a number for a launch, after other workers if need be."""
    while (claim := trial_log.claim(setting, phase=phase)) is None:
        trial_log.refresh()
    return claim


def measure_claim(
    runner: Runner,
    workload: Workload,
    trial_log: TrialLog,
    claim: Claim,
    *,
    messages: Sequence[Message] | None = None,
    policy: Policy | None = None,
) -> Trial:
    """Make the launch that was claimed and return its trial, which the caller keeps.

    Args:
        workload: placed on the runner's cluster.
        trial_log: has the default.
        messages: what to measure, None = all messages of the workload; others than these weigh nothing.
        policy: as for `launch`.
    """
    wanted = _most_weight_first(workload, messages, stored_default(trial_log))
    result = measure_once(runner, claim.setting, policy, wanted, repeat=claim.repeat)
    return Trial(
        number=claim.number,
        phase=claim.phase,
        setting=claim.setting,
        repeat=claim.repeat,
        result=result,
        score_us=score_us(result, workload) if result.outcome is Outcome.OK else None,
        policy=policy,
    )


def measure_once(
    runner: Runner, setting: Setting, policy: Policy | None, messages: Sequence[Message], *, repeat: int
) -> TrialResult:
    """Launch a setting, or a whole policy that the runner applies, and keep nothing."""
    if policy is None:
        return runner.measure(setting, messages, repeat=repeat)
    assert isinstance(runner, PolicyRunner), "only a runner that applies a policy is asked to launch it"
    return runner.measure_policy(policy, messages, repeat=repeat)


def _most_weight_first(workload: Workload, messages: Sequence[Message] | None, default: Trial | None) -> list[Message]:
    """Return the messages to measure, most weight first: those cut off when time runs out counts least.

    The weight is the time per step under the default; before that was launched, the bytes per step. Results are
    matched by message, and it is always the first stored default that counts, so a study has no more than two orders.
    """
    weight = {c.message: c.calls_per_step * c.message.size_bytes for c in workload.messages}
    if default is not None:
        times_us = {m.message: m.time_us for m in default.result.measurements}
        weight = {c.message: c.calls_per_step * times_us[c.message] for c in workload.messages}
    return sorted(weight if messages is None else messages, key=lambda message: (-weight.get(message, 0.0), message))


def measure_default(
    runner: Runner, workload: Workload, trial_log: TrialLog, *, padded: Sequence[Message] = ()
) -> Trial:
    """Launch the untouched default, or return its stored launch.

    Args:
        padded: measured too, and weigh nothing.

    Raises:
        StudyStoppedError: the default itself fails: there is nothing to tune against.
    """
    trial = stored_default(trial_log)
    if trial is None:
        claim = claim_launch(trial_log, DEFAULT, phase=Phase.SEARCH)
        messages = [*(calls.message for calls in workload.messages), *padded]
        trial = trial_log.add(measure_claim(runner, workload, trial_log, claim, messages=messages))
    if trial.score_us is None:
        raise StudyStoppedError(
            f"the NCCL default does not run here: {trial.result.outcome}: {trial.result.detail or 'no output'}",
            hint="repair the cluster or the benchmark first; ncclt tunes against a default that works",
        )
    return trial


def stored_default(trial_log: TrialLog) -> Trial | None:
    """Return the first launch of the untouched default that went well, None = there is none yet."""
    return next((t for t in list_search_trials(trial_log) if t.setting.is_default), None)


def list_search_trials(trial_log: TrialLog) -> list[Trial]:
    """Return the launches of the search; a default that failed and was launched again does not count."""
    return [
        t for t in trial_log.trials() if t.phase is Phase.SEARCH and not (t.setting.is_default and t.score_us is None)
    ]
