"""ncclt: find, prove and serve the NCCL configuration that moves one workload fastest on one cluster.

What a Python program uses is here; everything below this module may change from release to release:

- `read_workload`: trace files of a job -> `Workload`
- `tune`: `Workload` and `Cluster` -> `TuneResult`, with its `Verdict`
- `open_store`: the `Store` that keeps studies and recommendations
- `fetch_env`: the environment that a server recommends for a job, or `ClientError`

Whatever else ncclt raises on purpose is an `NccltError` with `message` and `hint`. Importing ncclt imports nothing
else: every name loads what it needs when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `import typing` is what `ncclt env` would wait for
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ncclt.client.fetch import ClientError, Fetched, fetch_env
    from ncclt.core.cluster import Cluster
    from ncclt.core.recommendation import Verdict
    from ncclt.core.workload import Workload
    from ncclt.errors import NccltError
    from ncclt.pipeline import TuneResult
    from ncclt.profile import read_workload
    from ncclt.store import Store, open_store

__version__ = "0.1.0"

__all__ = [
    "ClientError",
    "Cluster",
    "Fetched",
    "NccltError",
    "Store",
    "TuneResult",
    "Verdict",
    "Workload",
    "__version__",
    "fetch_env",
    "open_store",
    "read_workload",
    "tune",
]

_LATER = {
    "ClientError": "ncclt.client.fetch",
    "Cluster": "ncclt.core.cluster",
    "Fetched": "ncclt.client.fetch",
    "NccltError": "ncclt.errors",
    "Store": "ncclt.store",
    "TuneResult": "ncclt.pipeline",
    "Verdict": "ncclt.core.recommendation",
    "Workload": "ncclt.core.workload",
    "fetch_env": "ncclt.client.fetch",
    "open_store": "ncclt.store",
    "read_workload": "ncclt.profile",
}


def tune(
    workload: Workload | str,
    *,
    storage: Store | str | None = None,
    force: bool = False,
    progress: bool = False,
    interrupted: Callable[[], str] = str,
    **options: Any,
) -> TuneResult:
    """Search the NCCL configuration that moves a workload's messages fastest on a cluster, and prove it.

    The same as `ncclt tune`, with the same defaults. Ctrl-C ends the running trial at once; completed trials are kept,
    and the same call resumes the study. A finished study returns its result again without a launch.

    Args:
        workload: from `read_workload`, or the name of a stored or shipped one.
        storage: an open store, which stays open, or its URL; None = the user's own store.
        force: tune although `ncclt doctor` finds errors on this machine.
        progress: show on stderr what `ncclt tune` shows.
        interrupted: asked between launches; a reason ends the run and saves, an empty text goes on.
        **options: those of `ncclt tune`, with its defaults. Where and how trials run: `cluster`, `nodes`, `launcher`,
            `hosts=("node1", "node2")`, `landscape=Path("recorded.csv")` and the others, by the same names. What is
            searched and proven: `trials` at most, earlier runs included; `seconds` of the search in this run;
            `gpu_hours` of the whole study; `steps` of the training, over which a launch must be expected to pay for
            itself; `patience`, launches without a gain after which the search stops; `blocks` of the proof at most, at
            least four launches each; `min_effect`, the smallest gain worth a change, as a share; `process_wide`, NCCL
            parameters as a tuple; `seed`; `sampler`, MODULE:CLASS of Optuna or OptunaHub; `study`, its name; `more`,
            launches to add to a finished study; `warm`, whether to try early what was best in the nearest stored
            studies.

    Returns:
        The study, its trials, and a recommendation with a verdict; without the last two where the run was interrupted.

    Raises:
        UsageError: the arguments do not fit together, the cluster or the stored study.
        NotFoundError: no workload or cluster has that name.
        StoreError: the store cannot be reached.
        StudyStoppedError: the default fails, or too many launches fail alike.
        MissingDependencyError: ncclt was installed without its `tune` extra.
    """
    from ncclt.measure.testbed import require_tune_extra

    require_tune_extra()
    import os
    import time
    from contextlib import nullcontext
    from dataclasses import fields

    from ncclt import pipeline, store
    from ncclt.cli.submit import is_login_node
    from ncclt.cli.testbed import open_testbed
    from ncclt.cli.tune import Effort
    from ncclt.cli.tune_view import TuneView
    from ncclt.errors import UsageError
    from ncclt.health.doctor.service import examine_here
    from ncclt.measure.target import Target
    from ncclt.store.store import utc_now

    effort = Effort(**{one.name: options.pop(one.name) for one in fields(Effort) if one.name in options})
    target = Target(**options).resolved(os.environ)
    if is_login_node(target):
        raise UsageError(
            "launcher='slurm' needs a Slurm allocation, and this process has none",
            hint="run it under salloc or sbatch, or let `ncclt tune --launcher slurm` submit the study",
        )
    # Whatever can be refused is refused here, before anything is created.
    effort.budget()
    with nullcontext(storage) if isinstance(storage, store.Store) else store.open_store(storage) as opened:
        request = effort.request(opened.workload(workload) if isinstance(workload, str) else workload)
        testbed = open_testbed(target, opened, request.workload, seed=effort.seed)
        if testbed.is_launched and not force:
            broken = examine_here(os.environ, cluster=testbed.runner.cluster).blocking
            if broken:
                raise UsageError(
                    "; ".join(f"{finding.id}: {finding.what}" for finding in broken),
                    hint="`ncclt doctor` says how to repair it; force=True tunes anyway",
                )
        with TuneView(testbed, hidden=not progress) as view:
            return pipeline.tune(
                request, testbed, opened, watcher=view, interrupted=interrupted, clock=time.monotonic, now=utc_now
            )


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
