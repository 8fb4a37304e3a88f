"""`ncclt recheck`: measure a few messages of a recommendation again."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.exits import EXIT_INTERRUPTED, StopRequest
from ncclt.cli.options import AsJson, Fields, Model, Quiet, spread
from ncclt.cli.render import Column, print_json, print_table, print_text, say
from ncclt.core.cluster import hash_site
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.option import Group, Option
from ncclt.core.policy import Policy
from ncclt.core.recheck import Recheck
from ncclt.core.recommendation import ORIGIN_WORDS, Recommendation, Request, select
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Study
from ncclt.core.trial import TrialResult
from ncclt.errors import UsageError
from ncclt.measure.open_testbed import ask_drivers, open_testbed
from ncclt.measure.target import Target
from ncclt.measure.testbed import Testbed
from ncclt.store import open_store
from ncclt.store.clock import utc_now

if TYPE_CHECKING:
    from ncclt.prove.recheck import RecheckRequest
    from ncclt.store import Store

app = typer.Typer()

EXIT_STALE = 4
"""The recommendation is stale, and no longer served."""


@app.command()
@spread
def recheck(
    model: Model,
    target: Annotated[
        Target,
        Fields(
            "cluster nodes gpus_per_node nccl_version points blocks tolerance launcher benchmark "
            "backend nccl_tests hosts python launcher_option launcher_arg scratch "
            "through"
        ),
    ],
    points: Annotated[int, Option("Heaviest messages to measure: 3 to 6.", group=Group.PROOF)] = 5,
    blocks: Annotated[int, Option("Blocks of two launches per arm.", group=Group.PROOF)] = 2,
    tolerance: Annotated[float, Option("Max change of a time, as a share.", group=Group.PROOF)] = 0.10,
    new_driver: Annotated[bool, Option("Accept another NVIDIA driver if nothing else changed.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure a recommendation again; stop serving a stale one.

    A recommendation is stale when NCCL, driver, topology or performance have changed beyond the noise; `ncclt env`
    then refuses it. A later recheck makes it fresh again if it can see the earlier change. In a shell with the tuning
    variables of the study, the gain over what you run today is measured too. Exit codes: 0 = fresh, 4 = stale,
    3 = nothing to recheck.
    """
    from ncclt.prove.recheck import RecheckRequest
    from ncclt.store.shipped import is_demo

    target.require_known_names()
    with open_store(storage_url(), makes=False) as store:
        workload = store.workloads.get(model)  # an unknown name fails before a missing launcher or GPU
        target = target.resolved(os.environ, demo=is_demo(model))
        # A seed of its own for simulated noise: a recheck must not repeat the study's own launches.
        testbed = open_testbed(target, store.clusters.get, workload, environ=os.environ, seed=0, ask_driver=False)
        published, study = _find_published(store, testbed, model, target.nccl_version)
        request = RecheckRequest(
            recommendation=published,
            study=study,
            trials=store.trials.find(study.id),
            points=points,
            blocks=blocks,
            tolerance=tolerance,
        )
        request = _add_history(request, store, target, testbed, new_driver=new_driver)
        result = _measure(request, testbed, store, hidden=quiet or as_json)
    if as_json:
        print_json(result)
    else:
        _print(result, study)
    if result.reasons:
        raise typer.Exit(EXIT_STALE)


def _measure(request: RecheckRequest, testbed: Testbed, store: Store, *, hidden: bool) -> Recheck:
    """Launch the recheck, show each launch on stderr, and store the result.

    Raises:
        Exit: interrupted.
    """
    from ncclt.prove.evidence import collect_evidence
    from ncclt.prove.recheck import find_served_arm
    from ncclt.prove.recheck import recheck as run

    published = request.recommendation
    arm, served = find_served_arm(published, collect_evidence(request.trials))
    if arm is Arm.TABLE:
        _require_expressible(served.policy, request, testbed)
    store.require_writable()
    if not hidden:
        job = f"{published.model} on {published.cluster}"
        say(f"ncclt: rechecking {published.id} (revision {published.revision}) of {job}")
        say(f"ncclt: launches run on: {testbed.runner.name}, {testbed.reason}")
    launches = count(1)

    def watch(arm: Arm, result: TrialResult) -> None:
        if not hidden:
            say(f"ncclt: launch {next(launches)}, {arm}: {result.outcome}, {result.wall_s:.1f} s")

    today = published.today.variables if published.today else ()
    if today and today != testbed.today:
        shown = " ".join(f"{name}={value}" for name, value in today)
        say(f"ncclt: the gain over what you run today is not measured: this shell does not set exactly {shown}")
    with StopRequest() as stop:
        result = run(
            request,
            testbed.by_arm.get(arm, testbed.runner),
            interrupted=stop,
            watch=watch,
            now=utc_now,
            by_today=testbed.by_today if today == testbed.today else None,
        )
    if result is None:
        say("ncclt: interrupted: nothing was recorded")
        raise typer.Exit(EXIT_INTERRUPTED)
    store.records.add_recheck(result)
    return result


def _find_published(
    store: Store, testbed: Testbed, model: str, nccl_version: str | None
) -> tuple[Recommendation, Study]:
    """Return the recommendation that is served here, a stale one too, and its study."""
    cluster = testbed.runner.cluster
    wanted = Request(
        cluster=cluster.name,
        model=model,
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        nccl_version=str(NcclVersion.parse(nccl_version)) if nccl_version else None,
        site=hash_site(cluster.site_variables),
    )
    # A stale one may be rechecked too: that is how it comes to be served again.
    served = store.recommendations.newest(cluster=cluster.name, model=model)
    published = [replace(r, stale="") for r in served or store.recommendations.find(cluster=cluster.name, model=model)]
    # The installed NCCL comes first; a recommendation measured with another version is then found stale.
    installed = replace(wanted, nccl_version=wanted.nccl_version or str(cluster.version))
    fitting = [r for r in published if not installed.refusal(r.fingerprint)]
    recommendation = select(fitting or published, wanted, partly=True)
    return recommendation, store.studies.get(recommendation.study)


def _require_expressible(policy: Policy, request: RecheckRequest, testbed: Testbed) -> None:
    """Refuse a policy that these launches cannot force, which would otherwise be found stale.

    Raises:
        UsageError: naming the first such setting.
    """
    for setting in policy.by_setting([calls.message for calls in request.study.workload.messages]):
        algo_proto = Setting(algorithm=setting.algorithm, protocol=setting.protocol)
        if not algo_proto.is_default and not testbed.expressible(algo_proto):
            raise UsageError(
                f"variables cannot force {algo_proto.label} safely, "
                "which this recommendation delivers through a tuner table",
                hint="use --through plugin, with --benchmark torch_collectives",
            )


def _add_history(
    request: RecheckRequest, store: Store, target: Target, testbed: Testbed, *, new_driver: bool
) -> RecheckRequest:
    """Add earlier rechecks, and the driver of the nodes now and before; skip the query where nothing is launched."""
    from ncclt.prove.recheck import driver_before

    earlier = store.records.rechecks(request.recommendation.id)
    before = driver_before(request.recommendation, earlier)
    driver = ""
    if target.is_launched and target.backend == "nccl":
        driver, why_unknown = ask_drivers(testbed.runner.cluster, target, environ=os.environ)
        if why_unknown:
            say(f"ncclt: cannot tell whether the NVIDIA driver has changed: {why_unknown}")
        elif not before:
            say(f"ncclt: the NVIDIA driver is {driver}; the driver of the measurement is unknown")
    return replace(request, driver=driver, driver_before=before, driver_may_differ=new_driver, earlier=earlier)


def _print(recheck: Recheck, study: Study) -> None:
    from ncclt.prove.recheck import TODAY_GAIN

    if recheck.changes:
        print_table(
            recheck.changes,
            [
                Column("measured", lambda change: change.what),
                Column("before", lambda change: change.before),
                Column("now", lambda change: change.now),
                Column("change, %", lambda change: f"{(change.ratio - 1) * 100:+.1f}", right=True),
                Column("noise, %", lambda change: f"{change.noise * 100:.1f}", right=True, drop=1),
                Column("state", lambda change: "changed" if change.changed else "same"),
            ],
        )
    demonstration = f" ({ORIGIN_WORDS[study.origin]} timings: a demonstration)" if study.label else ""
    job = f"{recheck.model} on {recheck.cluster}{demonstration}"
    print_text(f"{recheck.freshness}: {job}, recommendation {recheck.recommendation}")
    for reason in recheck.reasons:
        print_text(f"  {reason}")
    if any(change.changed and change.what == TODAY_GAIN for change in recheck.changes):
        print_text("  The gain over what you run today has changed: tune again in this shell, with a new --study.")
    if recheck.reasons:
        print_text("  It is no longer served; tune again with a new --study, or recheck once the cause is repaired.")
