"""Optuna's own tables, beside those of the store: opening them, bearing that they are away, forgetting studies."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import optuna
from optuna.exceptions import StorageInternalError
from optuna.samplers import BaseSampler

from ncclt.errors import StoreError

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""As long as the store waits for its own tables (ncclt.store.failures), which are in the same database."""

Answer = TypeVar("Answer")

_Storage = optuna.storages.RDBStorage | optuna.storages.InMemoryStorage


@contextmanager
def unannounced() -> Iterator[None]:
    """Keep back Optuna's warnings that a part of it is new: a user of ours can do nothing about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def patiently(call: Callable[[], Answer]) -> Answer:
    """Do something with Optuna's database, and again when it was away.

    Raises:
        StoreError: it stays away.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            return call()
        except StorageInternalError as error:
            if pause_s is None:
                raise StoreError(f"Optuna's tables cannot be used: {error}", hint="check --storage") from error
            time.sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


def open_study(url: str | None, name: str, sampler: BaseSampler) -> tuple[_Storage, optuna.Study]:
    """Open a study, or make it; without a URL it is in memory.

    Raises:
        StoreError: Optuna's storage cannot be used.
    """
    storage: _Storage = _open_storage(url) if url else optuna.storages.InMemoryStorage()
    study = patiently(
        lambda: optuna.create_study(storage=storage, study_name=name, load_if_exists=True, sampler=sampler)
    )
    with unannounced():
        patiently(lambda: study.set_metric_names(["worth to a policy, below 0 = gain"]))
    return storage, study


def forget_studies(url: str, names: Sequence[str]) -> None:
    """Remove studies from Optuna's tables: another one of the same name must not find their trials.

    Raises:
        StoreError: Optuna's storage cannot be used.
    """
    storage = _open_storage(url)
    try:
        known = {study.study_name: study._study_id for study in patiently(storage.get_all_studies)}
        for name in names:
            if name in known:
                patiently(partial(storage.delete_study, known[name]))
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _open_storage(url: str) -> optuna.storages.RDBStorage:
    try:
        # A connection that the server ended meanwhile is noticed before it is used.
        return optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
    except (optuna.exceptions.OptunaError, ImportError, OSError, RuntimeError) as error:
        raise StoreError(f"Optuna's tables cannot be opened: {error}", hint="check --storage") from error
