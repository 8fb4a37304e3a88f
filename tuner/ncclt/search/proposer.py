"""The Optuna study behind a search: it proposes settings and receives the results of their launches."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from ncclt.core.cluster import Cluster
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.score import worth
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Claim, Trial
from ncclt.core.trial import Outcome
from ncclt.core.workload import Workload
from ncclt.errors import StoreError, StudyStoppedError
from ncclt.search.earlier import EarlierStudy
from ncclt.search.gaussian_process import one_blas_thread
from ncclt.search.named_sampler import NamedSampler
from ncclt.search.optuna_tables import Answer, open_study, patiently, unannounced
from ncclt.search.sampler import NUMBER, OUTCOME, SETTING, TIMES_US, PolicySampler, Proposal
from ncclt.search.space import SearchSpace

FAILURE_PENALTY = math.log(2)
"""Value of a crash, a hang or wrong data: as if it took twice the default's time. From FAIL samplers learn nothing."""

MOST_ASKS = 16
"""Consecutive answers with failed or running settings after which another sampler is abandoned."""

_LABEL, _REASON = "setting", "reason"
"""User attributes, shown by the dashboard."""


class Alone(Protocol):
    """Does something while no other worker of the study does; again, if the lock was lost meanwhile."""

    def __call__(self, work: Callable[[], Answer]) -> Answer:
        """Return what `work` returns."""
        ...


class Proposer:
    """Ask and tell with Optuna; our own trials are the truth, and its study is made to agree with them (adr/0003).

    A proposal depends only on the trials so far, the running launches and the seed, so an interrupted study resumes as
    if it had never stopped. In Optuna a launch is RUNNING once it is claimed, and COMPLETE, with `core.score.worth` as
    its value, once its trial is stored; FAIL if it was never measured.
    """

    def __init__(
        self,
        space: SearchSpace,
        workload: Workload,
        cluster: Cluster,
        *,
        name: str,
        seed: int,
        sampler: NamedSampler | None = None,
        storage_url: str | None = None,
        printed_costs: PrintedCosts | None = None,
        sources: Sequence[EarlierStudy] = (),
        alone: Alone | None = None,
    ) -> None:
        """Open or create the Optuna study of this name.

        Args:
            space: what may be proposed.
            workload: placed.
            cluster: sized.
            name: of the study.
            seed: of the sampler.
            sampler: chooses instead of `PolicySampler`.
            storage_url: where Optuna keeps its tables; None = in memory.
            printed_costs: NCCL's own tables, where a log held them; only `PolicySampler` has a use for them.
            sources: launches from elsewhere to begin from, the nearest first; likewise.
            alone: keeps other workers of the study out; None = there are none.

        Raises:
            StoreError: Optuna's storage cannot be opened.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._workload, self._seed = space, workload, seed
        self._alone: Alone = alone or _unlocked
        self._named = sampler
        self._policy = PolicySampler(space, workload, cluster, seed=seed, printed_costs=printed_costs, sources=sources)
        # Two Optunas that create their tables at once clash.
        self._storage, self._study = self._alone(lambda: open_study(storage_url, name, self._policy))
        self._default: Trial | None = None
        self._anchors = len(space.anchors())
        self._asked: optuna.trial.Trial | None = None
        self._launching: dict[int, optuna.trial.Trial] = {}
        self._seen: Sequence[optuna.trial.FrozenTrial] = self._running()

    @property
    def anchor_count(self) -> int:
        """Return how many launches try every pair of algorithm and protocol once."""
        return self._anchors

    @property
    def source_weights(self) -> tuple[float, ...]:
        """Return how much each source counted at the last proposal; empty before the first."""
        return self._policy.source_weights

    def __enter__(self) -> Proposer:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Tell Optuna what will not be measured, and close its database."""
        try:
            for asked in [self._asked, *self._launching.values()]:
                self._fail(asked)
        except StoreError:
            # The database is what failed, and says so itself; the next worker ends what this one left.
            if error is None:
                raise
        finally:
            if isinstance(self._storage, optuna.storages.RDBStorage):
                self._storage.remove_session()
                self._storage.engine.dispose()

    def resume(self, default: Trial, trials: Sequence[Trial], *, only_worker: bool = True) -> None:
        """Begin with the search trials that are stored; what Optuna lacks of them is added.

        Args:
            default: a launch of the default with outcome `ok`.
            trials: of the search.
            only_worker: no other process was searching this study when the proposer had been opened.
        """
        self._default = default
        if only_worker:
            for frozen in self._seen:
                if NUMBER not in frozen.user_attrs:  # asked for and never claimed
                    self._fail(frozen.number)
            self._settle(trials, ())
        self._alone(lambda: self._add_missing(trials))

    def _add_missing(self, trials: Sequence[Trial]) -> None:
        kept = patiently(lambda: self._study.get_trials(deepcopy=False))
        # Before the study was Optuna's own, its trials did not say which setting they were of.
        live = [frozen for frozen in kept if frozen.state is not TrialState.FAIL and SETTING in frozen.user_attrs]
        known = {frozen.user_attrs.get(NUMBER) for frozen in live}
        for trial in trials:
            if trial.number not in known:
                self._add(trial)

    @one_blas_thread()
    def propose(self, trials: Sequence[Trial], *, running: Sequence[Claim] = ()) -> Proposal | None:
        """Return what to launch next, or None if no launch could add information.

        A setting that was launched before is a repeat: it decides more than a new one would. `start` says that the
        proposal is launched; the next call gives up one that was not.

        Args:
            trials: all trials of the search so far.
            running: what is being launched; none of these settings is proposed.

        Raises:
            StudyStoppedError: a sampler that is not ours failed.
        """
        self._settle(trials, running)
        busy = {claim.setting for claim in running}
        launched = {trial.setting for trial in trials} | busy
        if self._named is None:
            return patiently(lambda: self._ask(self._policy))
        useless = busy | launched - {trial.setting for trial in trials if trial.score_us is not None}
        for attempt in range(MOST_ASKS):
            proposal = self._ask_named(self._named, f"{self._seed}:{len(trials) + len(running)}:{attempt}")
            if proposal.setting not in useless:
                return proposal
        return None

    def start(self, claim: Claim, proposal: Proposal) -> None:
        """Tell Optuna that the last proposal is being launched."""
        asked, self._asked = self._asked, None
        assert asked is not None
        self._launching[claim.number] = asked
        attributes = {
            NUMBER: claim.number,
            SETTING: claim.setting.to_document(),
            _LABEL: claim.setting.label,
            _REASON: proposal.reason,
        }
        patiently(lambda: _set(asked, attributes))

    def tell(self, claim: Claim, trial: Trial) -> None:
        """Tell Optuna what a launch gave."""
        asked = self._launching.pop(claim.number)
        if trial.number != claim.number:  # the store had taken this worker for dead, so others may have, too
            self._fail(asked)
            self._add(trial)
        elif patiently(lambda: self._finish(asked, trial)) is TrialState.FAIL:
            self._add(trial)

    def exhausted(self, trials: Sequence[Trial]) -> str:
        """Say why there was no proposal after these trials."""
        if self._named is not None:
            return f"{self._named.name} asked {MOST_ASKS} times in a row for what failed or is being launched"
        launched = len({t.setting for t in trials})
        if launched >= len({*self._space.distinct, DEFAULT}):
            return f"all {launched} settings were launched"
        return f"nothing more is to be gained: after {launched} settings no launch is expected to tell anything more"

    def _ask(self, sampler: optuna.samplers.BaseSampler) -> Proposal | None:
        self._fail(self._asked)
        self._study.sampler = sampler
        self._asked = asked = self._study.ask()
        chosen: dict[str, Any] | None = None
        if sampler is self._policy:
            chosen, self._seen = asked.relative_params, self._policy.running
            if not chosen:  # nothing is to be launched, or the default of a recorded space, which has no point
                return self._policy.proposal
        else:
            self._seen = self._running()
        point = self._suggested(asked)
        if point == chosen:
            return self._policy.proposal
        why = "enqueued by a user" if chosen else f"asked for by {type(sampler).__name__}"
        return Proposal(setting=self._space.setting(point), reason=why)

    def _ask_named(self, named: NamedSampler, what: str) -> Proposal:
        """Ask another sampler; it is made for each ask, so that workers of one seed do not all ask for the same."""
        seed = int.from_bytes(hashlib.sha256(what.encode()).digest()[:4], "big")
        try:
            with unannounced():
                proposal = patiently(lambda: self._ask(named.create(seed)))
        except StoreError:
            raise
        except Exception as error:
            raise StudyStoppedError(
                f"the sampler {named.name} failed: {type(error).__name__}: {error}",
                hint="what was measured is kept; leave out --sampler to search with ncclt's own, as another study",
            ) from error
        assert proposal is not None
        return proposal

    def _suggested(self, asked: optuna.trial.Trial) -> dict[str, Any]:
        """Return the point of a trial."""
        for name, kind in self._space.distributions.items():
            if isinstance(kind, CategoricalDistribution):
                asked.suggest_categorical(name, kind.choices)
            else:
                assert isinstance(kind, IntDistribution)
                asked.suggest_int(name, kind.low, kind.high)
        return asked.params

    def _running(self) -> list[optuna.trial.FrozenTrial]:
        return patiently(lambda: self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))

    def _settle(self, trials: Sequence[Trial], running: Sequence[Claim]) -> None:
        """End in Optuna what dead workers left running there: else its setting would never be proposed again.

        A claim ends with its trial or with its worker, so a launch that Optuna saw running before the claims were
        read, and that is neither claimed nor stored, is dead.
        """
        stored = {trial.number: trial for trial in trials}
        claimed = {claim.number for claim in running}
        for frozen in self._seen:
            if (number := frozen.user_attrs.get(NUMBER)) is None:
                continue
            mine, trial = self._launching.get(number), stored.get(number)
            if mine is not None and mine.number == frozen.number:
                continue
            if trial is not None and frozen.user_attrs.get(SETTING) == trial.setting.to_document():
                patiently(partial(self._finish, optuna.trial.Trial(self._study, frozen._trial_id), trial))
            elif trial is not None or mine is not None or number not in claimed:
                # Where another launch has its number, that of a dead worker's claim was given away again.
                self._fail(frozen.number)

    def _fail(self, asked: optuna.trial.Trial | int | None) -> None:
        if asked is not None:
            patiently(lambda: self._tell(asked, TrialState.FAIL))

    def _finish(self, asked: optuna.trial.Trial, trial: Trial) -> TrialState:
        """Tell what a trial gave, and return its state in Optuna: FAIL where it had been ended as dead."""
        value = self._value(trial)
        _set(asked, _result(trial, self._workload))
        return self._tell(asked, TrialState.FAIL if value is None else TrialState.COMPLETE, value)

    def _tell(self, asked: optuna.trial.Trial | int, state: TrialState, value: float | None = None) -> TrialState:
        """Tell how a trial ended, and return how it ended in Optuna: another worker may have been faster."""
        with suppress(UpdateFinishedTrialError):
            return self._study.tell(asked, value, state=state, skip_if_finished=True).state
        # It ended after `tell` had looked.
        return self._study.tell(asked, value, state=state, skip_if_finished=True).state

    def _add(self, trial: Trial) -> None:
        """Add a trial that Optuna did not ask for, or has lost."""
        value, point = self._value(trial), self._space.params(trial.setting)
        if value is None or (point is None and self._named is not None):
            return  # the default of a recorded space has no point for other samplers
        frozen = optuna.trial.create_trial(
            state=TrialState.COMPLETE,
            value=value,
            params=point or {},
            distributions=dict(self._space.distributions) if point else {},
            user_attrs={
                NUMBER: trial.number,
                SETTING: trial.setting.to_document(),
                _LABEL: trial.setting.label,
                **_result(trial, self._workload),
            },
        )
        patiently(lambda: self._study.add_trial(frozen))

    def _value(self, trial: Trial) -> float | None:
        """Return the value of a trial; None for a default that failed, which counts for nothing."""
        assert self._default is not None
        if trial.result.outcome is Outcome.OK:
            return worth(trial.result, self._default.result, self._workload)
        return None if trial.setting.is_default else FAILURE_PENALTY


def _result(trial: Trial, workload: Workload) -> dict[str, Any]:
    """Return the user attributes of a launch that has ended."""
    attributes: dict[str, Any] = {OUTCOME: trial.result.outcome.value}
    if trial.result.outcome is Outcome.OK:
        times = {m.message: m.time_us for m in trial.result.measurements}
        attributes[TIMES_US] = [times[calls.message] for calls in workload.messages]
    return attributes


def _set(asked: optuna.trial.Trial, attributes: dict[str, Any]) -> None:
    """Set user attributes, unless another worker ended the trial."""
    with suppress(UpdateFinishedTrialError):
        for name, value in attributes.items():
            asked.set_user_attr(name, value)


def _unlocked(work: Callable[[], Answer]) -> Answer:
    return work()
