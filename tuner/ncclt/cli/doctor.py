"""`ncclt doctor`: find what is wrong with a set-up before measuring on it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.completion import model_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, Fields, spread
from ncclt.cli.output import print_json, print_table, say
from ncclt.core.duration import format_duration
from ncclt.core.message import format_bytes
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.errors import InputError, UsageError
from ncclt.health.doctor import RULES, Diagnosis, Facts
from ncclt.health.doctor.diagnosis import SCHEMA
from ncclt.health.doctor.matrix import TopologyMatrix
from ncclt.measure.target import Target

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.health.doctor.facts import JobRun
    from ncclt.health.doctor.published import PublishedComparison
    from ncclt.health.doctor.settings import SetVariable
    from ncclt.nccl.log.facts import LogFacts, LoggedChoice


app = typer.Typer()

EXIT_CODES = {"healthy": 0, "broken": 1, "degraded": 4, "incomplete": 4}
"""Verdict -> exit code: 1 = do not measure here, 4 = works, but below its potential or not fully examined."""


_OF_ONE_START = {
    "cluster": Option("Name of the cluster to compare with.", envvar="NCCLT_CLUSTER"),
    "nccl_version": Option("NCCL version of the job, if no log shows it."),
    "launcher": Option("Also run a small all_reduce by local, torchrun, mpirun, slurm or ssh."),
    "nodes": Option("Nodes of that all_reduce."),
    "gpus_per_node": Option("GPUs per node of that all_reduce."),
    "hosts": Option("Comma-separated nodes of that all_reduce.", comma=True),
}
"""Help of the options for the one all_reduce, where it differs from that for trials."""


@app.command(
    epilog="Exit codes: 0 = all examined, only notes, 1 = a finding of severity error, 2 = unusable input, "
    "4 = warnings, or a part was not examined: the last line names it; of a job that fails: the exit code of the job."
)
@spread
def doctor(
    from_: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            help="Path to saved output of nvidia-smi or NCCL, or a folder; repeatable.",
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="Job to run and examine; with --from: more files."),
    ] = None,
    *,
    target: Annotated[
        Target,
        Fields(
            "cluster model nccl_version launcher launcher_option nodes gpus_per_node hosts nccl_tests", _OF_ONE_START
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="Workload whose recommendation to compare with the files.",
            autocompletion=model_names,
        ),
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List all rules.")] = False,
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
        print_json(rules_document()) if as_json else print_rules()
        return
    sources = [*from_, *map(Path, words or [])] if from_ else []
    command = [] if from_ else words or []
    if sources and target.launcher:
        raise UsageError("--from examines files, --launcher this cluster", hint="give one of them")
    if command and target.launcher:
        raise UsageError("the job's command has its own launcher", hint="leave out --launcher")
    if command and _is_data(command[0]):
        raise UsageError(f"{command[0]} is a file, not a command", hint=f"ncclt doctor --from {command[0]}")
    if not target.launcher and (target.launcher_option or target.hosts or target.nccl_tests):
        raise UsageError("--launcher-option, --hosts and --nccl-tests need --launcher, which starts an all_reduce")
    from ncclt.core.nccl_version import NcclVersion

    version = NcclVersion.parse(target.nccl_version) if target.nccl_version else None
    meant = None
    if target.cluster is not None:
        from ncclt.store import open_to_read

        with open_to_read(storage) as store:
            meant = store.clusters.get(target.cluster).sized(nodes=target.nodes, gpus_per_node=target.gpus_per_node)
    recommended = _recommended(model, target.cluster, storage)
    from ncclt.health.doctor.examine import examine_files, examine_here

    given = Facts(cluster=meant, version=version, recommended=recommended)
    if sources:
        try:
            diagnosis = examine_files(sources, given)
        except InputError as error:  # its usual exit code would read as a finding
            raise UsageError(error.message, hint=error.hint) from error
    else:
        if target.launcher:
            log, missing = _start(target, meant)
            given = changed(given, log=log, missing=missing)
        elif command:
            from ncclt.health.doctor.job import run_job

            sys.stdout.flush()
            ran = run_job(command, os.environ, to_stderr=as_json)
            given = changed(given, log=ran.log, job=ran.job, missing=ran.missing)
        diagnosis = examine_here(os.environ, given)
    if as_json:
        print_json(diagnosis.to_document())
    else:
        print_diagnosis(diagnosis)
    job = diagnosis.facts.job
    raise typer.Exit(job.exit_code if job and job.has_failed else EXIT_CODES[diagnosis.verdict])


def _is_data(word: str) -> bool:
    """Return True for a file that cannot be run, as of `ncclt doctor job.log`."""
    return Path(word).is_file() and shutil.which(word) is None


def _recommended(model: str | None, cluster: str | None, storage: str | None) -> tuple[tuple[str, str], ...]:
    """Return the variables of the published recommendation; none for keep-default."""
    if model is None:
        return ()
    if cluster is None:
        raise UsageError("--model needs --cluster NAME")
    from ncclt.core.recommendation import Decision, Request
    from ncclt.deliver.render.delivery import deliver_variables
    from ncclt.store import chosen

    found = chosen(storage, Request(cluster=cluster, model=model), partly=True)
    table = {"NCCL_TUNER_PLUGIN": "ncclt"} if found.table.verdict.decision is Decision.TUNED else {}
    return tuple(sorted({**table, **dict(deliver_variables(found).variables)}.items()))


def _start(target: Target, cluster: Cluster | None) -> tuple[LogFacts, tuple[str, ...]]:
    from ncclt.core.message import Collective
    from ncclt.health.doctor.examine import build_unknown_cluster, start_log
    from ncclt.launch import launcher_names
    from ncclt.measure.open_testbed import choose_benchmark, create_launcher

    if target.launcher not in (known := launcher_names()):
        raise UsageError(
            f"unknown launcher {target.launcher!r} to start anything by", hint=f"one of {', '.join(known)}"
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
    starter = create_launcher(cluster, target, target.hosts, environ=os.environ, own_tuning=True)
    runs, _ = choose_benchmark(cluster, target, starter, frozenset({Collective.ALL_REDUCE}))
    return start_log(starter, runs, cluster)


_WIDTH = 117
"""Most columns of a paragraph."""

_MOST_NICS = 16
"""Most columns of NICs shown; virtual functions make dozens."""


_MOST_VALUES = 4
"""Most values shown of one variable; some differ on every rank."""


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Write the matrix, what is in use, and the findings, the worst first."""
    job = diagnosis.facts.job
    if job:
        print()  # its output may end within a line
        _folded("job: ", shlex.join(job.argv))
        _folded("     ", job.ending)
        print()
    for matrix in diagnosis.facts.matrices:
        _print_matrix(matrix)
    _print_settings(diagnosis)
    for comparison in diagnosis.published:
        _print_published(comparison)
    _print_use(diagnosis)
    _print_communicators(diagnosis.facts.log)
    if job:
        _print_exposed(job)
    for finding in diagnosis.findings:
        _folded(f"{finding.severity.value} {finding.id}: ", finding.what)
        for line in finding.evidence:
            _indented("seen", str(line))
        _indented("why", finding.why)
        _indented("fix", finding.fix)
        print()
    for missing in diagnosis.facts.missing:
        _folded("missing: ", missing)
    for parts, why, how in diagnosis.gaps:
        _folded("not examined: ", f"{parts}: {why}; {how}")
    print(f"verdict: {diagnosis.summary}")
    if job and not (diagnosis.facts.log.lines or job.other_backends):
        _folded("seen without NCCL's log: ", job.seen)


def print_rules() -> None:
    """Write every rule with its reason."""
    for rule in RULES:
        print(f"{rule.id} {rule.severity.value}: {rule.title}")
        _indented("why", rule.why)
        _indented("fix", rule.fix)
        _indented("from", rule.source)


def rules_document() -> dict[str, Any]:
    """Return every rule as a JSON object."""
    return {"schema": SCHEMA, "rules": [rule.to_document() for rule in RULES]}


def _print_matrix(matrix: TopologyMatrix) -> None:
    nics = matrix.nics[:_MOST_NICS]
    names = [f"GPU{gpu}" for gpu in matrix.gpus]
    rows = []
    for gpu, affinity in zip(matrix.gpus, matrix.cpu_affinity, strict=True):
        others: tuple[int | str, ...] = (*matrix.gpus, *nics)
        links = [matrix.link(gpu, other) for other in others]
        words = [link.word if link else "?" for link in links]
        rows.append((f"GPU{gpu}", *words, affinity))
    left = len(matrix.nics) - len(nics)
    more = f"; {left} more NICs are not shown" if left else ""
    print(f"topology of {matrix.source}, hash {matrix.topology_hash()}{more}")
    print_table((" ", *names, *nics, "CPUs"), rows)
    print()


def _print_settings(diagnosis: Diagnosis) -> None:
    """Write every variable that is set, who set it, and how many processes of NCCL say that they read it."""
    log = diagnosis.facts.log
    by_name: dict[str, list[SetVariable]] = {}
    for setting in diagnosis.settings:
        by_name.setdefault(setting.name, []).append(setting)
    rows = []
    for name, found in by_name.items():
        for setting in sorted(found, key=lambda one: -one.processes)[:_MOST_VALUES]:
            read_by = count_noun(setting.processes, "process", "processes") if setting.processes else "not in the log"
            rows.append((name, setting.value, setting.kind.value, setting.set_by, read_by))
        if len(found) > _MOST_VALUES:
            more = count_noun(len(found) - _MOST_VALUES, "more value")
            rows.append((name, f"... {more} (--json)", "", "", ""))
    header = ("variable", "value", "class", "set by", "read by")
    if rows and log.lines:
        print_table(header, rows)
    elif rows:
        print_table(header[:-1], [row[:-1] for row in rows])
    elif log.lines or diagnosis.facts.here:
        print(f"no NCCL variable is set{' in the log' if not diagnosis.facts.here else ''}")
    print()


def _print_published(comparison: PublishedComparison) -> None:
    total = len(comparison.same) + len(comparison.different)
    same = f"{len(comparison.same)} of {total} variables are set as published"
    print(f"network like that of {comparison.machine}: {same}")
    if comparison.different:
        rows = [(name, value, here or "not seen") for name, value, here in comparison.different]
        print_table(("variable", "published", "here"), rows)
    print(f"  source {comparison.source}; a difference is not an error")
    print()


def _print_communicators(log: LogFacts) -> None:
    rows = []
    for kind in log.communicators():
        size = count_noun(kind.ranks, "rank") if kind.ranks else "ranks unknown"
        nodes = count_noun(kind.nodes, "node") if kind.nodes else "nodes unknown"
        rows.append(
            (
                f"{kind.count} x {size}, {nodes}",
                ", ".join(f"{count} {word}" for word, count in kind.channels.items()) or "-",
                ", ".join(f"{name} x{count}" for name, count in kind.transports.items()) or "-",
                _choices(kind.choices) or "-",
            )
        )
    if rows:
        print_table(("communicators", "channels", "transports", "algorithm/protocol"), rows)
    shown = {id(choice) for kind in log.communicators() for choice in kind.choices}
    if others := [choice for choice in log.choices if id(choice) not in shown]:
        _folded("chosen in communicators that the log does not name: ", _choices(others))
    if rows or others:
        print()


def _nics(log: LogFacts) -> str:
    """Write the adapters of all processes, or the interfaces where NCCL uses sockets."""
    adapters = {name: layer for process in log.processes for name, layer in process.adapters.items()}
    interfaces = {name for process in log.processes for kind, name in process.sockets if kind == "NET/Socket"}
    providers = {process.provider.value for process in log.processes if process.provider}
    found = [f"{name} ({layer})" for name, layer in sorted(adapters.items())] or sorted(interfaces)
    return ", ".join([*found, *(f"libfabric provider {name}" for name in sorted(providers))]) or "none in the log"


def _choices(choices: Sequence[LoggedChoice]) -> str:
    """Write decisions by collective, those of all ranks 0 together; sizes are as NCCL logs them."""
    found: dict[str, dict[str, list[LoggedChoice]]] = {}
    for one in choices:
        found.setdefault(one.operation or "collective", {}).setdefault(one.choice, []).append(one)
    return "; ".join(
        f"{operation} {', '.join(_choice(chosen, made) for chosen, made in by_choice.items())}"
        for operation, by_choice in found.items()
    )


def _choice(chosen: str, made: Sequence[LoggedChoice]) -> str:
    low = format_bytes(min(one.smallest_bytes for one in made))
    high = format_bytes(max(one.largest_bytes for one in made))
    sizes = low if low == high else f"{low} to {high}"
    return f"{chosen} {sizes} ({count_noun(sum(one.calls for one in made), 'call')})"


def _print_exposed(job: JobRun) -> None:
    share = job.exposed_share
    if share is not None and job.workload is not None and job.workload.step_time_us:
        step = format_duration(job.workload.step_time_us)
        print(f"exposed communication: {share * 100:.1f} % of a step of {step}; no NCCL setting can gain more")
    else:
        why = job.unrecorded or "it needs steps with GPU kernels, recorded by PyTorch's profiler"
        _folded("exposed communication: ", f"unknown: {why}")
    print()


def _print_use(diagnosis: Diagnosis) -> None:
    document = diagnosis.facts.to_document()
    log = document["log"]
    rccl = document["rccl_version"]
    rows = [("RCCL", rccl) if rccl else ("NCCL", document["nccl_version"] or "unknown")]
    if log:
        disabled = "; ".join(
            f"{name}: {', '.join(words)}" for name, words in log["disabled_algorithms"].items() if words
        )
        rows += [
            ("ranks", f"{log['ranks'] or '?'}, nodes: {log['nodes'] or '?'}, processes in the log: {log['processes']}"),
            ("network", ", ".join(log["networks"]) or "none in the log"),
            ("NICs", _nics(diagnosis.facts.log)),
            ("not used", disabled or "no table in the log"),
        ]
    for topology in diagnosis.facts.topologies:
        rows += [(f"GPU{gpu.index}", str(gpu)) for gpu in topology.gpus]
        rows += [(nic.name, str(nic)) for nic in topology.nics]
    print_table(("item", "value"), rows)
    print()


def _indented(word: str, text: str) -> None:
    _folded(f"  {word:<5}", text)


def _folded(head: str, text: str) -> None:
    """Write a labelled paragraph, folded at words only: paths and commands stay whole."""
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    print(
        textwrap.fill(
            text,
            width=width,
            initial_indent=head,
            subsequent_indent=" " * 7,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )
