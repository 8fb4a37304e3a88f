"""`ncclt doctor`: find what is wrong with a set-up before measuring on it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, Fields, spread
from ncclt.cli.render import Column, print_json, print_table, print_text, say
from ncclt.core.cluster import Cluster
from ncclt.core.duration import format_duration
from ncclt.core.message import Collective, format_bytes
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Decision, Request
from ncclt.deliver.render.delivery import deliver_variables
from ncclt.errors import InputError, UsageError
from ncclt.health.doctor import RULES, Diagnosis, Facts
from ncclt.health.doctor.diagnosis import SCHEMA
from ncclt.health.doctor.examine import build_unknown_cluster, examine_files, examine_here, start_log
from ncclt.health.doctor.facts import JobRun
from ncclt.health.doctor.matrix import TopologyMatrix
from ncclt.health.doctor.settings import SetVariable
from ncclt.launch import launcher_names
from ncclt.measure.open_testbed import choose_benchmark, create_launcher
from ncclt.measure.target import Target
from ncclt.nccl.log.facts import LogFacts, LoggedChoice
from ncclt.store import chosen, open_to_read

app = typer.Typer()

EXIT_CODES = {"healthy": 0, "broken": 1, "degraded": 4, "incomplete": 4}
"""Verdict -> exit code: 1 = do not measure here, 4 = works, but below its potential or not fully examined."""

_TARGET_FIELDS = Fields(
    "cluster model nccl_version launcher launcher_option nodes gpus_per_node hosts nccl_tests",
    {
        "cluster": Option("Name of the cluster to compare with.", envvar="NCCLT_CLUSTER"),
        "nccl_version": Option("NCCL version of the job, if no log shows it."),
        "launcher": Option("Also run a small all_reduce by local, torchrun, mpirun, slurm or ssh."),
        "nodes": Option("Nodes of that all_reduce."),
        "gpus_per_node": Option("GPUs per node of that all_reduce."),
        "hosts": Option("Comma-separated nodes of that all_reduce.", comma=True),
    },
)
"""Options for the one all_reduce; their help differs from that for trials."""

_SOURCES = Option("Path to saved output of nvidia-smi or NCCL, or a folder; repeatable.", flag="--from")
_Words = Annotated[
    list[str] | None, typer.Argument(metavar="-- COMMAND", help="Job to run and examine; with --from: more files.")
]


@app.command(
    epilog="Exit codes: 0 = all examined, only notes, 1 = a finding of severity error, 2 = unusable input, "
    "4 = warnings, or a part was not examined: the last line names it; of a job that fails: the exit code of the job."
)
@spread
def doctor(
    from_: Annotated[list[Path] | None, _SOURCES] = None,
    words: _Words = None,
    *,
    target: Annotated[Target, _TARGET_FIELDS],
    model: Annotated[str | None, Option("Workload whose recommendation to compare with the files.")] = None,
    rules: Annotated[bool, Option("List all rules.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find broken settings, links and GPUs of a node or a job.

    Examines this machine (NCCL_* variables, nccl.conf, RDMA devices, GPUs), or with --from saved files of a job:
    `nvidia-smi topo -m`, `nvidia-smi -q -x`, NCCL logs and topology dumps, nccl.conf.

    With -- COMMAND it also runs your job with NCCL's log switched on, ends it after ten training steps (without
    PyTorch: a minute after NCCL starts), and shows what NCCL uses.
    """
    storage = storage_url()
    if rules:
        print_rules(as_json=as_json)
        return
    sources = [*from_, *map(Path, words or [])] if from_ else []
    command = [] if from_ else words or []
    _require_one_way(target, sources, command)
    context = _read_context(target, model, storage)
    if sources:
        try:
            diagnosis = examine_files(sources, context)
        except InputError as error:  # its usual exit code would read as a finding
            raise UsageError(error.message, hint=error.hint) from error
    else:
        if target.launcher:
            log, missing = _start(target, context.cluster)
            context = replace(context, log=log, missing=missing)
        elif command:
            from ncclt.health.doctor.job import run_job

            sys.stdout.flush()
            run = run_job(command, os.environ, to_stderr=as_json)
            context = replace(context, log=run.log, job=run.job, missing=run.missing)
        diagnosis = examine_here(os.environ, context)
    if as_json:
        print_json(diagnosis)
    else:
        print_diagnosis(diagnosis)
    job = diagnosis.facts.job
    raise typer.Exit(job.exit_code if job and job.has_failed else EXIT_CODES[diagnosis.verdict])


def _require_one_way(target: Target, sources: Sequence[Path], command: Sequence[str]) -> None:
    """Refuse options that contradict each other, or have no effect."""
    if sources and target.launcher:
        raise UsageError("--from examines files, --launcher this cluster", hint="give one of them")
    if command and target.launcher:
        raise UsageError("the job's command has its own launcher", hint="leave out --launcher")
    if command and Path(command[0]).is_file() and shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]} is a file, not a command", hint=f"ncclt doctor --from {command[0]}")
    if not target.launcher and (target.launcher_option or target.hosts or target.nccl_tests):
        raise UsageError("--launcher-option, --hosts and --nccl-tests need --launcher, which starts an all_reduce")


def _read_context(target: Target, model: str | None, storage: str | None) -> Facts:
    """Return the cluster, version and recommendation that the user names; none of the last for keep-default."""
    version = NcclVersion.parse(target.nccl_version) if target.nccl_version else None
    cluster = None
    if target.cluster is not None:
        with open_to_read(storage) as store:
            cluster = store.clusters.get(target.cluster).sized(nodes=target.nodes, gpus_per_node=target.gpus_per_node)
    variables: dict[str, str] = {}
    if model is not None:
        if target.cluster is None:
            raise UsageError("--model needs --cluster NAME")
        recommendation = chosen(storage, Request(cluster=target.cluster, model=model), partly=True)
        if recommendation.table.verdict.decision is Decision.TUNED:
            variables["NCCL_TUNER_PLUGIN"] = "ncclt"
        variables |= dict(deliver_variables(recommendation).variables)
    return Facts(cluster=cluster, version=version, recommended=tuple(sorted(variables.items())))


def _start(target: Target, cluster: Cluster | None) -> tuple[LogFacts, tuple[str, ...]]:

    if target.launcher not in (names := launcher_names()):
        raise UsageError(
            f"unknown launcher {target.launcher!r} to start anything by", hint=f"one of {', '.join(names)}"
        )
    if cluster is None:
        if target.gpus_per_node is None:
            raise UsageError(
                "--launcher needs --cluster NAME or --gpus-per-node, to know how many ranks to start",
                hint="or run the job with NCCL_DEBUG=INFO and give its log by --from",
            )
        cluster = build_unknown_cluster(nodes=target.nodes or 1, gpus_per_node=target.gpus_per_node)
    target = target.resolved(os.environ)
    say(f"ncclt: starting one all_reduce of {count_noun(cluster.world_size, 'rank')} by {target.launcher}")
    launcher = create_launcher(cluster, target, target.hosts, environ=os.environ, own_tuning=True)
    benchmark, _ = choose_benchmark(cluster, target, launcher, frozenset({Collective.ALL_REDUCE}))
    return start_log(launcher, benchmark, cluster)


_MOST_NICS = 16
"""Most columns of NICs shown; virtual functions make dozens."""

_MOST_VALUES = 4
"""Most values shown of one variable; some differ on every rank."""


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Write the matrix, what is in use, and the findings, the worst first."""
    facts, job = diagnosis.facts, diagnosis.facts.job
    if job:
        # Its output may end within a line.
        print_text(f"\njob: {shlex.join(job.argv)}\n     {job.ending}\n")
    for matrix in facts.matrices:
        _print_matrix(matrix)
    _print_settings(diagnosis)
    for comparison in diagnosis.published:
        total = len(comparison.same) + len(comparison.different)
        equal = f"{len(comparison.same)} of {total} variables are set as published"
        print_text(f"network like that of {comparison.machine}: {equal}")
        if comparison.different:
            rows = [(name, value, current or "not seen") for name, value, current in comparison.different]
            print_table(rows, [Column("variable"), Column("published"), Column("here")])
        print_text(f"  source {comparison.source}; a difference is not an error\n")
    _print_use(facts)
    _print_communicators(facts.log)
    if job:
        _print_exposed(job)
    for finding in diagnosis.findings:
        print_text(f"{finding.severity.value} {finding.id}: {finding.what}")
        for line in finding.evidence:
            print_text(f"  seen {line}")
        print_text(f"  why  {finding.why}\n  fix  {finding.fix}\n")
    for missing in facts.missing:
        print_text(f"missing: {missing}")
    for parts, why, how in diagnosis.gaps:
        print_text(f"not examined: {parts}: {why}; {how}")
    print_text(f"verdict: {diagnosis.summary}")
    if job and not (facts.log.lines or job.other_backends):
        print_text(f"seen without NCCL's log: {job.seen}")


def print_rules(*, as_json: bool) -> None:
    """Write every rule with its reason."""
    if as_json:
        print_json({"schema": SCHEMA, "rules": RULES})
        return
    for rule in RULES:
        print_text(f"{rule.id} {rule.severity.value}: {rule.title}")
        print_text(f"  why  {rule.why}\n  fix  {rule.fix}\n  from {rule.source}")


def _print_matrix(matrix: TopologyMatrix) -> None:
    nics = matrix.nics[:_MOST_NICS]
    hidden = len(matrix.nics) - len(nics)
    rows = []
    for gpu, affinity in zip(matrix.gpus, matrix.cpu_affinity, strict=True):
        devices: tuple[int | str, ...] = (*matrix.gpus, *nics)
        links = [matrix.link(gpu, device) for device in devices]
        rows.append((f"GPU{gpu}", *(link.word if link else "?" for link in links), affinity))
    further = f"; {hidden} more NICs are not shown" if hidden else ""
    print_text(f"topology of {matrix.source}, hash {matrix.topology_hash()}{further}")
    print_table(rows, [Column(title) for title in (" ", *(f"GPU{gpu}" for gpu in matrix.gpus), *nics, "CPUs")])
    print_text("")


def _print_settings(diagnosis: Diagnosis) -> None:
    """Write every variable that is set, who set it, and how many processes of NCCL say that they read it."""
    facts = diagnosis.facts
    by_name: dict[str, list[SetVariable]] = defaultdict(list)
    for setting in diagnosis.settings:
        by_name[setting.name].append(setting)
    rows = []
    for name, settings in by_name.items():
        for setting in sorted(settings, key=lambda setting: -setting.processes)[:_MOST_VALUES]:
            read_by = count_noun(setting.processes, "process", "processes") if setting.processes else "not in the log"
            rows.append((name, setting.value, setting.kind.value, setting.set_by, read_by))
        if len(settings) > _MOST_VALUES:
            rows.append((name, f"... {count_noun(len(settings) - _MOST_VALUES, 'more value')} (--json)", "", "", ""))
    if rows:
        columns = [Column("variable"), Column("value"), Column("class", drop=2), Column("set by"), Column("read by")]
        print_table(rows, columns if facts.log.lines else columns[:-1])
    elif facts.log.lines or facts.here:
        print_text(f"no NCCL variable is set{' in the log' if not facts.here else ''}")
    print_text("")


def _print_communicators(log: LogFacts) -> None:
    kinds = log.communicators()
    rows = []
    for kind in kinds:
        size = count_noun(kind.ranks, "rank") if kind.ranks else "ranks unknown"
        nodes = count_noun(kind.nodes, "node") if kind.nodes else "nodes unknown"
        channels = ", ".join(f"{count} {word}" for word, count in kind.channels.items())
        transports = ", ".join(f"{name} x{count}" for name, count in kind.transports.items())
        choices = _format_choices(kind.choices)
        rows.append((f"{kind.count} x {size}, {nodes}", channels or None, transports or None, choices or None))
    titles = ("communicators", "channels", "transports", "algorithm/protocol")
    if rows:
        print_table(rows, [Column(title) for title in titles])
    shown = {id(choice) for kind in kinds for choice in kind.choices}
    if unnamed := [choice for choice in log.choices if id(choice) not in shown]:
        print_text(f"chosen in communicators that the log does not name: {_format_choices(unnamed)}")
    if rows or unnamed:
        print_text("")


def _format_choices(choices: Sequence[LoggedChoice]) -> str:
    """Write decisions by collective, those of all ranks 0 together; sizes are as NCCL logs them."""
    by_operation: dict[str, dict[str, list[LoggedChoice]]] = {}
    for choice in choices:
        by_operation.setdefault(choice.operation or "collective", {}).setdefault(choice.choice, []).append(choice)
    return "; ".join(
        f"{operation} {', '.join(_format_choice(name, alike) for name, alike in by_choice.items())}"
        for operation, by_choice in by_operation.items()
    )


def _format_choice(name: str, choices: Sequence[LoggedChoice]) -> str:
    low = format_bytes(min(choice.smallest_bytes for choice in choices))
    high = format_bytes(max(choice.largest_bytes for choice in choices))
    sizes = low if low == high else f"{low} to {high}"
    return f"{name} {sizes} ({count_noun(sum(choice.calls for choice in choices), 'call')})"


def _print_exposed(job: JobRun) -> None:
    share = job.exposed_share
    if share is not None and job.workload is not None and job.workload.step_time_us:
        step = format_duration(job.workload.step_time_us)
        result = f"{share * 100:.1f} % of a step of {step}; no NCCL setting can gain more"
    else:
        why = job.unrecorded or "it needs steps with GPU kernels, recorded by PyTorch's profiler"
        result = f"unknown: {why}"
    print_text(f"exposed communication: {result}\n")


def _print_use(facts: Facts) -> None:
    document = facts.to_document()
    log = document["log"]
    rows = [("RCCL", document["rccl_version"])] if facts.rccl else [("NCCL", document["nccl_version"] or "unknown")]
    if log:
        disabled = "; ".join(
            f"{name}: {', '.join(words)}" for name, words in log["disabled_algorithms"].items() if words
        )
        rows += [
            ("ranks", f"{log['ranks'] or '?'}, nodes: {log['nodes'] or '?'}, processes in the log: {log['processes']}"),
            ("network", ", ".join(log["networks"]) or "none in the log"),
            ("NICs", _list_nics(facts.log)),
            ("not used", disabled or "no table in the log"),
        ]
    for topology in facts.topologies:
        rows += [(f"GPU{gpu.index}", str(gpu)) for gpu in topology.gpus]
        rows += [(nic.name, str(nic)) for nic in topology.nics]
    print_table(rows, [Column("item"), Column("value")])
    print_text("")


def _list_nics(log: LogFacts) -> str:
    """List the adapters of all processes, or the interfaces where NCCL uses sockets."""
    adapters = {name: layer for process in log.processes for name, layer in process.adapters.items()}
    interfaces = {name for process in log.processes for kind, name in process.sockets if kind == "NET/Socket"}
    providers = {process.provider.value for process in log.processes if process.provider}
    nics = [f"{name} ({layer})" for name, layer in sorted(adapters.items())] or sorted(interfaces)
    return ", ".join([*nics, *(f"libfabric provider {name}" for name in sorted(providers))]) or "none in the log"
