"""The trials of one study for its workers: in memory for reading, each stored before it counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from ncclt.core.setting import Setting
from ncclt.core.study import Claim, Phase, Study, Trial
from ncclt.errors import StoreError
from ncclt.store.leases import RENEW_S, this_worker
from ncclt.store.store import Store

_END = "end"
"""Stages reserved for one worker: confirm, prove and publish."""


class StudyTrialLog:
    """The trial log of `ncclt.measure.trial`, shared by the threads of this process and by other processes.

    Use it in a `with` block: inside, this process is registered as a worker of the study.

    Args:
        now: ISO time.
        renew_s: interval at which the worker renews its leases.
    """

    def __init__(self, store: Store, study: Study, now: Callable[[], str], *, renew_s: float = RENEW_S) -> None:
        self._store = store
        self._study = study
        self._now = now
        self._renew_s = renew_s
        self._worker = this_worker()
        self._trials: list[Trial] = []
        self._known: set[int] = set()
        self._running: tuple[Claim, ...] = ()
        self._lock = threading.RLock()
        self._left = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="ncclt-heartbeat", daemon=True)

    def __enter__(self) -> StudyTrialLog:
        """Join the workers of the study."""
        self._store.leases.enter(self._study.id, self._worker)
        self._heart.start()
        self.refresh()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Leave the workers; what this one had claimed is free for others."""
        self._left.set()
        self._heart.join()
        try:
            self._store.leases.leave(self._study.id, self._worker)
        except StoreError:
            # The error already reports that the store failed; others see that this process has ended.
            if error is None:
                raise

    def trials(self) -> Sequence[Trial]:
        """Return all known trials of the study, in the order in which they became known."""
        return self._trials

    def refresh(self) -> Sequence[Claim]:
        """Read the trials that other workers added, and return what all workers are launching now."""
        with self._lock:
            # Running ones first: a trial that ends in between is seen twice rather than not at all.
            self._running = tuple(claim for _, claim in self._store.leases.running(self._study.id))
            for trial in self._store.trials.find(self._study.id, without=self._known):
                self._remember(trial)
            self._running = tuple(claim for claim in self._running if claim.number not in self._known)
            return self._running

    def claim(self, setting: Setting, *, phase: Phase, most: int | None = None) -> Claim | None:
        """Reserve a number for a launch; None if others were faster to launch this setting or to use up the budget.

        Args:
            most: launches of the phase in the whole study, this one included; None = any number.
        """
        with self._lock:
            launches = Counter([*(t.setting for t in self._trials), *(c.setting for c in self._running)])
            return self._store.leases.claim(
                self._study.id, setting, phase=phase, repeat=launches[setting], worker=self._worker, most=most
            )

    def add(self, trial: Trial) -> Trial:
        """Store a claimed trial with the current time, unless it has one, and return it as stored."""
        with self._lock:
            dated = replace(trial, started=trial.started or self._now())
            added = self._store.trials.add(self._study.id, dated, worker=self._worker)
            self._remember(added)
            return added

    def is_alone(self) -> bool:
        """Check that no other process works on the study."""
        return self._store.leases.workers(self._study.id) == (self._worker,)

    def may_end(self) -> bool:
        """Claim the end of the study, its confirmation and proof; return whether it is ours."""
        return self._store.leases.acquire(self._study.id, _END, self._worker)

    def _remember(self, trial: Trial) -> None:
        self._known.add(trial.number)
        self._trials.append(trial)

    def _beat(self) -> None:
        while not self._left.wait(self._renew_s):
            try:
                self._store.leases.renew(self._study.id, self._worker)
            except StoreError:
                # The store may come back; if not, storing the next trial fails with the reason.
                continue
