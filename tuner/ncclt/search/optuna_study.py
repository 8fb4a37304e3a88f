"""The Optuna study behind a search: it proposes settings by ncclt's own or another sampler, and keeps their results."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from ncclt.core.score import worth
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Claim, Phase, Study, Trial
from ncclt.core.trial import Outcome
from ncclt.errors import StoreError, StudyStoppedError
from ncclt.search import optuna_tables as tables
from ncclt.search.named_sampler import NamedSampler
from ncclt.search.sampler import PROPOSAL, TRIALS, ExhaustedError, GaussianProcessSampler, Proposal
from ncclt.search.space import SearchSpace

FAILURE_PENALTY = math.log(2)
"""Log ratio of a crash, a hang or wrong data: twice the default's time. Samplers ignore FAIL."""

MOST_ASKS = 16
"""Max consecutive proposals of failed or running settings by a sampler."""

ENQUEUED = "enqueued by a user"
"""Reason for a launch that a user enqueued in the Optuna study."""


_EMPTY: Mapping[str, Any] = {}
_NOTHING_DRAWN = _EMPTY, _EMPTY
"""Attributes of study and trial set by a sampler: Optuna's samplers keep state there."""

Lock = Callable[[Callable[[], None]], None]
"""Calls a function under the lock of the study; again, if the lock was lost meanwhile."""


class OptunaStudy:
    """Optuna study that proposes and displays launches; ncclt's stored trials are authoritative (adr/0003).

    A proposal depends only on the trials so far, the running launches and the seed, so an interrupted study resumes as
    if it had never stopped. In Optuna a launch is RUNNING once it is claimed, and COMPLETE, with `core.score.worth` as
    its value, once its trial is stored; FAIL if it was never measured. A proposal without a launch leaves no trace.

    Attributes:
        startup_trials: launches before patience counts: one per pair, and the random ones of another sampler.
    """

    def __init__(
        self,
        space: SearchSpace,
        study: Study,
        *,
        sampler: NamedSampler | None = None,
        storage_url: str | None = None,
        lock: Lock = lambda work: work(),
    ) -> None:
        """Open or create the Optuna study of a study.

        Args:
            study: study with name, seed, workload, cluster and NCCL's cost tables.
            sampler: replacement of `GaussianProcessSampler`.
            storage_url: database URL of Optuna's tables; None = in memory.
            lock: lock against other workers of the study; default: no lock.

        Raises:
            StoreError: Optuna's storage cannot be opened.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._workload, self._seed = space, study.workload, study.seed
        self._lock = lock
        own = GaussianProcessSampler(
            space, study.workload, study.cluster, seed=study.seed, printed_costs=study.printed_costs
        )
        self._is_own, self._sampler = sampler is None, sampler or NamedSampler(name="ncclt", create=lambda _seed: own)

        def open_tables() -> None:
            self._storage, self._study = tables.open_study(
                storage_url, study.name, tables.WORTH, tables.study_attributes(study)
            )

        lock(open_tables)  # two Optunas that create their tables at once clash
        self._default: Trial | None = None
        self.startup_trials = max(len(space.anchors()), self._sampler.startup_trials)
        self._enqueued: optuna.trial.FrozenTrial | None = None
        self._drawn = _NOTHING_DRAWN
        self._launching: dict[int, optuna.trial.FrozenTrial] = {}
        self._seen: Sequence[optuna.trial.FrozenTrial] = self._load((TrialState.RUNNING,))

    def __enter__(self) -> OptunaStudy:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Tell Optuna what will not be measured, and close its database."""
        try:
            for shown in self._launching.values():
                self._fail(shown)
        except StoreError:
            # The database is what failed, and says so itself; the next worker ends what this one left.
            if error is None:
                raise
        finally:
            tables.close_storage(self._storage)

    def resume(self, default: Trial, trials: Sequence[Trial], *, only_worker: bool = True) -> None:
        """Begin with the search trials that are stored; what Optuna lacks of them is added.

        Args:
            default: a launch of the default with outcome `ok`.
            only_worker: no other process was searching this study when the optuna_study had been opened.
        """
        self._default = default
        if only_worker:
            for frozen in self._seen:
                if tables.NUMBER not in frozen.user_attrs:  # enqueued, and its worker died as it began
                    self._fail(frozen)
            self._settle(trials, ())
        self._lock(lambda: self._add_missing(trials))

    def _add_missing(self, trials: Sequence[Trial]) -> None:
        stored = tables.with_retries(lambda: self._study.get_trials(deepcopy=False))
        live = [frozen for frozen in stored if frozen.state not in (TrialState.FAIL, TrialState.WAITING)]
        numbers = {frozen.user_attrs.get(tables.NUMBER) for frozen in live}
        for trial in trials:
            if trial.number not in numbers:
                self._add(trial)

    def propose(self, trials: Sequence[Trial], *, running: Sequence[Claim] = ()) -> Proposal | None:
        """Propose the next launch, or None if no launch would add information.

        Call `start` to launch the proposal; otherwise nothing of it is stored.

        Args:
            trials: all trials of the search so far.
            running: running launches; their settings are not proposed.

        Raises:
            StudyStoppedError: the sampler failed.
        """
        self._settle(trials, running)
        unfinished = self._load((TrialState.RUNNING, TrialState.WAITING))
        self._seen = [shown for shown in unfinished if shown.state is TrialState.RUNNING]
        own = (Setting.from_document(shown.user_attrs[tables.SETTING]) for shown in self._launching.values())
        busy = {*(claim.setting for claim in running), *own}
        self._drawn = _NOTHING_DRAWN
        if (setting := self._take_enqueued(unfinished, busy)) is not None:
            return Proposal(setting=setting, reason=ENQUEUED)
        return self._draw(trials, busy, f"{self._seed}:{len(trials) + len(running)}")

    def start(self, claim: Claim, proposal: Proposal) -> None:
        """Show in Optuna that the last proposal is being launched."""
        attributes = _identity(claim.number, claim.setting) | {tables.REASON: proposal.reason}
        enqueued, (of_study, of_trial) = self._enqueued, self._drawn
        trial_id = None if enqueued is None else enqueued._trial_id
        if trial_id is None or not tables.with_retries(partial(self._begin, trial_id, claim.setting, attributes)):
            trial_id = tables.with_retries(lambda: self._create(claim.setting, attributes, of_trial))
        for name, value in of_study.items():
            tables.with_retries(partial(self._storage.set_study_system_attr, self._study._study_id, name, value))
        self._launching[claim.number] = tables.with_retries(lambda: self._storage.get_trial(trial_id))

    def tell(self, claim: Claim, trial: Trial) -> None:
        """Tell Optuna the result of a launch."""
        shown = self._launching.pop(claim.number)
        if trial.number != claim.number:  # the store had taken this worker for dead, so others may have, too
            self._fail(shown)
            self._add(trial)
        elif tables.with_retries(lambda: self._finish(shown, trial)) is TrialState.FAIL:
            self._add(trial)

    def explain_exhaustion(self, trials: Sequence[Trial]) -> str:
        """Return the reason why there was no proposal after these trials."""
        if not self._is_own:
            return f"{self._sampler.name} proposed failed or running settings {MOST_ASKS} times in a row"
        launched = len({t.setting for t in trials})
        if launched >= len({*self._space.distinct, DEFAULT}):
            return f"all {launched} settings tried"
        return f"converged: no further trial is informative after {launched} settings"

    def _take_enqueued(
        self, unfinished: Sequence[optuna.trial.FrozenTrial], busy: Collection[Setting]
    ) -> Setting | None:
        """Return the setting that a user enqueued first, if it is not running; end those that mean no setting."""
        self._enqueued = None
        for waiting in unfinished:
            if waiting.state is not TrialState.WAITING:
                continue
            values = waiting.system_attrs.get("fixed_params", {})
            setting = self._space.setting_with(values)
            if setting is None:
                reason = {tables.REASON: f"no setting of the search space: {values}"}
                tables.with_retries(partial(self._end, waiting, reason, None))
            elif setting not in busy:
                self._enqueued = waiting
                return setting
        return None

    def _draw(self, trials: Sequence[Trial], busy: set[Setting], words: str) -> Proposal | None:
        """Ask the sampler in an in-memory study with the trials as points of `SearchSpace.distributions`.

        Each call builds a new study and seed, so that workers with one seed get different proposals.
        """
        ran = {trial.setting for trial in trials if trial.score_us is not None}
        useless = busy | ({trial.setting for trial in trials} - ran)
        storage, scratch, attributes = self._scratch(trials, busy)
        for attempt in range(MOST_ASKS):
            seed = int.from_bytes(hashlib.sha256(f"{words}:{attempt}".encode()).digest()[:4], "big")
            try:
                with tables.hide_experimental_warnings():
                    scratch.sampler = self._sampler.create(seed)
                    asked = scratch.ask(dict(self._space.distributions))
                    setting = self._space.setting(asked.params)
            except ExhaustedError:
                return None
            except Exception as error:
                raise StudyStoppedError(
                    f"the sampler {self._sampler.name} failed: {type(error).__name__}: {error}",
                    hint="completed trials are saved; without --sampler, ncclt's own sampler searches in another study",
                ) from error
            if setting not in useless:
                of_study = storage.get_study_system_attrs(scratch._study_id)
                of_trial = storage.get_trial(asked._trial_id).system_attrs
                self._drawn = (
                    {name: value for name, value in of_study.items() if attributes.get(name) != value},
                    of_trial,
                )
                by_default = {"reason": f"proposed by {self._sampler.name}"}
                return Proposal(setting=setting, **of_trial.get(PROPOSAL, by_default))
            scratch.tell(asked, state=TrialState.FAIL)
        return None

    def _scratch(
        self, trials: Sequence[Trial], busy: Collection[Setting]
    ) -> tuple[optuna.storages.InMemoryStorage, optuna.Study, dict[str, Any]]:
        """Return a study in memory, and what samplers have noted in the stored one."""
        storage = optuna.storages.InMemoryStorage()
        scratch = optuna.create_study(storage=storage)
        scratch.set_user_attr(TRIALS, trials)
        stored = tables.with_retries(lambda: self._study.get_trials(deepcopy=False))
        noted = {shown.user_attrs.get(tables.NUMBER): shown.system_attrs for shown in stored}
        attributes = tables.with_retries(lambda: self._storage.get_study_system_attrs(self._study._study_id))
        for name, value in attributes.items():
            storage.set_study_system_attr(scratch._study_id, name, value)
        for trial in trials:
            # The default of a recorded space has no point.
            if (value := self._value(trial)) is not None and (point := self._space.params(trial.setting)) is not None:
                scratch.add_trial(_build_trial(self._space.distributions, point, value, {}, noted.get(trial.number)))
        for setting in sorted(busy, key=lambda setting: setting.digest()):
            if (point := self._space.params(setting)) is not None:
                scratch.add_trial(_build_trial(self._space.distributions, point))
        return storage, scratch, attributes

    def _load(self, states: tuple[TrialState, ...]) -> list[optuna.trial.FrozenTrial]:
        return tables.with_retries(lambda: self._study.get_trials(deepcopy=False, states=states))

    def _create(self, setting: Setting, attributes: Mapping[str, Any], noted: Mapping[str, Any]) -> int:
        """Create a RUNNING trial and return its id."""
        running = _build_trial(self._space.axes, self._space.values(setting), None, attributes, noted)
        return self._storage.create_new_trial(self._study._study_id, template_trial=running)

    def _begin(self, trial_id: int, setting: Setting, attributes: Mapping[str, Any]) -> bool:
        """Set an enqueued trial to RUNNING; false if another worker has."""
        try:
            if not self._storage.set_trial_state_values(trial_id, TrialState.RUNNING):
                return False
        except UpdateFinishedTrialError:
            return False
        for name, value in self._space.values(setting).items():
            axis = self._space.axes[name]
            self._storage.set_trial_param(trial_id, name, axis.to_internal_repr(value), axis)
        for name, value in attributes.items():
            self._storage.set_trial_user_attr(trial_id, name, value)
        return True

    def _settle(self, trials: Sequence[Trial], running: Sequence[Claim]) -> None:
        """End in Optuna what dead workers left running there: else its setting would never be proposed again.

        A claim ends with its trial or with its worker, so a launch that Optuna saw running before the claims were
        read, and that is neither claimed nor stored, is dead.
        """
        stored = {trial.number: trial for trial in trials}
        claimed = {claim.number for claim in running}
        for frozen in self._seen:
            if (number := frozen.user_attrs.get(tables.NUMBER)) is None:
                continue
            launching, trial = self._launching.get(number), stored.get(number)
            if launching is not None and launching.number == frozen.number:
                continue
            is_same = trial is not None and frozen.user_attrs[tables.SETTING] == trial.setting.to_document()
            complete = self._load((TrialState.COMPLETE,)) if is_same else ()
            if (
                trial is not None
                and is_same
                and number not in {shown.user_attrs.get(tables.NUMBER) for shown in complete}
            ):
                tables.with_retries(partial(self._finish, frozen, trial))
            elif trial is not None or launching is not None or number not in claimed:
                # If another launch has its number, a dead worker's claim was given away again.
                self._fail(frozen)

    def _fail(self, shown: optuna.trial.FrozenTrial) -> None:
        tables.with_retries(lambda: self._end(shown, {}, None))

    def _finish(self, shown: optuna.trial.FrozenTrial, trial: Trial) -> TrialState:
        """Store the result of a trial, and return its state in Optuna: FAIL where it had been ended as dead."""
        return self._end(shown, _result(trial), self._value(trial))

    def _end(self, shown: optuna.trial.FrozenTrial, attributes: Mapping[str, Any], value: float | None) -> TrialState:
        """End a trial, as FAIL without a value, and return its state: another worker may have been faster."""
        state, values = (TrialState.FAIL, None) if value is None else (TrialState.COMPLETE, [value])
        with suppress(UpdateFinishedTrialError):
            for name, attribute in attributes.items():
                self._storage.set_trial_user_attr(shown._trial_id, name, attribute)
            self._storage.set_trial_state_values(shown._trial_id, state, values)
        return self._storage.get_trial(shown._trial_id).state

    def _add(self, trial: Trial) -> None:
        """Add a trial that Optuna has not, or has lost."""
        if (value := self._value(trial)) is not None:
            attributes = _identity(trial.number, trial.setting) | _result(trial)
            complete = _build_trial(self._space.axes, self._space.values(trial.setting), value, attributes)
            tables.with_retries(lambda: self._study.add_trial(complete))

    def _value(self, trial: Trial) -> float | None:
        """Return the value of a trial; None for a default that failed, which counts for nothing."""
        assert self._default is not None
        if trial.result.outcome is Outcome.OK:
            return worth(trial.result, self._default.result, self._workload)
        return None if trial.setting.is_default else FAILURE_PENALTY


def _build_trial(
    distributions: Mapping[str, BaseDistribution],
    params: Mapping[str, Any],
    value: float | None = None,
    user_attrs: Mapping[str, Any] = _EMPTY,
    system_attrs: Mapping[str, Any] | None = None,
) -> optuna.trial.FrozenTrial:
    """Return a COMPLETE trial, or without a value a RUNNING one."""
    return optuna.trial.create_trial(
        state=TrialState.RUNNING if value is None else TrialState.COMPLETE,
        value=value,
        params=dict(params),
        distributions=dict(distributions),
        user_attrs=dict(user_attrs),
        system_attrs=dict(system_attrs or {}),
    )


def _identity(number: int, setting: Setting) -> dict[str, Any]:
    return {
        tables.NUMBER: number,
        tables.SETTING: setting.to_document(),
        tables.LABEL: setting.label,
        tables.PHASE: Phase.SEARCH.value,
    }


def _result(trial: Trial) -> dict[str, Any]:
    """Return the user attributes of a launch that has ended."""
    time_us = {} if trial.score_us is None else {tables.TIME_US: trial.score_us}
    return {tables.OUTCOME: trial.result.outcome.value} | time_us
