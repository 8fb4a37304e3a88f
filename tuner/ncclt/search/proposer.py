"""The Optuna study behind a search: it proposes settings and is told what they gave."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import optuna
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState

from ncclt.core.message import Message
from ncclt.core.score import log_ratios, worth
from ncclt.core.setting import Setting
from ncclt.core.study import Trial
from ncclt.core.trial import Outcome
from ncclt.core.workload import Workload
from ncclt.errors import StoreError
from ncclt.search.focus import focus_of
from ncclt.search.space import SearchSpace

FAILURE_PENALTY = math.log(2)
"""A crash, a hang or wrong data is told as twice the worst time seen: samplers learn nothing from Optuna's FAIL."""

_NUMBER = "ncclt_trial"


class Proposer:
    """Ask-and-tell with Optuna; our own trials are the truth and Optuna's study a view of them.

    A launch measures all messages, and the policy takes the best setting for each, so the sampler is asked about one
    message at a time, the messages taking turns by their share of the time (`focus_of`). It is made anew for every
    proposal, fed with what was measured, and seeded by (seed, trial number): what is proposed depends on nothing else,
    and an interrupted study goes on as if it had never stopped. The kept study has `core.score.worth` as its value.
    """

    def __init__(
        self, space: SearchSpace, workload: Workload, *, name: str, seed: int, storage_url: str | None = None
    ) -> None:
        """Open or create the Optuna study of this name.

        Args:
            space: what may be proposed.
            workload: placed.
            name: of the study.
            seed: of the sampler.
            storage_url: where Optuna keeps its tables; None = in memory.

        Raises:
            StoreError: Optuna's storage cannot be opened.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._workload = workload
        self._seed = seed
        self._storage = _open_storage(storage_url) if storage_url else optuna.storages.InMemoryStorage()
        self._study = optuna.create_study(storage=self._storage, study_name=name, load_if_exists=True)
        with _unannounced():
            self._study.set_metric_names(["worth to a policy, below 0 = gain"])
        self._default: Trial | None = None
        self._anchors = space.anchors()
        self._uses_gp = importlib.util.find_spec("torch") is not None

    @property
    def anchor_count(self) -> int:
        """Return how many launches try every pair of algorithm and protocol once."""
        return len(self._anchors)

    def __enter__(self) -> Proposer:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Let go of Optuna's database."""
        if isinstance(self._storage, optuna.storages.RDBStorage):
            self._storage.remove_session()
            self._storage.engine.dispose()

    def resume(self, default: Trial, trials: Sequence[Trial]) -> None:
        """Bring Optuna's view in line with the search trials that are stored.

        A launch that was cut off leaves a running trial behind: it is told if its measurements were stored, and
        failed if not.

        Args:
            default: a launch of the default with outcome `ok`.
            trials: of the search.
        """
        self._default = default
        stored = {trial.number: trial for trial in trials}
        known: set[int | None] = set()
        for frozen in self._study.get_trials(deepcopy=False):
            number = frozen.user_attrs.get(_NUMBER)
            if frozen.state.is_finished():
                known.add(number)
            elif number in stored:
                self._study.tell(frozen.number, self._value(stored[number]))
                known.add(number)
            else:
                self._study.tell(frozen.number, state=TrialState.FAIL)
        for number, trial in stored.items():
            if number not in known and self._space.params(trial.setting) is not None:
                frozen = self._frozen(number, trial.setting, TrialState.COMPLETE, self._value(trial))
                self._study.add_trial(frozen)

    def propose(self, number: int, trials: Sequence[Trial]) -> Setting | None:
        """Return the setting to launch as trial `number`, or None when every setting was launched.

        What is known is not proposed again here; the confirmation launches again what deserves it.

        Args:
            number: of the trial to come.
            trials: all trials of the search so far.
        """
        launched = {trial.setting for trial in trials}
        fresh = [s for s in self._space.distinct if s not in launched and not s.is_default]
        if not fresh:
            return None
        anchor = next((s for s in self._anchors if s not in launched), None)
        setting = anchor or self._sampled(number, trials)
        if setting in launched or setting.is_default:
            # Optuna does not recognise repeats (optuna#2021, #5440): the nearest setting that is new takes their place.
            params = self._space.params(setting)
            setting = self._space.nearest(params, fresh) if params else fresh[0]
        # One transaction instead of the eight of enqueue_trial and ask.
        self._study.add_trial(self._frozen(number, setting, TrialState.RUNNING))
        return setting

    def tell(self, trial: Trial) -> None:
        """Tell Optuna what the launch of the last proposal gave."""
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        mine = next(frozen for frozen in running if frozen.user_attrs.get(_NUMBER) == trial.number)
        self._study.tell(mine.number, self._value(trial))

    def _sampled(self, number: int, trials: Sequence[Trial]) -> Setting:
        """Ask a sampler that knows all trials what to try for the message whose turn it is."""
        assert self._default is not None
        message = focus_of(number, self._default.result, self._workload)
        scratch = optuna.create_study(sampler=self._sampler(number))
        values = self._message_values(message, trials)
        scratch.add_trials(
            self._frozen(t.number, t.setting, TrialState.COMPLETE, values[t.number])
            for t in trials
            if self._space.params(t.setting) is not None
        )
        return self._space.setting(scratch.ask(dict(self._space.distributions)).params)

    def _message_values(self, message: Message, trials: Sequence[Trial]) -> dict[int, float]:
        assert self._default is not None
        default = self._default.result
        good = {t.number: log_ratios(t.result, default)[message] for t in trials if t.result.outcome is Outcome.OK}
        failed = max(good.values()) + FAILURE_PENALTY
        return {t.number: good.get(t.number, failed) for t in trials}

    def _sampler(self, number: int) -> BaseSampler:
        digest = hashlib.sha256(f"{self._seed}:{number}".encode()).digest()
        seed = int.from_bytes(digest[:4]) >> 1
        if not self._uses_gp:
            return TPESampler(seed=seed, n_startup_trials=len(self._anchors))
        with _unannounced():
            return GPSampler(seed=seed, n_startup_trials=len(self._anchors))

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


@contextmanager
def _unannounced() -> Iterator[None]:
    """Keep back Optuna's warnings that a part of it is new: nothing that a user of ours can act upon."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _open_storage(url: str) -> optuna.storages.RDBStorage:
    try:
        return optuna.storages.RDBStorage(url)
    except (optuna.exceptions.OptunaError, ImportError, OSError, RuntimeError) as error:
        raise StoreError(f"Optuna's tables cannot be opened: {error}", hint="check --storage") from error
