"""Optuna's own tables, beside those of the store: what a study shows there, and how it is opened and deleted.

A study has the trials of its search there. Those of confirmation and proof are in a second one, NAME (proof), since
their values are times and not worth to a policy, and since no sampler should learn from them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState

from ncclt.core.recommendation import Verdict
from ncclt.core.study import Arm, Phase, Study, Trial
from ncclt.errors import StoreError
from ncclt.search.space import SearchSpace
from ncclt.store.failures import LostTransactionError, translated

NUMBER, SETTING = "ncclt_trial", "ncclt_setting"
"""User attributes of a trial that say which of our trials it shows, and its setting as a document."""

LABEL, PHASE, REASON, OUTCOME, TIME_US = "setting", "phase", "reason", "outcome", "time_per_step_us"
"""User attributes of a trial for its reader."""

WORTH = "worth to a policy, below 0 = gain"
"""Objective of a search."""

_TIME = "communication time per step, us"
"""Objective of a proof."""

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""As long as the store waits for its own tables (ncclt.store.failures), which are in the same database."""

Answer = TypeVar("Answer")

_Storage = optuna.storages.RDBStorage | optuna.storages.InMemoryStorage


@contextmanager
def hide_experimental_warnings() -> Iterator[None]:
    """Keep back Optuna's warnings that a part of it is new: a user of ours can do nothing about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def with_retries(call: Callable[[], Answer]) -> Answer:
    """Do something with Optuna's database, and again when it was away.

    Raises:
        StoreError: it stays away.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            with translated("of Optuna's tables"):  # Optuna passes on a connection lost while it creates them
                return call()
        except (StorageInternalError, LostTransactionError) as error:
            if pause_s is None:
                raise StoreError(f"Optuna's tables cannot be used: {error}", hint="check --storage") from error
            time.sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


def study_attributes(study: Study) -> dict[str, str]:
    """Return the user attributes of an Optuna study: its workload, its cluster, and whether its times are real."""
    cluster = study.cluster
    return {
        "workload": study.workload.name,
        "cluster": f"{cluster.name}, {cluster.nodes}x{cluster.gpus_per_node} GPUs",
        "nccl_version": cluster.nccl_version,
        "times": study.label or "measured",
    }


def open_study(url: str | None, name: str, metric: str, attributes: Mapping[str, str]) -> tuple[_Storage, optuna.Study]:
    """Open a study, or create it; without a URL it is in memory.

    Raises:
        StoreError: Optuna's storage cannot be used.
    """
    storage: _Storage = _open_storage(url) if url else optuna.storages.InMemoryStorage()
    return storage, _load_study(storage, name, metric, attributes)


def _load_study(storage: _Storage, name: str, metric: str, attributes: Mapping[str, str]) -> optuna.Study:
    sampler = optuna.samplers.RandomSampler()  # never asked
    study = with_retries(
        lambda: optuna.create_study(storage=storage, study_name=name, load_if_exists=True, sampler=sampler)
    )
    with hide_experimental_warnings():
        with_retries(lambda: study.set_metric_names([metric]))
    for key, value in attributes.items():
        with_retries(partial(study.set_user_attr, key, value))
    return study


def close_storage(storage: _Storage) -> None:
    """Release the connections of a storage."""
    if isinstance(storage, optuna.storages.RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


def record_proof(url: str, study: Study, space: SearchSpace, trials: Sequence[Trial]) -> None:
    """Add the trials of confirmation and proof that the second study of a search lacks.

    Raises:
        StoreError: Optuna's storage cannot be used.
    """
    launched = [trial for trial in trials if trial.phase is not Phase.SEARCH]
    if not launched:
        return
    with _opened_storage(url) as storage:
        proof = _load_study(storage, _proof_name(study.name), _TIME, study_attributes(study))
        stored = with_retries(lambda: proof.get_trials(deepcopy=False))
        numbers = {shown.user_attrs.get(NUMBER) for shown in stored}
        for trial in launched:
            if trial.number not in numbers:
                with_retries(partial(proof.add_trial, _proof_trial(trial, space)))


def record_verdict(url: str, study: Study, verdict: Verdict) -> None:
    """Set the verdict as user attributes of both studies of a search.

    Raises:
        StoreError: Optuna's storage cannot be used.
    """
    attributes = study_attributes(study) | {"verdict": verdict.decision.value, "verdict_reason": verdict.reason}
    with _opened_storage(url) as storage:
        for name, metric in ((study.name, WORTH), (_proof_name(study.name), _TIME)):
            _load_study(storage, name, metric, attributes)


def _proof_trial(trial: Trial, space: SearchSpace) -> optuna.trial.FrozenTrial:
    params: dict[str, Any] = {}
    distributions: dict[str, BaseDistribution] = {}
    attributes = {NUMBER: trial.number, LABEL: trial.label, PHASE: trial.phase.value}
    if trial.arm is not None:
        params, distributions = {"arm": trial.arm.value}, {"arm": CategoricalDistribution([arm.value for arm in Arm])}
        attributes["block"] = trial.block
    elif trial.policy is None:
        params, distributions = dict(space.values(trial.setting)), dict(space.axes)
    return optuna.trial.create_trial(
        state=TrialState.FAIL if trial.score_us is None else TrialState.COMPLETE,
        value=trial.score_us,
        params=params,
        distributions=distributions,
        user_attrs=attributes | {OUTCOME: trial.result.outcome.value},
    )


def _proof_name(name: str) -> str:
    return f"{name} (proof)"


def forget_studies(url: str, names: Sequence[str]) -> None:
    """Delete studies from Optuna's tables: another one of the same name must not find their trials.

    Raises:
        StoreError: Optuna's storage cannot be used.
    """
    with _opened_storage(url) as storage:
        ids = {study.study_name: study._study_id for study in with_retries(storage.get_all_studies)}
        for name in (*names, *map(_proof_name, names)):
            if name in ids:
                with_retries(partial(storage.delete_study, ids[name]))


@contextmanager
def _opened_storage(url: str) -> Iterator[optuna.storages.RDBStorage]:
    storage = _open_storage(url)
    try:
        yield storage
    finally:
        close_storage(storage)


def _open_storage(url: str) -> optuna.storages.RDBStorage:
    try:
        # A connection that the server ended meanwhile is noticed before it is used.
        return with_retries(lambda: optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True}))
    except (optuna.exceptions.OptunaError, ImportError, OSError, RuntimeError) as error:
        raise StoreError(f"Optuna's tables cannot be opened: {error}", hint="check --storage") from error
