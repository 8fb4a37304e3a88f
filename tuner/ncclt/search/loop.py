"""The search: the default first, then ask, measure, tell, until the budget ends or nothing more is to be gained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ncclt.core.assemble import assemble, collect_times, expected_us
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Outcome, Runner
from ncclt.core.workload import Workload
from ncclt.errors import StudyStoppedError, UsageError
from ncclt.search.launching import Journal, launch, measure_default, searched
from ncclt.search.proposer import Proposer

PATIENCE = 16
"""Launches without a gain worth having after which nothing more is expected."""

WORTHWHILE_GAIN = 0.005
"""Share of time per step that the policy must still win within the patience for the search to go on."""

EQUAL_FAILURES = 5
"""Failures of one kind in a row after which the cause is taken to be the cluster and not the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop at the latest.

    Attributes:
        trials: launches of the search in the whole study, earlier runs included.
        seconds: wall time of this run, None = no limit.
        patience: launches without a gain worth having, after every pair was tried, before the search stops by
            itself; 0 = never.
    """

    trials: int
    seconds: float | None = None
    patience: int = PATIENCE

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise UsageError(
                f"the budget must be at least 1 trial, not {self.trials}", hint="give --trials a number above 0"
            )
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"the time budget must be above 0 seconds, not {self.seconds:g}", hint="see --time")
        if self.patience < 0:
            raise UsageError(f"the patience must be 0 or more launches, not {self.patience}", hint="see --patience")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a watcher is told after every launch.

    Attributes:
        trial: the newest one.
        done, budget: launches of the search so far and at most.
        default_us: time per step of the default, µs.
        policy_us: expected time per step of the best policy so far, µs.
    """

    trial: Trial
    done: int
    budget: int
    default_us: float
    policy_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnd:
    """Why a search stopped.

    Attributes:
        reason: for people.
        interrupted: the user stopped it; there is more to measure.
    """

    reason: str
    interrupted: bool = False


def search(
    runner: Runner,
    workload: Workload,
    journal: Journal,
    proposer: Proposer,
    budget: Budget,
    *,
    clock: Callable[[], float],
    interrupted: Callable[[], bool],
    watch: Callable[[Progress], None],
) -> SearchEnd:
    """Search until the budget ends or nothing more is to be gained.

    Args:
        runner: where trials run.
        workload: placed on the runner's cluster.
        journal: where trials are kept; earlier ones of the study count.
        proposer: the Optuna study.
        budget: launches and seconds.
        clock: monotonic seconds.
        interrupted: asked before every launch; true = the user wants to stop after the current trial.
        watch: told after every launch.

    Raises:
        StudyStoppedError: the default fails, or `EQUAL_FAILURES` launches fail alike in a row.
    """
    started = clock()
    default = measure_default(runner, workload, journal)
    proposer.resume(default, searched(journal))
    best = _BestPolicy(runner, workload)
    while True:
        trials = searched(journal)
        history = best.history(trials)
        watch(
            Progress(
                trial=trials[-1],
                done=len(trials),
                budget=budget.trials,
                default_us=history[0],
                policy_us=history[-1],
            )
        )
        if len(trials) >= budget.trials:
            return SearchEnd(reason=f"the budget of {budget.trials} trials is used")
        if budget.seconds is not None and clock() - started >= budget.seconds:
            return SearchEnd(reason=f"the time budget of {budget.seconds:g} s is used")
        if interrupted():
            return SearchEnd(reason="interrupted by the user", interrupted=True)
        if reason := nothing_more(history, anchors=proposer.anchor_count, patience=budget.patience):
            return SearchEnd(reason=reason)
        setting = proposer.propose(len(journal.trials()), trials)
        if setting is None:
            return SearchEnd(reason=f"all {len({t.setting for t in trials})} settings were launched")
        trial = launch(runner, workload, journal, setting, phase=Phase.SEARCH)
        proposer.tell(trial)
        _check_failures(searched(journal))


def nothing_more(history: Sequence[float], *, anchors: int, patience: int) -> str:
    """Say why the search may stop before its budget, or return an empty string.

    Args:
        history: expected time per step of the best policy after each launch, µs; the first one is the default's.
        anchors: launches that try every pair once.
        patience: see `Budget`.
    """
    if patience == 0 or len(history) <= anchors + patience:
        return ""
    gain = 1 - history[-1] / history[-1 - patience]
    if gain >= WORTHWHILE_GAIN:
        return ""
    if history[-1] > history[0] * (1 - WORTHWHILE_GAIN):
        return f"NCCL's own choice is already best: nothing in {len(history)} launches beats it"
    return f"nothing more is to be gained: the last {patience} launches won {max(gain, 0) * 100:.1f} %"


class _BestPolicy:
    """Expected time per step of the best policy after each launch, computed once per launch."""

    def __init__(self, runner: Runner, workload: Workload) -> None:
        self._version = runner.cluster.version
        self._workload = workload
        self._history: list[float] = []

    def history(self, trials: Sequence[Trial]) -> list[float]:
        for seen in range(len(self._history) + 1, len(trials) + 1):
            times = collect_times(trials[:seen])
            policy = assemble(times, self._workload, version=self._version)
            self._history.append(expected_us(policy, times, self._workload, version=self._version))
        return self._history


def _check_failures(trials: Sequence[Trial]) -> None:
    last = trials[-EQUAL_FAILURES:]
    outcomes = {t.result.outcome for t in last}
    if len(last) == EQUAL_FAILURES and len(outcomes) == 1 and Outcome.OK not in outcomes:
        raise StudyStoppedError(
            f"{EQUAL_FAILURES} launches in a row ended with {last[-1].result.outcome}: {last[-1].result.detail}",
            hint="what was measured is kept; repair the cause and run the same command again to go on",
        )
