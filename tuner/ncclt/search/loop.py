"""The search loop: the default first, then ask, measure, tell, until the budget or the expected gain ends it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ncclt.core.budget import Budget
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.plural import count_noun
from ncclt.core.study import Claim, Phase, Trial, gpu_seconds
from ncclt.core.trial import Outcome, Runner
from ncclt.core.workload import Workload
from ncclt.errors import StudyStoppedError
from ncclt.measure.trial import TrialLog, launch_claim, list_search_trials, measure_default, stored_default
from ncclt.search.assemble import MIN_GAIN, assemble, collect_times, expected_us
from ncclt.search.gaussian_process import posterior_mean
from ncclt.search.optuna_study import OptunaStudy
from ncclt.search.sampler import Proposal

MIN_LAUNCHES = 10
"""Launches before the model's expectation may end a search whose job's steps are unknown."""

EQUAL_FAILURES = 5
"""Failures of one kind in a row after which the cluster is suspected instead of the setting."""

_POLL_S = 0.2
"""Interval at which a worker checks on the worker that it waits for, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a search after a launch.

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
    """End of a search.

    Attributes:
        reason: as text.
        interrupted: stopped from outside; there is more to measure.
        converged: by itself, since no further launch promised a gain; false where a budget ended it.
        expected_gain: of the launch that was not made, as a share of the communication time; None = not estimated.
    """

    reason: str
    interrupted: bool = False
    converged: bool = False
    expected_gain: float | None = None


@dataclass(slots=True, kw_only=True)
class Search:
    """One search by one or more threads of this process; one of them at a time chooses the next launch.

    Other processes may search the same study: they share its trial log and its budget of trials.

    Attributes:
        workload: placed on the runners' cluster.
        trial_log: where trials are kept; earlier ones of the study count.
        optuna_study: proposes the settings.
        budget: when to stop at the latest: trials, seconds, GPU hours, patience, steps.
        clock: monotonic seconds.
        interrupted: asked before every launch: why to stop after the current trial; empty = go on.
        watch: called after every launch.
        padded: sizes that the first launch of the default measures too, for the gain of padding.
    """

    workload: Workload
    trial_log: TrialLog
    optuna_study: OptunaStudy
    budget: Budget
    clock: Callable[[], float]
    interrupted: Callable[[], str]
    watch: Callable[[Progress], None]
    padded: Sequence[Message] = ()
    _started_s: float = field(init=False)
    _cluster: Cluster = field(init=False)
    _default: Trial = field(init=False)
    _end: SearchEnd | None = None
    _error: BaseException | None = None
    _history: list[float] = field(default_factory=list)
    _show: bool = True
    _choosing: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self, runners: Sequence[Runner], *, kill: Callable[[], None] = lambda: None, only_worker: bool
    ) -> SearchEnd:
        """Search until the budget ends or the search converges.

        Args:
            runners: where trials run, at least one; each on nodes of its own, all at once.
            kill: ends what all runners are measuring; called when the user does not want to wait for several of them.
            only_worker: no other process was searching the study when the optuna_study had been opened.

        Raises:
            StudyStoppedError: the default fails, or `EQUAL_FAILURES` launches fail alike in a row.
        """
        self._started_s, self._cluster = self.clock(), runners[0].cluster
        # Where another worker is making the default's launch, wait for it.
        while any(c.setting.is_default for c in self.trial_log.refresh()) and stored_default(self.trial_log) is None:
            time.sleep(_POLL_S)
        self._default = measure_default(runners[0], self.workload, self.trial_log, padded=self.padded)
        self.optuna_study.resume(self._default, list_search_trials(self.trial_log), only_worker=only_worker)
        if len(runners) == 1:
            self._work(runners[0])
        else:
            self._run_at_once(runners, kill)
        if self._error is not None:
            raise self._error
        assert self._end is not None, "a worker only leaves when the search has ended"
        return self._end

    def _run_at_once(self, runners: Sequence[Runner], kill: Callable[[], None]) -> None:
        threads = [threading.Thread(target=self._work, args=(runner,), daemon=True) for runner in runners]
        for thread in threads:
            thread.start()
        try:
            # Python handles signals in the main thread only, between two of these short waits.
            while any(thread.is_alive() for thread in threads):
                time.sleep(_POLL_S)
        except BaseException:
            self._stop(SearchEnd(reason="killed by the user", interrupted=True))
            kill()
            for thread in threads:
                thread.join()
            raise

    def _stop(self, end: SearchEnd) -> None:
        """Let every worker stop after its trial; the first reason counts."""
        if self._end is None:
            self._end = end

    def _work(self, runner: Runner) -> None:
        """Launch what is proposed until the search has ended."""
        try:
            while (claim := self._next()) is not None:
                trial = launch_claim(runner, self.workload, self.trial_log, claim)
                with self._choosing:
                    self.optuna_study.tell(claim, trial)
                    self._show = True
                    check_failures(list_search_trials(self.trial_log))
        except BaseException as error:  # noqa: BLE001  a thread cannot raise; `run` raises it for all
            self._error = self._error or error
            self._stop(SearchEnd(reason="failed"))

    def _next(self) -> Claim | None:
        """Return the next launch, or None when the search has ended."""
        with self._choosing:
            while self._end is None:
                running = self.trial_log.refresh()
                trials = list_search_trials(self.trial_log)
                self._update_history(trials)
                if self._show:
                    self._show = False
                    self.watch(
                        Progress(
                            trial=trials[-1],
                            done=len(trials),
                            budget=self.budget.trials,
                            default_us=self._history[0],
                            policy_us=self._history[-1],
                        )
                    )
                if end := self._reason_to_stop(trials, running):
                    self._stop(end)
                    return None
                claim = self._claim(trials, running)
                if claim is not None:
                    return claim
        return None

    def _claim(self, trials: Sequence[Trial], running: Sequence[Claim]) -> Claim | None:
        """Ask for a proposal and claim it; None = another worker was faster, or nothing is left to launch."""
        proposal = self.optuna_study.propose(trials, running=running)
        if proposal is None:
            self._stop(SearchEnd(reason=self.optuna_study.explain_exhaustion(trials), converged=True))
            return None
        if reason := self._explain_low_gain(proposal, trials):
            converged = self.budget.steps is None
            self._stop(SearchEnd(reason=reason, converged=converged, expected_gain=proposal.expected_gain))
            return None
        claim = self.trial_log.claim(proposal.setting, phase=Phase.SEARCH, most=self.budget.trials)
        if claim is not None:
            self.optuna_study.start(claim, proposal)
        return claim

    def _reason_to_stop(self, trials: Sequence[Trial], running: Sequence[Claim]) -> SearchEnd | None:
        budget, startup = self.budget, self.optuna_study.startup_trials
        if len(trials) + len(running) >= budget.trials:
            return SearchEnd(reason=f"budget of {count_noun(budget.trials, 'trial')} used")
        if budget.seconds is not None and self.clock() - self._started_s >= budget.seconds:
            return SearchEnd(reason=f"time budget of {budget.seconds:g} s used")
        most_s = math.inf if budget.gpu_hours is None else budget.gpu_hours * 3600
        if gpu_seconds(self.trial_log.trials(), self._cluster) >= most_s:
            return SearchEnd(reason=f"budget of {budget.gpu_hours:g} GPU-hours used")
        if why := self.interrupted():
            return SearchEnd(reason=why, interrupted=True)
        if reason := explain_convergence(self._history, startup=startup, patience=budget.patience):
            return SearchEnd(reason=reason, converged=True)
        return None

    def _explain_low_gain(self, proposal: Proposal, trials: Sequence[Trial]) -> str:
        """Return the reason why the launch of a proposal is not worth its cost; empty where it is."""
        if self.budget.steps is None or self._default.score_us is None:
            threshold = MIN_GAIN if self.budget.patience else 0.0
        else:
            launch_s = sum(t.result.wall_s for t in trials) / len(trials)
            threshold = launch_s / (self._default.score_us / 1e6 * self.budget.steps)
        too_early = self.budget.steps is None and len(trials) < MIN_LAUNCHES
        if too_early or proposal.expected_gain >= threshold:
            return ""
        expected = f"expected improvement of the next trial is {proposal.expected_gain * 100:.2g} %"
        if self.budget.steps is None:
            return _describe_convergence(self._history, expected)
        return f"{expected}, less than the trial costs over {count_noun(self.budget.steps, 'step')}"

    def _update_history(self, trials: Sequence[Trial]) -> None:
        """Add the expected time per step of the best policy after each launch that is new.

        The policy is the one that would be confirmed: chosen by what the model believes, not by raw times.
        """
        cluster = self._cluster
        for count in range(len(self._history) + 1, len(trials) + 1):
            times = posterior_mean(collect_times(trials[:count]), self.workload, cluster)
            policy = assemble(times, self.workload, version=cluster.version)
            self._history.append(expected_us(policy, times, self.workload, version=cluster.version))


def explain_convergence(history: Sequence[float], *, startup: int, patience: int) -> str:
    """Return the reason why the search may stop before its budget; empty where it may not.

    Args:
        history: expected time per step of the best policy after each launch, µs; the first one is the default's.
        startup: launches before patience counts, see `OptunaStudy.startup_trials`.
        patience: see `Budget`.
    """
    if patience == 0 or len(history) <= startup + patience:
        return ""
    gain = 1 - history[-1] / history[-1 - patience]
    if gain >= MIN_GAIN:
        return ""
    return _describe_convergence(history, f"the last {count_noun(patience, 'trial')} gained {max(gain, 0) * 100:.1f} %")


def _describe_convergence(history: Sequence[float], cause: str) -> str:
    if history[-1] > history[0] * (1 - MIN_GAIN):
        cause = f"none of {count_noun(len(history), 'trial')} beats the NCCL default"
    return f"converged: {cause}"


def check_failures(trials: Sequence[Trial]) -> None:
    """Stop a study whose last launches failed alike.

    Raises:
        StudyStoppedError: with what they had in common and what to do.
    """
    last = trials[-EQUAL_FAILURES:]
    outcomes = {t.result.outcome for t in last}
    if len(last) == EQUAL_FAILURES and len(outcomes) == 1 and Outcome.OK not in outcomes:
        outcome = last[-1].result.outcome
        raise StudyStoppedError(
            f"{EQUAL_FAILURES} trials in a row ended with {outcome}: {last[-1].result.detail}",
            hint=f"{_DIAGNOSIS[outcome]}; completed trials are saved, run the same command to resume",
        )


_DIAGNOSIS = {
    Outcome.CRASHED: "see the lines above for the cause, and check the nodes with `ncclt doctor`",
    Outcome.TIMEOUT: "a hanging fabric or node is more likely than five bad settings: check with `ncclt preflight`",
    Outcome.WRONG_RESULT: "wrong data under different settings: suspect a GPU, a NIC or the NCCL build",
    Outcome.INVALID: "the benchmark gives no result: run its command by hand (see --dry-run)",
    Outcome.SUBSTITUTED: "NCCL used another setting: see whether it loads the plugin (`ncclt admin plugin check`)",
}
