"""Options of `ncclt run`, and preparation of its job: fetch, decide, place files; `run` handles failures."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from ncclt.cli.configuration import lookup, require_one_source
from ncclt.cli.env import (
    Options,
    add_job,
    add_server,
    add_source_and_conditions,
    allowed_differences,
    check_request,
    find_source,
    job_request,
    named_path,
)
from ncclt.cli.exits import report
from ncclt.cli.render import say
from ncclt.core.attestation import Form
from ncclt.core.recommendation import SHAPE_PARTS
from ncclt.deliver.agree import AGREEMENT_VARIABLE, hook_path, write_hook
from ncclt.deliver.answer import Answer, AnswerSource, answer_from_table, cache_folder, request_answer
from ncclt.deliver.job_info import JobInfo, name_for_rollout, read_job
from ncclt.deliver.job_plan import JobPlan, Means, describe_size_difference, find_plugin, plan_job
from ncclt.deliver.node_files import place_plugin, table_path, write_table
from ncclt.errors import (
    InputError,
    NccltError,
    NoRecommendationError,
    ServerError,
    StartRefused,
    UsageError,
    all_or_none,
    reason,
)
from ncclt.launch.argv import MPI_PROGRAMS
from ncclt.nccl.tuner_plugin.compact_table import POLICY_VARIABLE, table_environment

_DESCRIPTION = """\
Start a job with its validated NCCL settings: the per-size table with the tuner plugin, else variables.

  one node:               ncclt run --cluster leonardo --model bert -- torchrun --nproc-per-node 4 train.py
  srun or mpirun:         ncclt run --cluster ... --model ... -- srun ... python train.py
  torchrun on each node:  ncclt run --cluster ... --model ... --shared /shared/folder -- torchrun --nnodes 2 ...

All nodes of a job get the same settings, or none. Your own NCCL_* variables win, and a job that differs from the
measured one gets none. If anything fails here, the job starts with its own settings, and stderr says why.
The job does not start on wrong usage, with --fallback fail, or if other nodes may have got settings that this process
lacks (--shared, --policy, --job). More: docs/trainer/run.md.

The exit code is that of the job; 2 = wrong usage, 69 = its settings cannot be read, 126 or 127 = its command cannot be
started.
"""


def parser() -> Options:
    """Return the parser of the options before `--`."""
    options = Options(
        prog="ncclt run",
        usage="ncclt run --cluster NAME --model NAME [options] -- COMMAND ...",
        description=_DESCRIPTION,
    )
    add_job(options, model=False)
    folder: dict[str, Any] = {"type": named_path, "metavar": "FOLDER"}
    add = options.add_argument
    add("--shared", help="Path to a folder that all nodes share. [NCCLT_SHARED]", **folder)
    add("--job", metavar="NAME", help="Name of the job, equal on all its nodes and unique. [NCCLT_JOB]")
    add("--report", help="Path to a folder for reports; check the job.", **folder)
    add("--dry-run", action="store_true", help="Print the settings; start nothing.")
    add_source_and_conditions(options)
    add = options.add_argument_group("Delivery").add_argument
    add("--policy", type=named_path, metavar="FILE", help="Path to a table to use, on all nodes.")
    add("--policy-dir", help="Path to a shared folder for plugin and hook.", **folder)
    add("--no-plugin", action="store_true", help="Set variables only.")
    add("--override", action="store_true", help="Replace NCCL_* variables that are set already.")
    add("--wait", type=float, default=30.0, metavar="SECONDS", help="Max seconds to wait for other nodes; default: 30.")
    add("--step-times", action="store_true", help="With --report: time some steps for a roll-out.")
    fallbacks = {"cached": "use its last answer (default)", "none": "set nothing"}
    fallbacks["fail"] = "do not start the job, whatever fails"
    server = add_server(options, timeout_s=2.0, fallbacks=fallbacks)
    server.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
    return options


def parsed(options: Sequence[str], command: Sequence[str]) -> argparse.Namespace:
    """Parse the options; exit with the code for wrong usage if they are invalid.

    Raises:
        SystemExit: they are invalid, or --help is among them.
    """
    run_parser = parser()
    arguments = run_parser.parse_args(options)
    arguments.allow_difference = allowed_differences(arguments.allow_difference)
    try:
        _check(arguments, command)
    except UsageError as error:
        run_parser.exit(report(error))
    return arguments


def _check(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    if not any(command[:1]):  # also an empty word, as of a variable that is not set
        raise UsageError("no command to run", hint="put it after --: ncclt run --cluster C --model M -- torchrun ...")
    if arguments.policy is None and not arguments.model:
        raise UsageError("--model is needed", hint="or --policy FILE; put the command after --")
    check_request(arguments)
    if not 0 <= arguments.wait <= 600:
        raise UsageError(f"--wait must be 0 to 600 seconds, not {arguments.wait:g}")
    require_one_source(arguments.server, arguments.storage)
    if arguments.policy is not None and arguments.shared is not None:
        raise UsageError("--policy is a decision already: --shared has nothing to decide", hint="leave one of them out")
    if arguments.step_times and arguments.report is None:
        raise UsageError("--step-times needs --report", hint="name a folder that all nodes share")
    if arguments.policy is not None and arguments.no_plugin:
        raise UsageError("--policy is a table for the plugin", hint="leave --no-plugin out")


_WAYS = (
    "--shared FOLDER on every node, one `ncclt run` around srun or mpirun, --policy FILE, or --server with --job NAME"
)

GetSource = Callable[[], AnswerSource]
"""Returns the server or the store, which are looked up on first use."""

_warn = cache(say)
"""Prints each line once: several values may be looked up in one file."""


def prepared(arguments: argparse.Namespace, command: Sequence[str]) -> JobPlan:
    """Decide what the command is given, and prepare it.

    Args:
        arguments: as `parsed` returns them.
        command: at least one word.

    Raises:
        StartRefused: other processes of the job have, or may have, what this one lacks.
        Exception: nothing can be given.
    """
    where = cache(partial(find_source, arguments, warn=_warn))
    shared = _shared_folder(arguments)
    with all_or_none() if arguments.policy is not None or shared is not None else nullcontext():
        job = read_job(
            command, os.environ, named=arguments.job, nodes=arguments.nodes, gpus_per_node=arguments.gpus_per_node
        )
        plugin, why = (None, "") if arguments.no_plugin else find_plugin()
        if why:
            say(f"ncclt: {why}")
        if arguments.policy is not None:
            return _start(arguments, job, where, _follow_table(arguments, job, plugin))
        if shared is not None and (job.is_named or not job.decides_alone):
            return _start(arguments, job, where, _agree(arguments, job, where, shared, plugin))
    return _start(arguments, job, where, _decide(arguments, job, where, plugin))


def _follow_table(arguments: argparse.Namespace, job: JobInfo, plugin: Path | None) -> JobPlan:
    """Return the plan of the table of --policy; other nodes may be able to read it even if this one cannot."""
    if plugin is None:
        raise UsageError("--policy needs the tuner plugin", hint="build it with `ncclt admin plugin build`")
    answer = answer_from_table(arguments.policy.absolute())
    options = {part: getattr(arguments, part) for part in SHAPE_PARTS}
    if difference := describe_size_difference(answer, job, options):
        say(f"ncclt: {difference}; not validated for this job")
    return _as_common(_plan(arguments, job, answer, plugin), job)


def _as_common(plan: JobPlan, job: JobInfo) -> JobPlan:
    """Return a plan that the job's other processes follow as well, each by itself.

    Raises:
        StartRefused: this process cannot, and they cannot know.
    """
    answer = plan.answer
    if answer is not None and not answer.is_empty and plan.form is None and not job.decides_alone:
        raise StartRefused(
            UsageError(
                f"other nodes of this job may use {answer.recommendation}, and this one cannot: {plan.notes[-1]}",
                hint="ranks that disagree hang or corrupt data, so this process does not start; --shared FOLDER lets "
                "the nodes compare, and starts all of them alike",
            )
        )
    return replace(plan, is_common=True)


def _agree(arguments: argparse.Namespace, job: JobInfo, where: GetSource, shared: Path, plugin: Path | None) -> JobPlan:
    """Return the plan on which the processes of the job agree."""
    from ncclt.deliver.shared_job import agree

    def plan(answer: Answer, form: Form | None) -> JobPlan:
        return _plan(arguments, job, answer, None if form is Form.VARIABLES else plugin)

    cluster = arguments.cluster
    try:
        cluster = cluster or lookup("cluster", warn=_warn).value
    except UsageError as error:
        # An unreadable file names no cluster; that all nodes agree on that is checked below.
        say(f"ncclt: {error.message}")
    question = f"{arguments.model} on {cluster or ''}"
    for name in SHAPE_PARTS:
        value = getattr(arguments, name)
        question += "" if value is None else f", {name.replace('_', ' ')} {value}"
    return agree(
        arguments,
        shared,
        job,
        question=question,
        ask=partial(_ask, arguments, job, where, from_cache=arguments.fallback == "cached"),
        plan=plan,
        tell=say,
    )


def _decide(arguments: argparse.Namespace, job: JobInfo, where: GetSource, plugin: Path | None) -> JobPlan:
    """Return the plan of this process alone.

    Raises:
        StartRefused: the server keeps one answer for the job, which other nodes may have got, and this one has not.
    """
    if job.decides_alone:
        answer = _ask(arguments, job, where, from_cache=arguments.fallback == "cached")
        runs_once = job.starts_elsewhere or job.is_batch_script or arguments.policy_dir is not None
        nodes = max(job.shown_nodes, answer.nodes)
        if runs_once or nodes == 1:
            return _plan(arguments, job, answer, plugin)
        return _set_nothing(arguments, f"the job has {nodes} nodes, and their launcher is unknown")
    if not (job.is_named and where().server):
        return _set_nothing(arguments, "each process of this job would decide alone, and ranks that disagree hang")
    try:
        answer = _ask(arguments, job, where, from_cache=False, per_job=True)
    except NccltError as error:
        raise StartRefused(
            ServerError(
                f"other nodes of this job may have an answer, and this one has none: {error.message}",
                hint="ranks that disagree hang or corrupt data, so this process does not start",
            )
        ) from error
    if not answer.job:
        return _set_nothing(arguments, "the server does not keep one answer per job")
    if answer.refusal and arguments.fallback == "fail":
        raise NoRecommendationError(answer.refusal)
    with all_or_none():
        plan = _plan(arguments, job, answer, plugin)
        if answer.table and plugin is None and not arguments.no_plugin:
            raise UsageError(
                "other nodes of this job may use the table, and this one lacks the tuner plugin",
                hint="build it with `ncclt admin plugin build`, or give --no-plugin on all nodes",
            )
    return _as_common(plan, job)


def _set_nothing(arguments: argparse.Namespace, why: str) -> JobPlan:
    if arguments.fallback == "fail":
        raise UsageError(why, hint=f"so that all nodes get the same settings, use {_WAYS}")
    return JobPlan(notes=(f"Nothing set: {why}", f"so that all nodes get the same settings, use {_WAYS}"))


def _ask(
    arguments: argparse.Namespace, job: JobInfo, where: GetSource, *, from_cache: bool, per_job: bool = False
) -> Answer:
    cluster = arguments.cluster or lookup("cluster", warn=_warn).value
    if not cluster:
        raise UsageError("no cluster is named", hint="--cluster NAME, NCCLT_CLUSTER, or `cluster` in ncclt.toml")
    source = where()
    with job_request(arguments, job, cluster) as request:
        answer = request_answer(request, source, from_cache=from_cache, warn=say, per_job=per_job)
    return answer if answer.job == request.job else replace(answer, job="")


def _shared_folder(arguments: argparse.Namespace) -> Path | None:
    """Return the folder of the job's one decision; None with --policy, which is a decision already."""
    if arguments.shared is None and arguments.policy is None and os.environ.get("NCCLT_SHARED"):
        return Path(os.environ["NCCLT_SHARED"])
    folder: Path | None = arguments.shared
    return folder


def _plan(arguments: argparse.Namespace, job: JobInfo, answer: Answer, plugin: Path | None) -> JobPlan:
    """Plan what an answer gives, and place the files that it needs where all nodes read them."""
    place = arguments.policy_dir or _shared_folder(arguments)
    folder = place or cache_folder() / "tables"
    path = (arguments.policy or table_path(folder, answer.table)).absolute()

    means = Means(
        plugin=plugin,
        table=table_environment(answer.table, path),
        hook=hook_path(folder),
        shared=place is not None or arguments.policy is not None,
        override=arguments.override,
        allowed=arguments.allow_difference,
    )
    planned = plan_job(answer, job, means)
    if plugin is None or arguments.dry_run or planned.form is not Form.TABLE:
        return planned
    if place is not None and place == _shared_folder(arguments):
        from ncclt.deliver.shared_decision import require_folder

        require_folder(place)
    try:
        names = dict(planned.set_env)
        if POLICY_VARIABLE in names and arguments.policy is None:
            write_table(path, answer.table)
        if AGREEMENT_VARIABLE in names:
            write_hook(hook_path(folder))
        reaches_others = not job.is_started_on_every_node and (answer.nodes > 1 or job.starts_elsewhere)
        if place is not None and reaches_others and "NCCL_TUNER_PLUGIN" not in job.environ:
            return plan_job(answer, job, replace(means, plugin=place_plugin(place, plugin)))
        return planned
    except OSError as error:
        failure = f"cannot write the files of the ranks to {folder}: {reason(error)}"
        if arguments.fallback == "fail" or not job.decides_alone:
            raise UsageError(failure) from error
        say(f"ncclt: {failure}")
    return plan_job(answer, job, replace(means, plugin=None))


def _start(arguments: argparse.Namespace, job: JobInfo, where: GetSource, plan: JobPlan) -> JobPlan:
    """Return the plan with the command and its final environment."""
    for note in plan.notes:
        say(f"ncclt: {note}")
    if arguments.dry_run and plan.form is not None and plan.answer is not None:
        has_same_bits = plan.answer.document.get("same_bits", {}).get(plan.form.value, "unknown")
        say(f"ncclt: Same bits as the NCCL default: {has_same_bits}")
    environ = {name: value for name, value in job.environ.items() if name not in plan.unset_env}
    added = dict(plan.set_env)
    folder = None
    # Also where nothing could be set: left out, such jobs would be missing from the candidate's side alone.
    timed = arguments.step_times and plan.answer is not None and bool(plan.answer.rollout)
    if arguments.report is not None and (plan.form is not None or timed) and not arguments.dry_run:
        folder = _report_folder(arguments)
    if folder is not None and plan.form is not None:
        added |= _sources(folder, plan, environ)
    if folder is not None and timed:
        from ncclt.cli.run_report import timed_variables

        added |= timed_variables(folder, job.argv, environ)
    if arguments.dry_run:
        for name, value in sorted(added.items()):
            say(f"{name}={value}")
    words = tuple(job.argv)
    if added and Path(words[0]).name in MPI_PROGRAMS:  # Open MPI forwards only what is named
        from ncclt.launch.mpi import forward_variables, is_open_mpi

        open_mpi = is_open_mpi(words[0], environ=environ)
        words, for_options = forward_variables(words, tuple(sorted(added)), environ=environ, open_mpi=open_mpi)
        added |= for_options
    plan = replace(plan, argv=words, environ=environ | added)
    if folder is not None and plan.answer is not None:
        from ncclt.cli.run_report import JobReport, run_and_attest

        name = name_for_rollout(os.environ, job.argv, named=arguments.job, nodes=arguments.nodes) if timed else ""
        job_report = JobReport(folder=folder, source=where, job=name)
        plan = replace(plan, run=partial(run_and_attest, plan, job_report))
    return plan


def _report_folder(arguments: argparse.Namespace) -> Path | None:
    """Make the report folder of this start; None = failed, which is printed and does not stop the training."""
    import tempfile

    base: Path = arguments.report
    try:
        base.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="ncclt-run-", dir=base.absolute()))
    except OSError as error:
        failure = f"cannot write to {base}: {reason(error)}"
        if arguments.fallback == "fail":
            raise InputError(failure, hint="name a folder that all nodes share with --report") from error
        say(f"ncclt: reports skipped: {failure}")
        return None


def _sources(folder: Path, plan: JobPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make the job record what it used: in the plugin's reports, else in NCCL's log."""
    if plan.form is Form.TABLE:
        return {"NCCLT_PLUGIN_REPORT": str(folder)}
    if "NCCL_DEBUG" in environ:
        say("ncclt: log skipped: your NCCL_DEBUG is kept; `ncclt attest` reads your log if it has TUNING lines")
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        # NCCL fills in host and process, and reads %% as % (src/debug.cc).
        "NCCL_DEBUG_FILE": f"{str(folder).replace('%', '%%')}/nccl.%h.%p.log",
    }
