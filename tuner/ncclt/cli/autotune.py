"""`ncclt autotune`: from a job to a result, in stages that are commands of their own.

It has a name of its own, and is no option of `tune`, because it starts the user's job, which `tune` never does.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.completion import model_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, Fields, Quiet, spread, storage_option, words_of
from ncclt.cli.output import EXIT_INTERRUPTED, interruptible, print_bold, print_json, say
from ncclt.core.budget import Budget
from ncclt.core.message import Collective
from ncclt.core.option import Group, Option
from ncclt.core.plural import count_noun
from ncclt.core.rollout import MAX_COST
from ncclt.errors import NotFoundError, UsageError, require_extra
from ncclt.measure.target import Target
from ncclt.prove.comparison import Comparison

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.recommendation import Recommendation
    from ncclt.core.verification import Verification
    from ncclt.core.workload import Workload
    from ncclt.launch.launcher import Launcher
    from ncclt.measure.testbed import Testbed
    from ncclt.pipeline.tune import TuneRequest, TuneResult
    from ncclt.store import Store

app = typer.Typer()

AUTOTUNE_SCHEMA = 1
"""Version of the document that `autotune --json` prints."""

_OF_TARGET = "cluster nodes gpus_per_node launcher launcher_option backend nccl_tests hosts"
"""Options of `ncclt tune` that a first run needs; `--dry-run` prints the stages as commands, which take all others."""

_OF_BOTH = {
    "warmup": Option("Warm-up steps before the measured ones.", group=Group.LAUNCH),
    "timeout_s": Option("Max seconds of a launch.", flag="--timeout", group=Group.LAUNCH),
}
"""Options of a comparison that the recording has too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutotuneRequest:
    """Autotune request: the job, or a stored workload of one, and how it is tuned.

    Attributes:
        argv: the job's command; empty = there is none.
        name: of the workload.
        is_recorded: the workload comes from this run's own stage; otherwise it was there before.
        window: steps that are recorded and timed; None = the defaults of both.
        target, budget, how: of the trials and the comparison.
        storage: the option that other commands need to find the store; empty where they need none.
        force: continue where nothing can be gained, or where `ncclt doctor` finds errors.
    """

    argv: tuple[str, ...]
    name: str
    is_recorded: bool
    window: int | None
    target: Target
    budget: Budget
    how: Comparison
    storage: str
    force: bool

    def stages(self, cluster: Cluster | None) -> dict[str, str]:
        """Return the command of each stage, in order; without a cluster, those before it is known."""
        own = shlex.split(self.storage)
        launches = words_of(replace(self.how, min_effect=Comparison().min_effect))
        compared = [*launches, *_given(self.budget, "min_effect")]
        recorded = [f"--warmup={self.how.warmup}", *_given(self.how, "directory"), "--stop-after"]
        recorded += [f"--steps={self.window}"] if self.window else []
        of = ["--model", self.name, *own]
        if cluster is not None:
            measured = Target(
                cluster=cluster.name,
                nodes=cluster.nodes,
                gpus_per_node=cluster.gpus_per_node,
                nccl_version=cluster.nccl_version,
            )
            of[2:2] = _given(measured)
        forced = ["--force"] if self.force else []
        words = {
            "record": ["profile", "record", "--name", self.name, *recorded, *own, "--", *self.argv],
            "look": ["profile", "show", self.name, *own],
            "tune": ["tune", "--model", self.name, *_given(self.target), *_given(self.budget), *forced, *own],
            "compare": ["verify", *of, *compared, "--", *self.argv],
            "use": ["run", *of, "--", *self.argv],
        }
        left = {"record"} if not self.is_recorded else set()
        left |= set() if self.argv and self.target.is_launched else {"compare", "use"}
        return {name: shlex.join(["ncclt", *line]) for name, line in words.items() if name not in left}


def _given(record: Any, *names: str) -> list[str]:
    """Return the options of a record, or of some of its fields."""
    if not names:
        return words_of(record)
    return words_of(replace(type(record)(), **{name: getattr(record, name) for name in names}))


@app.command(context_settings={"allow_interspersed_args": False})
@spread
def autotune(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command of the training, such as: torchrun ... train.py; or give --model."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Name of a stored workload, instead of recording one.", autocompletion=model_names),
    ] = None,
    *,
    target: Annotated[Target, Fields(_OF_TARGET)],
    budget: Annotated[Budget, Fields("trials seconds blocks min_effect process_wide")],
    how: Annotated[Comparison, Fields("warmup timeout_s directory", _OF_BOTH)],
    window: Annotated[
        int | None,
        typer.Option(help="Steps to record and to time; default: 20 and 30.", min=1),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Continue despite too little to gain or errors of `ncclt doctor`.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Tune inside the running job (experimental, not yet seen on several GPUs).")
    ] = False,
    max_cost: Annotated[float, typer.Option(help="Max cost of --live, as a share of the job's time.")] = MAX_COST,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the stages; run and store nothing.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Record a job, tune its messages and A/B-test its step times.

    Records the first steps of the job (`ncclt profile record`), tunes its messages (`ncclt tune`), and, if a policy
    wins, A/B-tests the step times of the job itself (`ncclt verify`). Stops early if tuning cannot save enough. The
    job needs no change. Ctrl-C stops; the same command resumes.

    With --live the job runs once, and its ranks switch settings between blocks of steps (experimental).
    """
    storage = storage_url()
    if live:
        if not command or dry_run:
            raise UsageError(
                "--live needs a command after --, and cannot be combined with --dry-run",
                hint="for example: ncclt autotune --live -- torchrun --nproc-per-node=8 train.py",
            )
        from ncclt.cli.autotune_live import run_live

        how = replace(how, min_effect=budget.min_effect)
        raise typer.Exit(
            run_live(tuple(command), target, how, storage=storage, model=model, max_cost=max_cost, as_json=as_json)
        )
    require_extra("tune")
    from ncclt.measure.open_testbed import choose_cluster, launched_testbed
    from ncclt.pipeline.autotune import build_job_name, choose_target
    from ncclt.store import open_store, open_to_read
    from ncclt.store.location import locate

    argv = tuple(command or ())
    if not argv and not model:
        raise UsageError(
            "give the command of a job after --, or --model NAME",
            hint="for example: ncclt autotune -- torchrun --nproc-per-node=8 train.py",
        )
    blocks = how.blocks if budget.blocks == Budget().blocks else budget.blocks
    how = replace(how, min_effect=budget.min_effect, blocks=blocks, steps=window or how.steps)
    target.require_known_names()
    if model is not None:
        with open_to_read(storage, would_be_made=True) as store:
            store.workloads.get(model)  # an unknown name fails before a missing launcher or GPU
    target = choose_target(target, argv, environ=os.environ)
    name = model or build_job_name(argv, environ=os.environ, folder=Path.cwd())
    location = locate(storage)
    with open_to_read(storage, would_be_made=True) if dry_run else open_store(storage) as store:
        job = AutotuneRequest(
            argv=argv,
            name=name,
            is_recorded=model is None,
            window=window,
            target=target,
            budget=budget,
            how=how,
            storage=storage_option(storage, str(location.path or store.shown)),
            force=force,
        )
        if dry_run:
            _print_plan(job, store, as_json=as_json)
        else:
            store.require_writable()
            # What the trials would refuse is refused before the job is launched.
            cluster = choose_cluster(target, store.clusters.get)
            if target.is_launched:
                launched_testbed(cluster, frozenset({Collective.ALL_REDUCE}), target, environ=os.environ)
            _run(job, store, hidden=quiet or as_json, as_json=as_json)


def _run(job: AutotuneRequest, store: Store, *, hidden: bool, as_json: bool) -> None:
    """Go through the stages, and print the one verdict at the end."""
    from ncclt.cli.profile import print_profile
    from ncclt.cli.tune import run_study
    from ncclt.cli.tune_view import print_result
    from ncclt.cli.verify import KEEP_BYTES
    from ncclt.launch.local import LocalLauncher
    from ncclt.nccl.variables import split_variables
    from ncclt.pipeline.autotune import describe_ceiling, explain_low_ceiling, explain_no_comparison

    launcher = LocalLauncher(keep_env=split_variables(os.environ).of_job, keep_bytes=KEEP_BYTES)
    workload = _workload(job, store, launcher, hidden=hidden)
    end = _End(job=job, workload=workload, where=store.shown, as_json=as_json)
    if not as_json:
        print_profile(workload)
        print(describe_ceiling(workload))
    if why := explain_low_ceiling(workload, min_effect=job.budget.min_effect):
        if not job.force:
            end.show("keep-default", f"nothing to gain: {why} (--force tunes anyway)")
            return
        say(f"ncclt: --force: {why}")
    testbed, request = _study(job, workload, store, ask=True)
    stages = job.stages(testbed.runner.cluster)
    _announce("tune", stages, hidden=hidden)
    result, exit_code = run_study(request, testbed, store, force=job.force, hidden=hidden)
    if not as_json:
        shown = replace(result, source=job.storage)
        print_result(shown, store, again=stages["tune"], steps_per_day=None, quiet=hidden, verbose=False)
    found = result.recommendation
    if found is None:
        # Interrupted, or another worker of the same study does the rest; both were said.
        raise typer.Exit(0 if result.left else exit_code)
    end = replace(end, result=result)
    if why := explain_no_comparison(found, job.argv):
        verdict = found.table.verdict
        end.show(verdict.decision.value, verdict.reason, why=why)
        return
    _announce("compare", stages, hidden=hidden)
    verification = _compared(job, found, store, hidden=hidden)
    replace(end, verification=verification).show(
        verification.word, verification.verdict.reason, use=stages["use"] if verification.word == "tuned" else ""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Results of the stages so far, and their store."""

    job: AutotuneRequest
    workload: Workload
    where: str
    as_json: bool
    result: TuneResult | None = None
    verification: Verification | None = None

    def show(self, decision: str, reason: str, *, use: str = "", why: str = "") -> None:
        """Print the last verdict and how to use it, or everything as one document.

        Args:
            decision, reason: the verdict; that of the study was printed with its result.
            use: the command that uses the result; empty = there is nothing to use, or the study's result says how.
            why: why step times were not compared; empty = they were, or no study was made.
        """
        from ncclt.cli.tune_view import result_document
        from ncclt.cli.verify import print_verification
        from ncclt.core.recommendation import Decision
        from ncclt.profile.views.exposure import bound_gain

        if not self.as_json:
            print()
            if self.verification:
                print_verification(self.verification, self.where, quiet=False)
            else:
                print(why or f"verdict: {decision}: {reason}")
            if self.verification and not use:
                undecided = self.verification.verdict.decision is Decision.UNDECIDED
                doubt = "step times are inconclusive" if undecided else "messages are faster, steps are not"
                print(f"Use:      nothing for this job: {doubt} (`ncclt env` and `ncclt run` still deliver the result)")
            if use:
                print_bold(f"Use:      {use}")
            return
        bound = bound_gain(self.workload)
        tuned = result_document(self.result, steps_per_day=None) if self.result else None
        print_json(
            {
                "schema": AUTOTUNE_SCHEMA,
                "argv": list(self.job.argv),
                "model": self.job.name,
                "exposed_share": bound.share if bound else None,
                "verdict": decision,
                "reason": reason,
                "not_compared": why or None,
                "use": use or None,
                "tune": tuned,
                "verification": self.verification.to_document() if self.verification else None,
            }
        )


def _announce(stage: str, stages: dict[str, str], *, hidden: bool) -> None:
    if not hidden and stage in stages:
        say(f"ncclt: {stage}: {stages[stage]}")


def _workload(job: AutotuneRequest, store: Store, launcher: Launcher, *, hidden: bool) -> Workload:
    """Return the workload of the job, recorded first unless it is stored."""
    from ncclt.pipeline.autotune import record_job

    if (stored := _stored(job, store)) is not None:
        if job.is_recorded and not hidden:
            say(f"ncclt: record: using the recording {job.name} (record again: `ncclt profile record --replace`)")
        return stored
    _announce("record", job.stages(None), hidden=hidden)
    with interruptible():
        try:
            recording = record_job(
                job.argv, name=job.name, steps=job.window, how=job.how, launcher=launcher, environ=os.environ
            )
        except KeyboardInterrupt:
            say("ncclt: interrupted: the job was ended and nothing is stored yet; run the same command to start again")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    assert recording.workload is not None
    for failure in recording.failures:
        say(f"ncclt: recording failed in some ranks, the job continued: {failure}")
    store.workloads.add(recording.workload, replace=False)
    return recording.workload


def _stored(job: AutotuneRequest, store: Store) -> Workload | None:
    """Return the stored workload; None where this run has yet to record it."""
    try:
        return store.workloads.get(job.name)
    except NotFoundError:
        if not job.is_recorded:
            raise
        return None


def _study(job: AutotuneRequest, workload: Workload, store: Store, *, ask: bool) -> tuple[Testbed, TuneRequest]:
    from ncclt.measure.open_testbed import open_testbed
    from ncclt.pipeline.tune import TuneRequest

    request = TuneRequest(workload=workload, budget=job.budget)
    testbed = open_testbed(job.target, store.clusters.get, workload, environ=os.environ, seed=job.budget.seed, ask=ask)
    return testbed, request


def _compared(job: AutotuneRequest, recommendation: Recommendation, store: Store, *, hidden: bool) -> Verification:
    """Return the comparison of the job's step times, the stored one if it was made before."""
    from ncclt.cli.verify import KEEP_BYTES, compare
    from ncclt.launch.local import LocalLauncher
    from ncclt.nccl.variables import split_variables
    from ncclt.pipeline.autotune import find_last_comparison
    from ncclt.prove.step_times import can_resume
    from ncclt.prove.tuned_arm import prepare_comparison

    own = split_variables(os.environ)
    launcher = LocalLauncher(keep_env=own.of_trials, keep_bytes=KEEP_BYTES)
    made = find_last_comparison(store, recommendation, job.argv, job.how, base_env=own.tuning, environ=os.environ)
    if made is None or can_resume(made, job.how):
        earlier = made.launches if made else ()
        if earlier and not hidden:
            say(f"ncclt: compare: resuming after {count_noun(len(earlier), 'stored launch', 'stored launches')}")
        with prepare_comparison(
            recommendation, job.argv, how=job.how, launcher=launcher, environ=os.environ
        ) as request:
            made = compare(request, launcher, store, hidden=hidden, earlier=earlier)
    elif not hidden:
        say(f"ncclt: compare: showing the step times of {made.created}; `ncclt verify` compares again")
    return made


def _print_plan(job: AutotuneRequest, store: Store, *, as_json: bool) -> None:
    """Show the stages with their commands, and what of them is stored."""
    from ncclt.measure.open_testbed import choose_cluster, on_cpus
    from ncclt.pipeline.autotune import describe_ceiling

    cluster, workload, states = None, _stored(job, store), dict.fromkeys(job.stages(None), "to do")
    if workload is None:
        states["tune"] = "after the recording"
        if job.target.is_launched:
            cluster = choose_cluster(job.target, store.clusters.get)
            cluster = on_cpus(cluster) if job.target.is_gloo else cluster
        elif job.target.cluster is not None:
            store.clusters.get(job.target.cluster)  # a mistyped one is refused before anything is recorded
    else:
        testbed, request = _study(job, workload, store, ask=False)
        cluster = testbed.runner.cluster
        states |= {"record": "stored", "look": describe_ceiling(workload), "tune": _state(request, testbed, store)}
    states |= {"compare": "if a gain is validated", "use": "if steps are faster"}
    stages = [{"stage": stage, "state": states[stage], "command": line} for stage, line in job.stages(cluster).items()]
    if as_json:
        print_json({"schema": AUTOTUNE_SCHEMA, "model": job.name, "stages": stages})
        return
    for number, stage in enumerate(stages, start=1):
        print(f"{number} {stage['stage']} ({stage['state']}):\n  {stage['command']}")
    if not job.target.is_launched:
        print("Step times are not compared: recorded and simulated clusters cannot run a job")


def _state(request: TuneRequest, testbed: Testbed, store: Store) -> str:
    """Return the state of the study, as it is stored."""
    from ncclt.pipeline.tune import build_study

    workload, _notes = testbed.cut(request.workload)
    try:
        return f"stored: {store.studies.get(build_study(request, testbed, workload).id).state}"
    except NotFoundError:
        return "to do"
