"""`ncclt.tune`: `ncclt tune` for a Python program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from ncclt import store
from ncclt.core.budget import Budget
from ncclt.core.cluster import Cluster
from ncclt.core.workload import Workload
from ncclt.errors import UsageError, require_extra
from ncclt.health.doctor import Facts
from ncclt.health.doctor.examine import examine_here
from ncclt.measure.open_testbed import open_testbed
from ncclt.measure.target import Target
from ncclt.store import open_to_read
from ncclt.store.clock import utc_now

if TYPE_CHECKING:
    from ncclt.pipeline.tune import TuneResult
    from ncclt.store import Store


def tune(
    workload: Workload | str,
    target: Target | None = None,
    budget: Budget | None = None,
    *,
    storage: Store | str | None = None,
    force: bool = False,
    progress: bool = False,
    interrupted: Callable[[], str] = str,
) -> TuneResult:
    """Find the fastest NCCL settings for a workload on a cluster, and validate them.

    The same as `ncclt tune`, with the same defaults. Ctrl-C ends the running trial at once; completed trials are kept,
    and the same call resumes the study. A finished study returns its result again without a launch.

    Args:
        workload: from `read_workload`, or the name of a stored or shipped one.
        target: where and how trials run; None = the choice of `ncclt tune` without options.
        budget: limits of search and validation; None = the defaults of `ncclt tune`.
        storage: an open store, which stays open, or its URL; None = the user's own store.
        force: tune despite errors of `ncclt doctor` on this machine.
        progress: show the progress of `ncclt tune` on stderr.
        interrupted: called between launches; a reason ends the run and saves, an empty text continues it.

    Returns:
        The study, its trials, and a recommendation with a verdict; without the last two where the run was interrupted.

    Raises:
        UsageError: the arguments do not fit together, the cluster or the stored study.
        NotFoundError: no workload or cluster has that name.
        StoreError: the store cannot be reached.
        StudyStoppedError: the default fails, or too many launches fail alike.
        MissingDependencyError: ncclt was installed without its `tune` extra.
    """
    require_extra("tune")
    from ncclt.cli.options import storage_option
    from ncclt.cli.tune import TuneProgress
    from ncclt.pipeline.tune import TuneRequest
    from ncclt.pipeline.tune import tune as run
    from ncclt.store.shipped import is_demo

    demo = isinstance(workload, str) and is_demo(workload)
    target, budget = target or Target(), budget or Budget()
    target.require_known_names()
    own, url = (storage, None) if isinstance(storage, store.Store) else (None, storage)
    request = TuneRequest(workload=_find_workload(workload, own, url), budget=budget)
    target = _resolve_target(target, demo=demo)
    with nullcontext(own) if own else store.open_store(url) as opened:
        testbed = open_testbed(target, opened.clusters.get, request.workload, environ=os.environ, seed=budget.seed)
        if testbed.is_launched and not force:
            _require_healthy(testbed.runner.cluster)
        with TuneProgress(testbed, hidden=not progress, blocks=budget.blocks) as watcher:
            result = run(
                request, testbed, opened, watcher=watcher, interrupted=interrupted, clock=time.monotonic, now=utc_now
            )
        named = f"sqlite:///{opened.path}" if own and opened.path else url
        return replace(result, source=storage_option(named, opened.shown))


def _resolve_target(target: Target, *, demo: bool) -> Target:
    target = target.resolved(os.environ, demo=demo)
    if target.lacks_allocation(os.environ):
        raise UsageError(
            "launcher='slurm' needs a Slurm allocation, and this process has none",
            hint="run it under salloc or sbatch, or let `ncclt tune --launcher slurm` submit the study",
        )
    return target


def _find_workload(workload: Workload | str, opened: Store | None, url: str | None) -> Workload:
    """Return a workload, also by name; an unknown one fails before a missing launcher or GPU, and makes no store."""
    if not isinstance(workload, str):
        return workload

    with nullcontext(opened) if opened else open_to_read(url, would_be_made=True) as store:
        return store.workloads.get(workload)


def _require_healthy(cluster: Cluster) -> None:
    """Raise UsageError if `ncclt doctor` finds what would invalidate every measurement on this machine."""
    if blocking := examine_here(os.environ, Facts(cluster=cluster)).blocking:
        raise UsageError(
            "; ".join(f"{finding.id}: {finding.what}" for finding in blocking),
            hint="`ncclt doctor` shows the repair; force=True tunes anyway",
        )
