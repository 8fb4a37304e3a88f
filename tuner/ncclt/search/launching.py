"""One launch at a time: measure a setting, keep the trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol as Port

from ncclt.core.message import Message
from ncclt.core.score import score_us
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome, Runner
from ncclt.core.workload import Workload
from ncclt.errors import StudyStoppedError


class Journal(Port):
    """Where trials are kept. Contract: what `add` returned survives the death of the process."""

    def trials(self) -> Sequence[Trial]:
        """Return all trials of the study, by number."""
        ...

    def add(self, trial: Trial) -> Trial:
        """Keep one trial, which has the next number, and return it as it was kept."""
        ...


def launch(
    runner: Runner,
    workload: Workload,
    journal: Journal,
    setting: Setting,
    *,
    phase: Phase,
    messages: Sequence[Message] | None = None,
    arm: Arm | None = None,
    block: int = 0,
) -> Trial:
    """Measure messages under one setting and keep the trial.

    Args:
        runner: where it runs.
        workload: placed on the runner's cluster.
        journal: where it is kept.
        setting: what is forced.
        phase: why.
        messages: what to measure, None = all messages of the workload.
        arm: in the verification, what it stands for.
        block: in the verification, the arm's launch.
    """
    repeat = sum(t.setting == setting for t in journal.trials())
    wanted = [calls.message for calls in workload.messages] if messages is None else list(messages)
    result = runner.measure(setting, wanted, repeat=repeat)
    score = score_us(result, workload) if result.outcome is Outcome.OK else None
    return journal.add(
        Trial(
            number=len(journal.trials()),
            phase=phase,
            setting=setting,
            repeat=repeat,
            result=result,
            score_us=score,
            arm=arm,
            block=block,
        )
    )


def measure_default(runner: Runner, workload: Workload, journal: Journal) -> Trial:
    """Launch the untouched default, or return its stored launch.

    Raises:
        StudyStoppedError: the default itself fails: there is nothing to tune against.
    """
    stored = next((t for t in searched(journal) if t.setting.is_default), None)
    trial = stored or launch(runner, workload, journal, DEFAULT, phase=Phase.SEARCH)
    if trial.score_us is None:
        raise StudyStoppedError(
            f"NCCL's own choice does not run here: {trial.result.outcome}: {trial.result.detail or 'no output'}",
            hint="repair the cluster or the benchmark first; ncclt tunes against a default that works",
        )
    return trial


def searched(journal: Journal) -> list[Trial]:
    """Return the launches of the search; a default that failed and was launched again does not count."""
    return [
        t for t in journal.trials() if t.phase is Phase.SEARCH and not (t.setting.is_default and t.score_us is None)
    ]
