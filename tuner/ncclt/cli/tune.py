"""`ncclt tune`: from a workload and a cluster to a validated policy."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.launch_view import print_launches
from ncclt.cli.options import AsJson, Model, Quiet, StepsPerDay, Verbose, spread, storage_option
from ncclt.cli.output import EXIT_INTERRUPTED, StopRequest, print_json, say
from ncclt.core.budget import Budget
from ncclt.core.option import Group
from ncclt.core.plural import count_noun
from ncclt.core.rollout import MAX_COST
from ncclt.errors import UsageError, hide_passwords, require_extra
from ncclt.launch.process.process_tree import MARK_VARIABLE
from ncclt.measure.redact import words_without_secrets
from ncclt.measure.target import Target

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.workload import Workload
    from ncclt.measure.testbed import Testbed
    from ncclt.pipeline.tune import TuneRequest, TuneResult
    from ncclt.store import Store

app = typer.Typer()

ON_JOBS_SCHEMA = 1
"""Version of the document that `tune --on-jobs --json` prints."""


@app.command()
@spread
def tune(
    *,
    model: Model,
    target: Target,
    budget: Budget,
    init_log: Annotated[
        Path | None,
        typer.Option(
            help="Path to an NCCL log (INIT,ENV,TUNING) of such a job, for its cost table.",
            rich_help_panel=Group.WHAT,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Tune despite errors found by `ncclt doctor`.", rich_help_panel=Group.LAUNCH),
    ] = False,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="Submit the batch job and exit.", rich_help_panel=Group.LAUNCH),
    ] = False,
    steps_per_day: StepsPerDay = None,
    on_jobs: Annotated[
        bool, typer.Option("--on-jobs", help="Launch nothing: let real jobs try candidates in a roll-out.")
    ] = False,
    max_cost: Annotated[
        float,
        typer.Option(
            help="Max cost of --on-jobs, as a share of the jobs' GPU hours.", min=0, max=1, rich_help_panel=Group.BUDGET
        ),
    ] = MAX_COST,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; run and store nothing.")] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Search NCCL settings for a workload and A/B-test the best.

    Measures the NCCL default, searches, repeats the best candidates, then A/B-tests the best policy against the
    default. Ctrl-C finishes the running trial and saves; the same command resumes (without --continue). A finished
    study prints its result again. Several processes that run the same command share the study. Outside an allocation,
    --launcher slurm submits the study as one batch job.
    """
    storage = storage_url()
    require_extra("tune")
    from ncclt.measure.open_testbed import choose_cluster, open_testbed
    from ncclt.pipeline.tune import TuneRequest, build_study, find_finished
    from ncclt.store import open_store, open_to_read
    from ncclt.store.shipped import is_demo

    costs = None
    if init_log is not None:
        from ncclt.health.doctor.files import read_printed_costs_file

        costs = read_printed_costs_file(init_log)
    target.require_known_names()
    with open_to_read(storage, would_be_made=True) as store:
        workload = store.workloads.get(
            model
        )  # an unknown name fails before a missing launcher or GPU, and makes no store
    if on_jobs:
        _tune_on_jobs(workload, target, budget, storage, max_cost=max_cost, dry_run=dry_run, as_json=as_json)
        return
    with open_to_read(storage, would_be_made=True) if dry_run else open_store(storage) as store:
        target = target.resolved(os.environ, demo=is_demo(model), submits=True)
        request = TuneRequest(workload=workload, budget=budget, printed_costs=costs)
        if no_wait and not target.launcher_class.job_variable:
            raise UsageError("--no-wait needs --launcher slurm, which submits batch jobs")
        if target.lacks_allocation(os.environ):
            cluster = choose_cluster(target, store.clusters.get)
            # What the job would refuse in its queue is refused here.
            if costs is not None:
                costs.require(cluster)
            target.require(cluster)
            alone = replace(target, parallel=1)  # the nodes that would run at once are the job's
            testbed = open_testbed(
                alone, store.clusters.get, request.workload, environ=os.environ, seed=budget.seed, ask=False
            )
            finished = find_finished(request, testbed, store)
            if finished is None or dry_run:
                study = "" if budget.more else build_study(request, testbed, testbed.cut(request.workload)[0]).id
                raise typer.Exit(submit_study(cluster, store, target, wait=not no_wait, study=study, dry_run=dry_run))
        else:
            testbed = open_testbed(
                target, store.clusters.get, request.workload, environ=os.environ, seed=budget.seed, ask=not dry_run
            )
            finished = None
        if dry_run:
            print_plan(plan_of(request, testbed), as_json=as_json, texts=verbose)
            return
        from ncclt.cli.summary_view import command_again
        from ncclt.cli.tune_view import print_result, result_document

        if finished is not None:
            result, exit_code = finished, 0
        else:
            result, exit_code = run_study(request, testbed, store, force=force, hidden=quiet or as_json)
        if as_json:
            print_json(result_document(result, steps_per_day=steps_per_day))
        else:
            source = storage_option(storage, store.shown)
            found = result.recommendation
            enough = found is None or found.is_searched_enough
            again = command_again(model, target, budget, source, searched_enough=enough)
            shown = replace(result, source=source)
            print_result(shown, store, again=again, steps_per_day=steps_per_day, quiet=quiet, verbose=verbose)
        if result.recommendation is not None:
            say_state(store, result.recommendation.id)
        elif not result.left:
            raise typer.Exit(exit_code)


def _tune_on_jobs(
    workload: Workload,
    target: Target,
    budget: Budget,
    storage: str | None,
    *,
    max_cost: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Publish candidates without evidence and open their roll-out, or show them."""
    from ncclt.core.revision import Actor
    from ncclt.measure.open_testbed import choose_cluster
    from ncclt.nccl.tuner_plugin import find as find_plugin
    from ncclt.nccl.variables import site_variables
    from ncclt.pipeline.on_jobs import describe_started, plan_on_jobs, start_on_jobs
    from ncclt.store import open_store, open_to_read
    from ncclt.user_dirs import account_name

    with open_to_read(storage, would_be_made=True) if dry_run else open_store(storage) as store:
        cluster = choose_cluster(target, store.clusters.get)
        cluster = replace(cluster, site_variables=site_variables(os.environ))
        by_plugin = target.through != "variables" and find_plugin(os.environ) is not None
        plan = plan_on_jobs(workload, cluster, store, by_plugin=by_plugin, deterministic=budget.deterministic)
        rollout = "" if dry_run else start_on_jobs(plan, store, by=Actor(who=account_name()), max_cost=max_cost)
    if as_json:
        candidates = [{"id": one.id, "policy": one.table.policy.to_document()} for one in plan.candidates]
        shown = {"control": plan.control, "max_cost": max_cost, "rollout": rollout or None}
        print_json({"schema": ON_JOBS_SCHEMA, "candidates": candidates, **shown})
        return
    for line in plan.lines():
        print(line)
    if not dry_run:
        print(describe_started(plan, rollout))


def say_state(store: Store, id: str) -> None:
    """Write to stderr if a revision is not active for all jobs, or has replaced another one."""
    if words := store.revisions.publication(id):
        say(f"ncclt: {words}")


def run_study(
    request: TuneRequest, testbed: Testbed, store: Store, *, force: bool, hidden: bool
) -> tuple[TuneResult, int]:
    """Run or resume a study and show its progress; return its result, and the exit code should it be incomplete.

    Raises:
        UsageError: `ncclt doctor` finds what would invalidate every measurement, and `force` is false.
        Exit: it was killed.
    """
    from ncclt.cli.tune_view import TuneView
    from ncclt.pipeline.tune import tune as run
    from ncclt.store.clock import utc_now

    if testbed.is_launched:
        _examine(testbed.runner.cluster, force=force, hidden=hidden)
    with StopRequest() as stop, TuneView(testbed, hidden=hidden, blocks=request.budget.blocks) as view:
        try:
            result = run(request, testbed, store, watcher=view, interrupted=stop, clock=time.monotonic, now=utc_now)
        except KeyboardInterrupt:
            say("ncclt: killed; every completed trial is saved, run the same command to resume")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    return result, stop.exit_code


_IN_EVERY_ARM = "ENV006"
"""Rule about transports that are switched off by variables of the site: the verdict cannot name their cost."""


def _examine(cluster: Cluster, *, force: bool, hidden: bool) -> None:
    """Examine this machine before anything is measured on it.

    Raises:
        UsageError: there is a finding of severity error.
    """
    from ncclt.health.doctor import Facts
    from ncclt.health.doctor.examine import examine_here

    diagnosis = examine_here(os.environ, Facts(cluster=cluster))
    for finding in diagnosis.findings:
        if finding in diagnosis.blocking or (finding.id == _IN_EVERY_ARM and not hidden):
            say(f"ncclt: doctor: {finding.id}: {finding.what}")
    if diagnosis.blocking and not force:
        raise UsageError(
            f"`ncclt doctor` found {count_noun(len(diagnosis.blocking), 'error')}: no measurement here would be valid",
            hint="see `ncclt doctor` for the repair; --force tunes anyway",
        )


def plan_of(request: TuneRequest, testbed: Testbed) -> dict[str, Any]:
    """Build the plan of a study without measuring or storing anything."""
    from ncclt.cli.tune_view import plan_document
    from ncclt.measure.runner import RealRunner
    from ncclt.pipeline.tune import build_study
    from ncclt.prove.study_summary import describe_rounded
    from ncclt.search.space import build_space

    workload, notes = testbed.cut(request.workload)
    if isinstance(testbed.runner, RealRunner):
        rounded = testbed.runner.find_rounded(calls.message for calls in workload.messages)
        notes += tuple(filter(None, (describe_rounded(rounded),)))
    study = build_study(request, testbed, workload)
    space = build_space(testbed, workload, study.process_wide, deterministic=study.deterministic)
    return plan_document(study, testbed, space, request, notes)


def print_plan(document: dict[str, Any], *, as_json: bool, texts: bool) -> None:
    """Print a plan as text or as one document."""
    if as_json:
        print_json(document)
        return
    launches = document.pop("launches", [])
    for key, value in document.items():
        if isinstance(value, list):
            print(f"{key}: {', '.join(value)}" if key == "parameters" else f"{key}:" if value else f"{key}: none")
            for item in value if key != "parameters" else ():
                print(f"  {item}")
        elif key != "schema":
            print(f"{key}: {value}")
    print_launches(launches, texts=texts)
    if launches and not texts:
        print("--verbose shows the files and whole commands")


def submit_study(cluster: Cluster, store: Store, target: Target, *, wait: bool, study: str, dry_run: bool) -> int:
    """Submit this very command line as one job, or find the job of the same study, and follow it.

    Returns:
        the job's exit code.

    Args:
        cluster: sized to one trial; the job gets its nodes once for each trial that runs at the same time.
        store: the job must reach it too.
        target: resolved.
        study: id of the study, as far as it is known without its nodes; empty = a job that runs is not looked for.

    Raises:
        UsageError: sbatch is missing or refuses, or the nodes would not see the store, or not its password.
    """
    from ncclt.launch.launcher import JobShape
    from ncclt.launch.slurm.sbatch import BatchRequest, node_local_folder, plan_batch, submit_and_follow
    from ncclt.measure.open_testbed import describe_variables

    path = None if "NCCLT_STORE_IS_SHARED" in os.environ else store.path
    if path is not None and (why := node_local_folder(path)):
        refusal = UsageError(
            f"the job would keep its trials where they cannot be found again: {why}",
            hint="name a store that all nodes see with --storage, or set NCCLT_STORE_IS_SHARED=1 if they see this",
        )
        if not dry_run:
            raise refusal
        say(f"ncclt: without --dry-run, this stops: {refusal.message}\n  hint: {refusal.hint}")
    options = target.launcher_options
    extra = options.get("sbatch_arg", ())
    names_gpus = any(argument.startswith(("--gpus", "--gres")) for argument in extra)
    words = [word for word in sys.argv[1:] if word not in ("--dry-run", "--verbose", "-v")]
    if store.path is None:
        words = _storage_by_environment(words)
    request = BatchRequest(
        command=(sys.executable, "-m", "ncclt", *words),
        shape=JobShape(nodes=cluster.nodes * target.parallel, processes_per_node=cluster.gpus_per_node),
        gpus_per_node=None if target.backend == "gloo" or names_gpus else cluster.gpus_per_node,
        time_limit=options.get("time_limit"),
        job_name="ncclt-tune",
        folder=Path.cwd(),
        extra=extra,
        variables=_variables(store, words, extra, os.environ),
        comment=f"ncclt {hashlib.sha256(f'{study} {store.shown}'.encode()).hexdigest()[:12]}" if study else "",
    )
    if dry_run:
        plan = plan_batch(request)
        print(f"# {' '.join(plan.argv)}\n{plan.script}", end="")
        return 0
    export = _exported(extra, os.environ)
    inherited = os.environ if "ALL" in export else {name: os.environ[name] for name in export if name in os.environ}
    for note in describe_variables(target, inherited):
        say(f"ncclt: {note}")
    # The job outlives this program; on SIGTERM and SIGHUP `submit_and_follow` says so.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    return submit_and_follow(request, wait=wait, show=sys.stdout.write, say=sys.stderr.write)


def _storage_by_environment(words: list[str]) -> list[str]:
    """Remove --storage where its URL holds a password, and pass the URL in the environment, which the job inherits.

    Slurm shows the script of a job to other users, and every user of a node sees its command lines.
    """
    left = []
    following = iter(words)
    for word in following:
        name, equals, url = word.partition("=")
        if name != "--storage" or hide_passwords(url := url if equals else next(following, "")) == url:
            left += [word] if equals or name != "--storage" else [word, url]
        else:
            os.environ["NCCLT_STORAGE"] = url
    return left


_FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
"""Variables that say where the files of a user are."""


def _variables(
    store: Store, words: Sequence[str], sbatch_args: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables of the script: every option that comes from a variable, and the store.

    Raises:
        UsageError: one of them is secret, and the job would not inherit it.
    """
    names = [name for name in environ if (name.startswith("NCCLT_") and name != MARK_VARIABLE) or name in _FOLDERS]
    found = {name: environ[name] for name in sorted(names)}
    if store.path is not None and not any(word.partition("=")[0] == "--storage" for word in words):
        found["NCCLT_STORAGE"] = f"sqlite:///{store.path.absolute()}"
    secret = [
        name for name, value in found.items() if words_without_secrets((f"{name}={value}",))[0] != f"{name}={value}"
    ]
    export = _exported(sbatch_args, environ)
    if dropped := [name for name in secret if name not in export and "ALL" not in export]:
        raise UsageError(
            f"--export={','.join(export)} keeps {', '.join(dropped)} from the job, and a script must not hold secrets",
            hint="use --launcher-option sbatch-arg=--export=ALL, or put the password into ~/.pgpass",
        )
    return tuple((name, value) for name, value in sorted(found.items()) if name not in secret)


def _exported(sbatch_args: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that a job inherits; `ALL` stands for every one."""
    exports = [word.partition("=")[2] for word in sbatch_args if word.startswith("--export=")]
    return [environ.get("SBATCH_EXPORT", "ALL"), *exports][-1].split(",")


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
