"""The Optuna study behind a search: it proposes settings and is told what they gave."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import optuna
from optuna.trial import TrialState
from threadpoolctl import ThreadpoolController

from ncclt.core.cluster import Cluster
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.score import worth
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Trial
from ncclt.core.trial import Outcome
from ncclt.core.workload import Workload
from ncclt.errors import StoreError
from ncclt.search.sampler import SETTING, TIMES_US, WRONG, PolicySampler
from ncclt.search.space import SearchSpace
from ncclt.search.warm_start import WarmSetting

FAILURE_PENALTY = math.log(2)
"""A crash, a hang or wrong data is told as twice the worst time seen: samplers learn nothing from Optuna's FAIL."""

_NUMBER = "ncclt_trial"

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""As long as the store waits for its own tables (ncclt.store.failures), which lie in the same database."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to launch next, and why.

    Attributes:
        setting: to launch.
        expected_gain: share of the default's time per step that the launch is expected to bring to the policy;
            infinite where nothing can be expected yet.
        reason: for people.
        warm: it comes from another study and is not to be trusted before it is measured.
    """

    setting: Setting
    expected_gain: float = math.inf
    reason: str = ""
    warm: bool = False


class Proposer:
    """Ask-and-tell with Optuna; our own trials are the truth and Optuna's kept study a view of them.

    What is proposed depends on the trials so far, what is running, and the seed alone, so an interrupted study goes on
    as if it had never stopped. The kept study has `core.score.worth` as its value.
    """

    def __init__(
        self,
        space: SearchSpace,
        workload: Workload,
        cluster: Cluster,
        *,
        name: str,
        seed: int,
        storage_url: str | None = None,
        prior_trials: Sequence[WarmSetting] = (),
        printed_costs: PrintedCosts | None = None,
    ) -> None:
        """Open or create the Optuna study of this name.

        Args:
            space: what may be proposed.
            workload: placed.
            cluster: sized.
            name: of the study.
            seed: of the sampler.
            storage_url: where Optuna keeps its tables; None = in memory.
            prior_trials: what was good in other studies, to be tried early.
            printed_costs: NCCL's own tables, where a log held them.

        Raises:
            StoreError: Optuna's storage cannot be opened.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._workload = workload
        self._storage = _open_storage(storage_url) if storage_url else optuna.storages.InMemoryStorage()
        self._study = _kept(lambda: optuna.create_study(storage=self._storage, study_name=name, load_if_exists=True))
        with _unannounced():
            _kept(lambda: self._study.set_metric_names(["worth to a policy, below 0 = gain"]))
        self._blas = ThreadpoolController()
        self._default: Trial | None = None
        self._sampler = PolicySampler(space, workload, cluster, seed=seed, printed_costs=printed_costs)
        self._warm = [warm for warm in prior_trials if space.params(warm.setting) is not None]
        self._anchors = len(space.anchors())

    @property
    def anchor_count(self) -> int:
        """Return how many launches try every pair of algorithm and protocol once."""
        return self._anchors

    @property
    def settings(self) -> int:
        """Return how many settings there are, the default included."""
        return len({*self._space.distinct, DEFAULT})

    def __enter__(self) -> Proposer:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Let go of Optuna's database."""
        if isinstance(self._storage, optuna.storages.RDBStorage):
            self._storage.remove_session()
            self._storage.engine.dispose()

    def resume(self, default: Trial, trials: Sequence[Trial], *, mirror: bool = True) -> None:
        """Begin with the search trials that are stored.

        Args:
            default: a launch of the default with outcome `ok`.
            trials: of the search.
            mirror: tell Optuna those that it has not heard of, as after a death between our commit and Optuna's; not
                while other workers do so.
        """
        self._default = default
        if not mirror:
            return
        kept = _kept(lambda: self._study.get_trials(deepcopy=False))
        known = {frozen.user_attrs.get(_NUMBER) for frozen in kept}
        for trial in trials:
            if trial.number not in known:
                self.tell(trial)

    def propose(
        self, number: int, trials: Sequence[Trial], *, running: Collection[Setting] = ()  # noqa: ARG002
    ) -> Proposal | None:  # fmt: skip
        """Return the setting to launch as trial `number`, or None when no launch could tell anything more.

        A setting that was launched before is a repeat: it decides more than a new one would.

        Args:
            number: of the trial to come; what is proposed does not depend on it.
            trials: all trials of the search so far.
            running: settings that other workers are launching; none of them is proposed.
        """
        # Several BLAS threads gain nothing on matrices of this size and stand in each other's way on a busy node; one
        # also adds up in the same order on every machine, so that a seed gives the same study everywhere.
        with self._blas.limit(limits=1, user_api="blas"):
            return self._propose(trials, running)

    def _propose(self, trials: Sequence[Trial], running: Collection[Setting]) -> Proposal | None:
        launched = {trial.setting for trial in trials} | set(running)
        warm = next((w for w in self._warm if w.setting not in launched), None)
        if warm is not None:
            return Proposal(setting=warm.setting, reason=f"was good in study {warm.study}", warm=True)
        scratch = optuna.create_study(sampler=self._sampler)
        scratch.add_trials(
            [_launched(trial, self._workload) for trial in sorted(trials, key=lambda t: t.number)]
            + [_running(setting) for setting in sorted(running, key=lambda s: s.digest())]
        )
        scratch.ask(dict(self._space.distributions))
        decision = self._sampler.decision
        if decision is None:
            return None
        return Proposal(setting=decision.setting, expected_gain=decision.expected_gain, reason=decision.reason)

    def tell(self, trial: Trial) -> None:
        """Tell Optuna what a launch gave."""
        if self._space.params(trial.setting) is not None:
            # One transaction, and nothing that is left behind as running when the process dies in between.
            frozen = self._frozen(trial.number, trial.setting, TrialState.COMPLETE, self._value(trial))
            _kept(lambda: self._study.add_trial(frozen))

    def _value(self, trial: Trial) -> float:
        assert self._default is not None
        if trial.result.outcome is not Outcome.OK:
            return FAILURE_PENALTY
        return worth(trial.result, self._default.result, self._workload)

    def _frozen(
        self, number: int, setting: Setting, state: TrialState, value: float | None = None
    ) -> optuna.trial.FrozenTrial:
        return optuna.trial.create_trial(
            state=state,
            value=value,
            params=self._space.params(setting),
            distributions=dict(self._space.distributions),
            user_attrs={_NUMBER: number, "setting": setting.label},
        )


def _launched(trial: Trial, workload: Workload) -> optuna.trial.FrozenTrial:
    """Return a trial as the sampler reads it."""
    attributes: dict[str, Any] = {SETTING: trial.setting.to_document()}
    if trial.result.outcome is Outcome.WRONG_RESULT:
        attributes[WRONG] = True
    if trial.result.outcome is Outcome.OK:
        times = {m.message: m.time_us for m in trial.result.measurements}
        attributes[TIMES_US] = [times[calls.message] for calls in workload.messages]
    return optuna.trial.create_trial(state=TrialState.COMPLETE, value=0.0, user_attrs=attributes)


def _running(setting: Setting) -> optuna.trial.FrozenTrial:
    return optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs={SETTING: setting.to_document()})


@contextmanager
def _unannounced() -> Iterator[None]:
    """Keep back Optuna's warnings that a part of it is new: nothing that a user of ours can act upon."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _kept(call: Callable[[], Answer]) -> Answer:
    """Do something with Optuna's database, and again when it was away: a trial that it has twice harms nobody.

    Raises:
        StoreError: it stays away.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            return call()
        except optuna.exceptions.StorageInternalError as error:
            if pause_s is None:
                raise StoreError(f"Optuna's tables cannot be used: {error}", hint="check --storage") from error
            time.sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


def _open_storage(url: str) -> optuna.storages.RDBStorage:
    try:
        # A connection that the server ended meanwhile is noticed before it is used.
        return optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
    except (optuna.exceptions.OptunaError, ImportError, OSError, RuntimeError) as error:
        raise StoreError(f"Optuna's tables cannot be opened: {error}", hint="check --storage") from error
