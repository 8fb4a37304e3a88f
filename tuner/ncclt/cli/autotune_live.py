"""`ncclt autotune --live`: the job runs once, in the foreground, and is tuned while it trains."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ncclt.cli.render import print_headline, print_json, say
from ncclt.cli.verify import print_verification
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import Decision
from ncclt.deliver.job_info import read_shape
from ncclt.errors import NccltError, UsageError, reason
from ncclt.launch.mpi import is_open_mpi
from ncclt.measure.target import Target
from ncclt.nccl.tuner_plugin import find as find_plugin
from ncclt.nccl.tuner_plugin.compact_table import TABLE_VARIABLE
from ncclt.pipeline.autotune import build_job_name, choose_job_cluster
from ncclt.pipeline.candidates import select_candidates
from ncclt.pipeline.live import (
    EXPERIMENTAL,
    LiveRequest,
    LiveResult,
    TunedJob,
    build_arms,
    build_verification,
    explain_obstacle,
    plan_live,
    publish_result,
    read_live,
    write_live,
)
from ncclt.profile.record.command import run_foreground
from ncclt.prove.comparison import Comparison
from ncclt.store import open_store, open_to_read
from ncclt.store.clock import utc_now

_OTHER_WAY = "`ncclt tune --on-jobs` tries settings on the starts of your jobs instead"


def run_live(
    argv: tuple[str, ...],
    target: Target,
    how: Comparison,
    *,
    storage: str | None,
    model: str | None,
    max_cost: float,
    as_json: bool,
) -> int:
    """Start the job, tune it live where that is possible, and return its exit code.

    Args:
        argv: the job's command.
        how: minimum effect and the folder that all nodes share.
        model: workload whose candidates are the arms; None = that recorded for this command, or the uniform arms.
        max_cost: of `LiveRequest`.
        as_json: print the result as JSON; the output of the job goes to stderr.

    Raises:
        UsageError: the folder cannot be written to.
    """
    shape = read_shape(argv, os.environ, nodes=target.nodes, gpus_per_node=target.gpus_per_node)
    version = NcclVersion.parse(shape["nccl_version"].value) if "nccl_version" in shape else None
    nodes, gpus = (int(shape[part].value) if part in shape else 0 for part in ("nodes", "gpus_per_node"))
    plugin, stdout = find_plugin(os.environ), 2 if as_json else None
    obstacle = explain_obstacle(os.environ, plugin=plugin, version=version)
    if obstacle or plugin is None or version is None:
        say(f"ncclt: no live tuning: {obstacle}; the job runs without it; {_OTHER_WAY}")
        return run_foreground(argv, environ=os.environ, stdout=stdout)
    job, missing = _find_job(model, replace(target, nccl_version=str(version)), argv, storage)
    request = LiveRequest(
        argv=argv,
        arms=build_arms(version, nodes=nodes, ranks=nodes * gpus, candidates=job.candidates if job else ()),
        plugin=plugin,
        folder=how.directory,
        min_effect=how.min_effect,
        max_cost=max_cost,
        open_mpi=is_open_mpi(argv[0], environ=os.environ),
    )
    exit_code, result = _run(request, stdout=stdout)
    cluster, ranks = target.cluster or "", nodes * gpus
    _report(request, result, job, missing, storage=storage, cluster=cluster, ranks=ranks, as_json=as_json)
    return exit_code


def _run(request: LiveRequest, *, stdout: int | None) -> tuple[int, LiveResult]:
    """Run the job in a new folder within that of the request; return its exit code and the result."""
    parent = request.folder
    try:
        with TemporaryDirectory(prefix=".ncclt-live-", dir=parent.resolve(), ignore_cleanup_errors=True) as folder:
            request = replace(request, folder=Path(folder))
            write_live(request)
            command, variables = plan_live(request, os.environ)
            say(f"ncclt: live tuning ({EXPERIMENTAL}): NCCL default, {', '.join(arm.name for arm in request.arms)}")
            if os.environ.get("NCCL_RUNTIME_CONNECT") != "0":
                say("ncclt: only algorithms that the job uses already are tried; NCCL_RUNTIME_CONNECT=0 connects all")
            exit_code = run_foreground(command, environ=os.environ | variables, stdout=stdout)
            return exit_code, read_live(request)
    except OSError as error:
        hint = "name a folder that all ranks share with --dir"
        raise UsageError(f"cannot write to {parent}: {reason(error)}", hint=hint) from error


def _find_job(
    model: str | None, target: Target, argv: tuple[str, ...], storage: str | None
) -> tuple[TunedJob | None, str]:
    """Return the workload, cluster and candidates of the job, or the reason why a win cannot be published.

    Raises:
        NccltError: a named workload or its cluster is not known.
    """
    name = model or build_job_name(argv, environ=os.environ, folder=Path.cwd())
    try:
        with open_to_read(storage, would_be_made=True) as store:
            workload = store.workloads.get(name)
            cluster = choose_job_cluster(target, argv, store.clusters.get, environ=os.environ)
            candidates = select_candidates(workload, cluster, store, environ=os.environ)
    except NccltError as error:
        if model:
            raise
        command = f"ncclt profile record --name {name} -- COMMAND"
        return None, f"{error.message}; to publish a win, run `{command}` first, and name the cluster with --cluster"
    return TunedJob(workload=workload, cluster=cluster, candidates=candidates), ""


def _report(
    request: LiveRequest,
    result: LiveResult,
    job: TunedJob | None,
    missing: str,
    *,
    storage: str | None,
    cluster: str,
    ranks: int,
    as_json: bool,
) -> None:
    """Print the verdict and its use, store the comparison, and publish a winner."""
    if not (result.launches and result.arm):
        if as_json:
            print_json(_build_document(request, result))
        else:
            other_way = f"; {_OTHER_WAY}" if result.is_training else ""
            say(f"ncclt: live tuning: {result.verdict.decision}: {result.verdict.reason}{other_way}")
        return
    with open_store(storage) as store:
        revision, publication = publish_result(request, result, job, store, missing=missing, environ=os.environ)
        verification = build_verification(
            request,
            result,
            model=job.workload.name if job else "",
            cluster=job.cluster.name if job else cluster,
            revision=revision,
            environ=os.environ,
            ranks=ranks,
            created=utc_now(),
        )
        store.records.add_verification(verification)
        where = store.shown
    if as_json:
        print_json(_build_document(request, result, verification.to_document(), publication))
        return
    print_verification(verification, where, quiet=False)
    if publication:
        print(publication)
    if result.verdict.decision is Decision.TUNED and not result.other_backend:
        table = dict(verification.tuned_env)[TABLE_VARIABLE]
        print_headline(f"Use:      NCCL_TUNER_PLUGIN={request.plugin} {TABLE_VARIABLE}={table} ({EXPERIMENTAL})")
    else:
        print(f"Use:      nothing{f'; {_OTHER_WAY}' if result.is_training else ''}")


def _build_document(
    request: LiveRequest, result: LiveResult, verification: object = None, publication: str = ""
) -> dict[str, object]:
    return {
        "schema": 1,
        "evidence": "live",
        "argv": list(request.argv),
        "verdict": result.verdict.decision,
        "reason": result.verdict.reason,
        "arm": result.arm or None,
        "steps": result.steps,
        "cost": result.cost,
        "ended": result.ended or None,
        "publication": publication or None,
        "verification": verification,
    }
