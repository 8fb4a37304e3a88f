"""`ncclt tune`: from a workload and a cluster to a validated policy."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.exits import EXIT_INTERRUPTED, StopRequest
from ncclt.cli.options import AsJson, Model, Quiet, StepsPerDay, Verbose, spread, storage_option
from ncclt.cli.render import (
    ProgressBar,
    build_launch_document,
    print_document,
    print_json,
    print_launches,
    print_text,
    say,
)
from ncclt.cli.studies import (
    build_command_again,
    build_job_document,
    build_trial_document,
    print_details,
    print_summary,
)
from ncclt.core.budget import Budget
from ncclt.core.cluster import Cluster
from ncclt.core.option import Group, Option
from ncclt.core.plural import count_noun
from ncclt.core.revision import Actor
from ncclt.core.rollout import MAX_COST
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Study, Trial, gpu_seconds
from ncclt.core.trial import Outcome
from ncclt.core.workload import Workload
from ncclt.deliver.render.delivery import describe_channels
from ncclt.errors import UsageError, require_extra
from ncclt.health.doctor.files import read_printed_costs_file
from ncclt.launch.slurm.job import job_loss
from ncclt.measure.open_testbed import choose_cluster, open_testbed
from ncclt.measure.runner import RealRunner
from ncclt.measure.target import ON_REQUEST, Target
from ncclt.measure.testbed import Testbed
from ncclt.nccl.compile import variables_for_setting
from ncclt.nccl.switching import split_setting
from ncclt.nccl.tuner_plugin import find as find_plugin
from ncclt.nccl.variables import site_variables
from ncclt.prove.payback import describe_ceiling, describe_cost
from ncclt.store import open_store, open_to_read
from ncclt.store.clock import utc_now
from ncclt.user_dirs import account_name

if TYPE_CHECKING:
    from ncclt.pipeline.tune import TuneRequest, TuneResult
    from ncclt.prove.verdict import Pairs
    from ncclt.search.loop import Progress as SearchProgress
    from ncclt.search.space import SearchSpace
    from ncclt.store import Store

app = typer.Typer()

TUNE_SCHEMA = 1
"""Version of the document that `tune --json` prints."""

ON_JOBS_SCHEMA = 1
"""Version of the document that `tune --on-jobs --json` prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Options of a study's run; the `Option` of each field describes it.

    Raises:
        UsageError: a number is out of range.
    """

    init_log: Annotated[
        Path | None,
        Option("Path to an NCCL log (INIT,ENV,TUNING) of such a job, for its cost table.", group=Group.WHAT),
    ] = None
    force: Annotated[bool, Option("Tune despite errors found by `ncclt doctor`.", group=Group.LAUNCH)] = False
    no_wait: Annotated[bool, Option("Submit the batch job and exit.", group=Group.LAUNCH)] = False
    on_jobs: Annotated[bool, Option("Launch nothing: let real jobs try candidates in a roll-out.")] = False
    max_cost: Annotated[
        float, Option("Max cost of --on-jobs, as a share of the jobs' GPU hours.", group=Group.BUDGET)
    ] = MAX_COST
    dry_run: Annotated[bool, Option("Print the plan; run and store nothing.")] = False

    def __post_init__(self) -> None:
        if not 0 <= self.max_cost <= 1:
            raise UsageError(
                f"--max-cost must be 0 to 1, not {self.max_cost:g}", hint="`ncclt tune --help` lists the options"
            )


@app.command()
@spread
def tune(
    *,
    model: Model,
    target: Target,
    budget: Budget,
    options: TuneOptions,
    steps_per_day: StepsPerDay = None,
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
    storage, dry_run = storage_url(), options.dry_run
    require_extra("tune")
    from ncclt.pipeline.tune import TuneRequest
    from ncclt.store.shipped import is_demo

    costs = None if options.init_log is None else read_printed_costs_file(options.init_log)
    target.require_known_names()
    with open_to_read(storage, would_be_made=True) as store:
        # An unknown name fails before a missing launcher or GPU, and makes no store.
        workload = store.workloads.get(model)
    if options.on_jobs:
        _tune_on_jobs(workload, target, budget, storage, options, as_json=as_json)
        return
    with open_to_read(storage, would_be_made=True) if dry_run else open_store(storage) as store:
        target = target.resolved(os.environ, demo=is_demo(model), submits=True)
        request = TuneRequest(workload=workload, budget=budget, printed_costs=costs)
        if options.no_wait and not target.launcher_class.job_variable:
            raise UsageError("--no-wait needs --launcher slurm, which submits batch jobs")
        if target.lacks_allocation(os.environ):
            result, exit_code = _find_or_submit(request, target, store, options), 0
        else:
            testbed = open_testbed(
                target, store.clusters.get, workload, environ=os.environ, seed=budget.seed, ask=not dry_run
            )
            if dry_run:
                plan = build_plan_document(request, testbed)
                print_plan(plan, as_json=as_json, texts=verbose)
                return
            result, exit_code = run_study(request, testbed, store, force=options.force, hidden=quiet or as_json)
        if as_json:
            print_json(build_result_document(result, steps_per_day=steps_per_day))
        else:
            source = storage_option(storage, store.shown)
            enough = result.recommendation is None or result.recommendation.is_searched_enough
            again = build_command_again(model, target, budget, source, searched_enough=enough)
            shown = replace(result, source=source)
            print_result(shown, store, again=again, steps_per_day=steps_per_day, quiet=quiet, verbose=verbose)
        if result.recommendation is not None:
            if publication := store.revisions.publication(result.recommendation.id):
                say(f"ncclt: {publication}")
        elif not result.left:
            raise typer.Exit(exit_code)


def _find_or_submit(request: TuneRequest, target: Target, store: Store, options: TuneOptions) -> TuneResult:
    """Return the result of a finished study; submit any other as a batch job.

    Raises:
        Exit: it was submitted, with the exit code of the job.
        UsageError: the batch job would refuse the request.
    """
    from ncclt.cli.submit import submit_study
    from ncclt.pipeline.tune import build_study, find_finished

    cluster, budget = choose_cluster(target, store.clusters.get), request.budget
    if request.printed_costs is not None:
        request.printed_costs.require(cluster)
    target.require(cluster)
    serial = replace(target, parallel=1)  # the nodes that would run at once are the job's
    testbed = open_testbed(
        serial, store.clusters.get, request.workload, environ=os.environ, seed=budget.seed, ask=False
    )
    finished = find_finished(request, testbed, store)
    if finished is None or options.dry_run:
        study = "" if budget.more else build_study(request, testbed, testbed.cut(request.workload)[0]).id
        wait, dry_run = not options.no_wait, options.dry_run
        raise typer.Exit(submit_study(cluster, store, target, wait=wait, study=study, dry_run=dry_run))
    return finished


def _tune_on_jobs(
    workload: Workload, target: Target, budget: Budget, storage: str | None, options: TuneOptions, *, as_json: bool
) -> None:
    """Publish candidates without evidence and open their roll-out, or show them."""
    from ncclt.pipeline.on_jobs import describe_started, plan_on_jobs, start_on_jobs

    dry_run, max_cost = options.dry_run, options.max_cost
    with open_to_read(storage, would_be_made=True) if dry_run else open_store(storage) as store:
        cluster = choose_cluster(target, store.clusters.get)
        cluster = replace(cluster, site_variables=site_variables(os.environ))
        by_plugin = target.through != "variables" and find_plugin(os.environ) is not None
        plan = plan_on_jobs(workload, cluster, store, by_plugin=by_plugin, deterministic=budget.deterministic)
        rollout = "" if dry_run else start_on_jobs(plan, store, by=Actor(who=account_name()), max_cost=max_cost)
    if as_json:
        candidates = [{"id": arm.id, "policy": arm.table.policy} for arm in plan.candidates]
        facts = {"control": plan.control, "max_cost": max_cost, "rollout": rollout or None}
        print_json({"schema": ON_JOBS_SCHEMA, "candidates": candidates, **facts})
        return
    for line in plan.lines():
        print(line)
    if not dry_run:
        print(describe_started(plan, rollout))


def run_study(
    request: TuneRequest, testbed: Testbed, store: Store, *, force: bool, hidden: bool
) -> tuple[TuneResult, int]:
    """Run or resume a study and show its progress; return its result, and the exit code should it be incomplete.

    Raises:
        UsageError: `ncclt doctor` finds what would invalidate every measurement, and `force` is false.
        Exit: it was killed.
    """
    from ncclt.pipeline.tune import tune as run

    if testbed.is_launched:
        _examine(testbed.runner.cluster, force=force, hidden=hidden)
    with StopRequest() as stop, TuneProgress(testbed, hidden=hidden, blocks=request.budget.blocks) as progress:
        try:
            result = run(request, testbed, store, watcher=progress, interrupted=stop, clock=time.monotonic, now=utc_now)
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


class TuneProgress(ProgressBar):
    """Progress of a study on stderr."""

    def __init__(self, testbed: Testbed, *, hidden: bool, blocks: int) -> None:
        super().__init__(hidden=hidden)
        self._testbed = testbed
        self._blocks = blocks
        self._proof = ""
        self._block = -1

    def opened(self, study: Study, resumed: int) -> None:
        """Print where trials run, and on what."""
        if self.is_hidden:
            return
        from ncclt.search.space import describe_space

        cluster = study.cluster
        say(f"ncclt: {_describe_place(study, self._testbed.reason)}")
        say(
            f"ncclt: {study.workload.name} on {cluster.name}: {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}, "
            f"NCCL {cluster.nccl_version}, {count_noun(len(study.workload.messages), 'message')}"
        )
        space = describe_space(self._testbed, study.workload, study.process_wide, deterministic=study.deterministic)
        say(f"ncclt: Search space: {space}")
        if study.today:
            variables = " ".join(f"{name}={value}" for name, value in study.today)
            say(f"ncclt: The A/B test also measures what you run today: {variables}")
        if ceiling := describe_ceiling(study.workload):
            say(f"ncclt: Tuning can save {ceiling}")
        if resumed:
            say(f"ncclt: Resuming study {study.name} after {count_noun(resumed, 'trial')}")

    def searched(self, progress: SearchProgress) -> None:
        """Show one launch of the search."""
        gain = progress.default_us / progress.policy_us
        self._show(
            "search",
            f"Searching: up to {count_noun(progress.budget, 'trial')}",
            f"{progress.done} of up to {progress.budget}, {gain:.2f}x so far",
            progress.trial,
            share=(progress.done, progress.budget),
        )

    def confirmed(self, trial: Trial, done: int, total: int) -> None:
        """Show one launch of the confirmation."""
        name = "NCCL default" if trial.is_default else trial.label
        self._show("confirm", "Confirming the best candidates", f"repeating {name}", trial, share=(done, total))

    def proved(self, trial: Trial, blocks: int, pairs: Pairs | None) -> None:
        """Show one launch of the A/B test: its block, and the gain of the blocks before it."""
        if not self.is_hidden and blocks != self._block:
            from ncclt.prove.verdict import format_interval

            gain = f", {format_interval(pairs)} so far" if pairs is not None else ""
            self._block, self._proof = blocks, f"block {blocks + 1} of up to {self._blocks}{gain}"
        line = f"Validating: A/B test against the NCCL default, up to {count_noun(self._blocks, 'block')}"
        self._show("validate", line, self._proof, trial, share=(blocks, self._blocks))

    def _show(self, phase: str, line: str, live: str, trial: Trial, *, share: tuple[int, int]) -> None:
        """Show one launch: on a terminal in the bar, elsewhere as the first one of its phase."""
        if trial.result.outcome is not Outcome.OK:
            reason = trial.result.detail.splitlines()[-1] if trial.result.detail else ""
            self.say(f"ncclt: trial {trial.number} ({trial.label}): {trial.result.outcome}: {reason}")
        self.show(phase, line, live, done=share[0], total=share[1])


def _describe_place(study: Study, reason: str) -> str:
    """Describe the place of the trials, with the reason for it."""
    if study.simulated:
        place = f"{study.label}: timings from NCCL's own cost model of {study.cluster.name}"
    elif study.label:
        place = f"replaying recorded {study.cluster.gpu} timings"
    else:
        place = f"running trials with {study.launcher}"
    text = place if reason in ("", ON_REQUEST) else f"{reason}: {place}"
    return text if text.startswith(study.cluster.name) else f"{text[0].upper()}{text[1:]}"


def print_result(
    result: TuneResult, store: Store, *, again: str, steps_per_day: int | None, quiet: bool, verbose: bool
) -> None:
    """Print the result of a run: its summary, and before it the details if asked for.

    Args:
        result: of the run; its source is the option by which other commands find the store.
        again: the command that continues an undecided study.
        steps_per_day: of the job; None = as for `estimate_gain`.
    """
    study, source = result.study, result.source
    summary = result.summarize(source=source, build=find_plugin() is None, steps_per_day=steps_per_day)
    if result.finished and not quiet:
        say("ncclt: This study is finished: showing its result; --continue N adds trials")
    if summary is not None:
        if verbose:
            print_details(summary, study, result.messages, (f"search: {result.stop}", *result.notes))
            print_text("")
        print_summary(summary, again=again, source=source, details=verbose)
    elif result.left:
        say("ncclt: Another worker of this study confirms and validates the result; this one is done")
    else:
        if not quiet and (cost := describe_cost(study, result.trials, None)):
            say(f"ncclt: Cost of this study so far: {cost}")
        _loss, requeued = job_loss(os.environ)
        todo = "" if requeued else "; run the same command to resume"
        say(f"ncclt: Stopped: {result.stop}. Saved {count_noun(len(result.trials), 'trial')} in {store.shown}{todo}")


def build_result_document(result: TuneResult, *, steps_per_day: int | None) -> dict[str, Any]:
    """Return the document of `tune --json`, without times of day, hosts or stores: equal seeds give equal documents.

    Args:
        steps_per_day: as for `print_result`.
    """
    study, recommendation, verdict = result.study, result.recommendation, result.verdict
    cluster = study.cluster
    summary = result.summarize(steps_per_day=steps_per_day)
    document: dict[str, Any] = summary.to_document() if summary else {"payback_steps": None}
    return {
        "schema": TUNE_SCHEMA,
        "study": study.name,
        "study_id": study.id,
        **build_job_document(study),
        "state": study.state.value,
        "stopped": result.stop,
        "verdict": verdict.decision.value if verdict else None,
        "reason": verdict.reason if verdict else result.stop,
        "speedup": verdict.speedup if verdict else None,
        "interval": verdict.to_document()["interval"] if verdict else None,
        "blocks": verdict.blocks if verdict else 0,
        "policy": recommendation.table.policy.to_document() if recommendation else None,
        "variables": recommendation.variables.to_document() if recommendation and recommendation.variables else None,
        "channels": describe_channels(recommendation.table.effective) if recommendation else "",
        "recommendation": {"id": recommendation.id, "revision": recommendation.revision} if recommendation else None,
        "messages": [row.to_document() for row in result.messages],
        "trials": [build_trial_document(t, cluster) for t in result.trials if t.phase is Phase.SEARCH],
        "gpu_hours": gpu_seconds(result.trials, cluster) / 3600,
        **document,
        "coverage": recommendation.coverage.to_document() if recommendation and recommendation.coverage else None,
        "launches": {phase.value: sum(t.phase is phase for t in result.trials) for phase in Phase},
        **({"best_possible": {"speedup": result.exhaustive[0]}} if result.exhaustive else {}),
        "notes": list(dict.fromkeys([*result.notes, *(document["notes"] if summary else ())])),
    }


def print_plan(document: dict[str, Any], *, as_json: bool, texts: bool) -> None:
    """Print a plan as text or as one document."""
    if as_json:
        print_json(document)
        return
    launches = document.pop("launches", [])
    print_document(document)
    print_launches(launches, texts=texts)
    if launches and not texts:
        print("--verbose shows the files and whole commands")


def build_plan_document(request: TuneRequest, testbed: Testbed) -> dict[str, Any]:
    """Return the plan of a study, for `--dry-run`, without measuring or storing anything."""
    from ncclt.pipeline.tune import build_study
    from ncclt.prove.study_summary import describe_rounded
    from ncclt.search.space import build_space, count_excluded

    workload, notes = testbed.cut(request.workload)
    if isinstance(testbed.runner, RealRunner):
        rounded = testbed.runner.find_rounded(calls.message for calls in workload.messages)
        notes += tuple(filter(None, (describe_rounded(rounded),)))
    study = build_study(request, testbed, workload)
    space = build_space(testbed, workload, study.process_wide, deterministic=study.deterministic)
    launches = _build_launch_documents(testbed, space, workload)
    missing = count_excluded(testbed, workload, study.process_wide, deterministic=study.deterministic)
    return {
        "schema": TUNE_SCHEMA,
        "study": study.name,
        **build_job_document(study),
        "why": testbed.reason,
        **({"sampler": study.sampler} if study.sampler else {}),
        "messages": [f"{c.message.label} x {c.calls_per_step:g}" for c in workload.messages],
        "settings": len(space.distinct),
        **({"left_out": [f"{n} setting{'s' * (n > 1)}: {why}" for why, n in missing.items()]} if missing else {}),
        "parameters": list(space.distributions),
        "trials": request.budget.trials,
        "first": [f"{s.label}: {_describe_force(s, testbed, workload)}" for s in space.anchors()],
        "notes": list(notes),
        **({"launches": launches} if launches else {}),
    }


def _describe_force(setting: Setting, testbed: Testbed, workload: Workload) -> str:
    """Return the means that force a setting: the tuner plugin, variables, or both."""
    version, collectives = testbed.runner.cluster.version, workload.collectives
    rules, remainder = split_setting(setting, version=version, collectives=collectives, plugin=testbed.by_plugin)
    variables = variables_for_setting(remainder, version=version, collectives=collectives).variables
    return " ".join([*(["by the plugin"] if rules else []), *(f"{name}={value}" for name, value in variables)])


def _build_launch_documents(testbed: Testbed, space: SearchSpace, workload: Workload) -> list[dict[str, Any]]:
    """Return the launches of the default, of the first setting after it and of today's settings, where there are any.

    Persistent ranks are started once for the first two.
    """
    from ncclt.measure import LaunchedRunner, PersistentRunner

    runner = testbed.searching[0]
    if not isinstance(runner, LaunchedRunner | PersistentRunner):
        return []
    messages = [calls.message for calls in workload.messages]
    settings = () if testbed.persistent else space.anchors()[:1]
    rows = [
        build_launch_document(setting.label, plan)
        for setting, padded in ((DEFAULT, testbed.find_padded(workload)), *((setting, ()) for setting in settings))
        for plan in runner.plans(setting, [*messages, *padded])
    ]
    today = testbed.by_today
    if isinstance(today, LaunchedRunner | PersistentRunner):
        rows += [build_launch_document("today", plan) for plan in today.plans(DEFAULT, messages)]
    return rows
