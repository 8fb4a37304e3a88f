"""`ncclt upgrade`: changes of another NCCL version for a cluster and its recommendations, and the gate before it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.configuration import lookup, storage_url
from ncclt.cli.exits import interruptible
from ncclt.cli.options import AsJson, Fields, Quiet, spread
from ncclt.cli.render import Column, format_percent, note, print_document, print_json, print_table, print_text, say
from ncclt.cli.verify import build_request as build_sides
from ncclt.cli.verify import parse_variables, split_command
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, format_bytes
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.option import Group, Option
from ncclt.core.plural import count_noun
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.recommendation import MIN_EFFECT, Recommendation
from ncclt.core.trial import TimesOrigin
from ncclt.core.verification import Side
from ncclt.deliver.render.delivery import choose_form
from ncclt.errors import UsageError
from ncclt.launch.launcher import Launcher
from ncclt.launch.local import LocalLauncher
from ncclt.launch.process.session import KEEP_BYTES
from ncclt.measure.redact import variables_without_secrets, words_without_secrets
from ncclt.nccl.parameters import CATALOGUE
from ncclt.nccl.upgrade import choice, choice_changes, newest_read, policy_change, variable_changes
from ncclt.nccl.variables import split_variables
from ncclt.prove.comparison import Comparison
from ncclt.store import open_to_read
from ncclt.user_dirs import recorded_tables

if TYPE_CHECKING:
    from ncclt.prove.gate import GateRequest, GateResult
    from ncclt.store import Store

app = typer.Typer()

_BY_MODEL = (
    "defaults are predicted by a port of NCCL's cost model (2.30.7), which knows the algorithms that a version adds, "
    "but not changed constants; for exact tables pass the logs of both versions (NCCL_DEBUG=INFO, "
    "NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING) with --from-log and --to-log"
)


_FEW = 12
"""New variables that are all named; of more, those of the parameter catalogue."""

_OF_GATE = {"steps": Option("Training steps to measure in each launch.", group=Group.PROOF)}
"""Options of the comparison that the help of the report does not need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeOptions:
    """The two sides; the `Option` of each field describes it.

    Raises:
        UsageError: the margin is out of range.
    """

    old: Annotated[
        str, Option("NCCL version of the jobs now, or a path as for --to; default: the cluster's.", flag="--from")
    ] = ""
    new: Annotated[
        str, Option("NCCL version to upgrade to; with --gate also the path to its library.", flag="--to")
    ] = ""
    cluster: Annotated[str, Option("Name of the cluster.", envvar="NCCLT_CLUSTER")] = ""
    from_log: Annotated[Path | None, Option("Path to an NCCL log of the old version, for its cost tables.")] = None
    to_log: Annotated[Path | None, Option("Path to an NCCL log of the new version.")] = None
    to_env: Annotated[tuple[str, ...], Option("NAME=VALUE of the new side; repeatable.")] = ()
    from_env: Annotated[
        tuple[str, ...], Option("NAME=VALUE of today's side; repeatable; default: none.", group=Group.LAUNCH)
    ] = ()
    against: Annotated[
        str | None,
        Option("Command of today's side, quoted, if another one, such as an older image.", group=Group.LAUNCH),
    ] = None
    differs: Annotated[
        str, Option("Difference between the sides, if NCCL's log does not show it.", group=Group.LAUNCH)
    ] = ""
    margin: Annotated[float, Option("Largest slowdown that passes, as a share.")] = MIN_EFFECT

    def __post_init__(self) -> None:
        if not 0.001 <= self.margin <= 0.5:
            raise UsageError(
                f"--margin must be 0.001 to 0.5, not {self.margin:g}", hint="`ncclt upgrade --help` lists the options"
            )


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Exit codes with --gate: 0 = not slower, 2 = nothing to compare, 4 = undecided, 5 = slower, or the new side "
    "alone fails.",
)
@spread
def upgrade(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command for --gate, such as: torchrun ... bench.py, or all_reduce_perf ..."),
    ] = None,
    gate: Annotated[bool, Option("Run COMMAND with the old and the new NCCL; fail if the new is slower.")] = False,
    *,
    options: Annotated[
        UpgradeOptions, Fields("old new cluster from_log to_log gate to_env from_env against differs margin")
    ],
    how: Annotated[Comparison, Fields("blocks steps warmup timeout_s run_to_end directory", _OF_GATE)],
    dry_run: Annotated[bool, Option("Print the launches of --gate; run nothing.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare two NCCL versions: variables, defaults, work to do.

    Launches nothing, except with --gate: then COMMAND runs under today's and the new environment, in pairs of random
    order, until it is decided whether the new one is slower.
    """
    name = options.cluster or lookup("cluster").value
    if gate:
        options, argv, hidden = replace(options, cluster=name or ""), tuple(command or ()), quiet or as_json
        gate_upgrade(argv, options, how, dry_run=dry_run, hidden=hidden, as_json=as_json)
        return
    if command or options.to_env or options.from_env or options.against is not None or options.differs:
        raise UsageError("a command and its environments need --gate", hint="ncclt upgrade --gate --to ... -- COMMAND")
    if not name:
        raise UsageError("--cluster is needed", hint="or set NCCLT_CLUSTER; `ncclt cluster list` shows the names")
    if not options.new:
        raise UsageError("--to is needed", hint="the NCCL version to upgrade to, such as 2.31.2")
    with open_to_read(storage_url()) as store:
        before = NcclVersion.parse(options.old) if options.old else store.clusters.get(name).version
        report = _build_report(store, name, before, NcclVersion.parse(options.new), (options.from_log, options.to_log))
    if as_json:
        print_json({**report, "notes": [*report["notes"], *_describe_recording(report)]})
    else:
        _print(report)


def _build_report(
    store: Store, name: str, before: NcclVersion, after: NcclVersion, logs: tuple[Path | None, Path | None]
) -> dict[str, Any]:
    """Compare two versions on a cluster, and find the recommendations to measure again."""
    from ncclt.health.doctor.facts import Facts
    from ncclt.health.doctor.known_issues import find_upgrade_issues

    if before == after:
        raise UsageError(f"--from and --to are both {before}", hint="name two versions")
    variables = variable_changes(before, after)
    old = store.clusters.get(name).sized(nccl_version=str(before))
    new = old.sized(nccl_version=str(after))
    costs = _read_costs(logs, old, (before, after))
    recommendations = store.recommendations.find(cluster=name)
    published: dict[tuple[str, str], Recommendation] = {}  # the newest of each workload and fingerprint
    for recommendation in recommendations:
        if recommendation.fingerprint.version == before:
            published.setdefault((recommendation.model, recommendation.fingerprint.digest()), recommendation)
    remeasured = [_describe_remeasured(store, recommendation, after, costs) for recommendation in published.values()]
    notes = [] if costs[0] else [_BY_MODEL]
    if after > newest_read():
        notes.append(f"the newest known release is {newest_read()}")
    others = sorted({recommendation.fingerprint.version for recommendation in recommendations} - {before})
    if others and not published:
        measured = ", ".join(map(str, others))
        notes.append(f"recommendations for {name} were measured with NCCL {measured}, not {before}")
    tunable = tuple(collective for collective in Collective if collective.is_tunable)
    choices = choice_changes(tunable, old, new, costs)
    issues = find_upgrade_issues(Facts(cluster=old, version=before), Facts(cluster=new, version=after))
    return {
        "cluster": name,
        "from": str(before),
        "to": str(after),
        "notes": notes,
        "variables": [asdict(row) for row in variables],
        "choices": [asdict(row) for row in choices],
        "known_issues": issues,
        "measure_again": remeasured,
    }


def _read_costs(
    logs: tuple[Path | None, Path | None], cluster: Cluster, versions: tuple[NcclVersion, NcclVersion]
) -> tuple[PrintedCosts | None, PrintedCosts | None]:
    """Read the cost tables of both versions; (None, None) without logs.

    Raises:
        UsageError: one log is missing, or is of another version or cluster.
    """
    from ncclt.health.doctor.files import read_printed_costs_file

    from_log, to_log = logs
    if from_log is None and to_log is None:
        return None, None
    if from_log is None or to_log is None:
        raise UsageError("--from-log and --to-log belong together", hint="the two tables are compared")
    before, after = read_printed_costs_file(from_log), read_printed_costs_file(to_log)
    for costs, version in zip((before, after), versions, strict=True):
        if costs.version and NcclVersion.parse(costs.version) != version:
            raise UsageError(f"the log is of NCCL {costs.version}, not {version}", hint="are the logs swapped?")
        costs.require(cluster)
    return before, after


def _describe_remeasured(
    store: Store,
    recommendation: Recommendation,
    after: NcclVersion,
    costs: tuple[PrintedCosts | None, PrintedCosts | None],
) -> dict[str, Any]:
    """Return a recommendation that the new version needs measured again.

    `word` is the verdict in tables: a gain on recorded or simulated times is a demonstration. `moved` is the share of
    the bytes per step in messages for which NCCL itself would choose otherwise. `command` measures it again; it is
    empty for a replayed study, since a recording has one NCCL version.
    """
    study, fingerprint = store.studies.get(recommendation.study), recommendation.fingerprint
    upgraded, messages = study.cluster.sized(nccl_version=str(after)), study.workload.messages
    moved = sum(
        calls.bytes_per_step
        for calls in messages
        if choice(calls.message, study.cluster, costs[0]) != choice(calls.message, upgraded, costs[1])
    )
    verdict = choose_form(recommendation).proven.verdict
    model, cluster = shlex.quote(recommendation.model), shlex.quote(recommendation.cluster)
    command = f"ncclt tune --model {model} --cluster {cluster} --nodes {fingerprint.nodes}"
    command += f" --gpus-per-node {fingerprint.gpus_per_node} --nccl-version {after}"
    # A recorded cluster is replayed unless the launcher says otherwise, and a simulated result is not measured by this.
    if recommendation.cluster in recorded_tables() or recommendation.simulated:
        command += f" --launcher {recommendation.launcher}"
    if recommendation.deterministic:
        command += " --deterministic"
    change = policy_change(recommendation.table.effective, fingerprint.version, after, recommendation.collectives)
    return {
        "recommendation": recommendation.id,
        "model": recommendation.model,
        "nodes": fingerprint.nodes,
        "gpus_per_node": fingerprint.gpus_per_node,
        "decision": verdict.decision,
        "word": recommendation.verdict_word(verdict),
        "stale": recommendation.stale,
        "label": recommendation.label,
        "change": asdict(change),
        "moved": moved / sum(calls.bytes_per_step for calls in messages),
        "command": "" if recommendation.origin is TimesOrigin.RECORDED else command,
    }


def _describe_recording(report: dict[str, Any]) -> list[str]:
    """Say once why a recording is not measured again, and what to do; empty where all can be."""
    sentence = (
        f"{report['cluster']} is a recording of NCCL {report['from']}: for jobs with NCCL {report['to']} tune on your "
        f"own cluster with --cluster NAME --nccl-version {report['to']}"
    )
    return [] if all(row["command"] for row in report["measure_again"]) else [sentence]


def _print(report: dict[str, Any]) -> None:
    """Print the three tables; of the new variables those worth tuning, as nothing that is set becomes wrong by them."""
    print_text(f"{report['cluster']}: NCCL {report['from']} to {report['to']}\n")
    _print_variables(report["variables"])
    if report["choices"]:
        print_text("Predicted changes of the NCCL default:")
        print_table(
            report["choices"],
            [
                Column("collective", lambda row: row["collective"]),
                Column("from", lambda row: format_bytes(row["min_bytes"])),
                Column("to", lambda row: format_bytes(row["max_bytes"])),
                Column(report["from"], lambda row: row["before"]),
                Column(report["to"], lambda row: row["after"]),
            ],
        )
    else:
        print_text("No predicted change of the NCCL default from 1 KiB to 1 GiB")
    if report["known_issues"]:
        print_text(f"\nKnown issues of NCCL {report['to']} here:")
    for issue in report["known_issues"]:
        print_text(str(issue))
    for sentence in report["notes"]:
        note(sentence)
    print_text("")
    _print_remeasured(report)


def _print_variables(variables: list[dict[str, Any]]) -> None:

    if changed := [(row["variable"], row["change"], row["note"]) for row in variables if row["note"]]:
        print_table(changed, [Column("variable"), Column("change"), Column("note")])
        print_text("")
    gone = [row["variable"] for row in variables if row["change"] == "gone"]
    new = [row["variable"] for row in variables if row["change"] == "new"]
    named = new if len(new) <= _FEW else [name for name in new if name in {row.variable for row in CATALOGUE}]
    unnamed = f"; {len(new) - len(named)} more with --json" if len(named) < len(new) else ""
    if new and not named:
        named, unnamed = [str(len(new))], ", all of them with --json"
    print_text(f"no longer read: {', '.join(gone) or 'nothing'}")
    print_text(f"new: {', '.join(named) or 'nothing'}{unnamed}\n")


def _print_remeasured(report: dict[str, Any]) -> None:
    rows = report["measure_again"]
    if not rows:
        print_text(f"no recommendation for {report['cluster']} was measured with NCCL {report['from']}")
        return
    print_table(
        rows,
        [
            Column("workload", lambda row: row["model"]),
            Column("job", lambda row: f"{row['nodes']} x {row['gpus_per_node']}"),
            Column("verdict", _describe_verdict),
            Column("default changes for", lambda row: f"{format_percent(row['moved'])} of the bytes", drop=1),
            Column("policy", lambda row: _describe_change(row["change"])),
        ],
    )
    commands = [row["command"] for row in rows if row["command"]]
    if commands:
        print_text(f"Not served to jobs with NCCL {report['to']} until measured again:")
    for command in commands:
        print(f"  {command}")
    for sentence in _describe_recording(report):
        print_text(sentence)


def _describe_verdict(row: dict[str, Any]) -> str:
    origin = row["label"].partition(":")[0]
    return ", ".join(filter(None, (row["word"], origin, "stale" if row["stale"] else "")))


def _describe_change(change: dict[str, Any]) -> str:
    if change["refused"]:
        return f"not possible: {change['refused']}"
    table = "no tuner table any more" if change["table_lost"] else ""
    return ", ".join(filter(None, (table, "other variables" if change["variables_differ"] else ""))) or "as before"


GATE_SCHEMA = 1
"""Version of the documents that `upgrade --gate --json` prints."""

EXIT_REGRESSION = 5
"""Exit code for a new side that is slower or fails; 1 means a crash or an unwritable stdout."""

EXIT_UNDECIDED = 4
"""Exit code for an undecided comparison, as for other incomplete examinations."""

_LIBRARY = "libnccl.so.2"


def gate_upgrade(
    argv: tuple[str, ...],
    options: UpgradeOptions,
    how: Comparison,
    *,
    dry_run: bool,
    hidden: bool,
    as_json: bool,
) -> None:
    """Compare both sides, print the decision and exit with its code.

    Args:
        argv: the command.
        options: as given.
        how: number, length and limits of the launches.
        dry_run: print the launches only.

    Raises:
        UsageError: there is nothing to compare.
        Exit: regression or undecided.
    """
    from ncclt.prove.gate import SIDE_NAMES, GateDecision, run_gate

    if options.from_log or options.to_log:
        raise UsageError("--from-log and --to-log are for the report, not for --gate", hint="leave them out")
    cluster = None
    if options.cluster:
        with open_to_read(storage_url()) as store:
            cluster = store.clusters.get(options.cluster)
    # The whole table is read, not only the last lines of the output.
    launcher = LocalLauncher(keep_env=split_variables(os.environ).of_trials, keep_bytes=KEEP_BYTES)
    request = _build_gate_request(argv, options, how, launcher, cluster)
    plan = {"schema": GATE_SCHEMA, **_plan_document(request)}
    if dry_run:
        if as_json:
            print_json(plan)
        else:
            print_document(plan)
            pairs = count_noun(len(request.sides.order) // 2, "pair")
            note(f"2 launches with NCCL's log, then at most {pairs}, in this order")
            note(f"passes if no group of sizes and no single size is more than {format_percent(request.margin)} slower")
        return

    def watch(side: Side, order: int, failure: str) -> None:
        if not hidden:
            number = f"{order + 1} of up to {len(request.sides.order)}" if order >= 0 else "with NCCL's log"
            say(f"ncclt: launch {number}, {SIDE_NAMES[side]}: {'failed' if failure else 'done'}")

    with interruptible():
        result = run_gate(request, launcher, environ=os.environ, watch=watch)
    if as_json:
        print_json({**plan, **result.to_document()})
    else:
        print_gate(request, result, quiet=hidden)
    if result.decision.is_regression:
        raise typer.Exit(EXIT_REGRESSION)
    if result.decision is GateDecision.UNDECIDED:
        raise typer.Exit(EXIT_UNDECIDED)


def _build_gate_request(
    argv: tuple[str, ...], options: UpgradeOptions, how: Comparison, launcher: Launcher, cluster: Cluster | None
) -> GateRequest:
    """Return the comparison that the options ask for.

    Raises:
        UsageError: the command or what distinguishes the sides is missing, or a library is not there.
    """
    from ncclt.prove.gate import GateRequest

    if not argv:
        raise UsageError(
            "give the command after --", hint="for example: -- torchrun ... bench.py, or -- mpirun ... all_reduce_perf"
        )
    base_argv = split_command(options.against)
    own = split_variables(os.environ).tuning
    base_env = parse_variables("--from-env", options.from_env, own=_with_library(own, options.old, "--from"))
    new_env = parse_variables("--to-env", options.to_env, own=_with_library(own, options.new, "--to"))
    if base_env == new_env and base_argv in ((), argv):
        raise UsageError(
            "both sides are the same command in the same environment",
            hint="name the new NCCL with --to PATH or --to-env LD_PRELOAD=PATH, or another command with --against",
        )
    versions = ((Side.BASE, options.old), (Side.TUNED, options.new))
    return GateRequest(
        sides=build_sides(argv, base_argv, base_env=base_env, tuned_env=new_env, how=how, launcher=launcher),
        margin=options.margin,
        expected={side: NcclVersion.parse(text) for side, text in versions if text and "/" not in text},
        cluster=cluster,
        stated=options.differs,
    )


def _with_library(own: Mapping[str, str], text: str, option: str) -> Mapping[str, str]:
    """Return variables that also load the library of a path, before what the shell preloads."""
    if "/" not in text:
        return own
    path = Path(text).absolute()
    # A wheel's folder has it below lib/, NVIDIA's archive too.
    places = (path, path / _LIBRARY, path / "lib" / _LIBRARY)
    library = next((place for place in places if place.is_file()), None)
    if library is None:
        raise UsageError(f"{option} {text}: no {_LIBRARY} there", hint="name the file, or the folder of the wheel")
    return {**own, "LD_PRELOAD": " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD", ""))))}


def _safe_argv(request: GateRequest, side: Side) -> tuple[str, ...]:
    """Return the command of a side without the secrets of its environment."""
    argv, variables = request.sides.side(side)
    return words_without_secrets(argv, environ={**os.environ, **dict(variables)})


def _plan_document(request: GateRequest) -> dict[str, object]:
    from ncclt.prove.gate import SIDE_NAMES

    sides = request.sides
    return {
        "argv": list(_safe_argv(request, Side.TUNED)),
        "base_argv": list(_safe_argv(request, Side.BASE)) if sides.base_argv else None,
        "today_env": dict(variables_without_secrets(sides.base_env)),
        "new_env": dict(variables_without_secrets(sides.tuned_env)),
        "removed_env": list(sides.removed_env),
        "expected_nccl": {SIDE_NAMES[side]: str(version) for side, version in request.expected.items()},
        "stated": request.stated or None,
        "margin": request.margin,
        "order": [SIDE_NAMES[side] for side in sides.order],
    }


def print_gate(request: GateRequest, result: GateResult, *, quiet: bool) -> None:
    """Print both sides as seen, the known issues, each group, the decision, notes unless quiet, and one next step."""
    from ncclt.prove.gate import SIDE_NAMES

    for side, facts in result.seen.items():
        usual = [f"{name} {facts[name]}" for name in ("NCCL", "CUDA driver", "network") if name in facts]
        print_text(f"{SIDE_NAMES[side] + ':':7}{', '.join(usual) or 'NCCL version: not seen'}")
    changed = [f"{name} logged as {new}, today {today}" for name, today, new in result.differences if name != "NCCL"]
    changed += _set_differently(request)
    if changed:
        print_text(f"differs: {'; '.join(changed)}")
    for issue in result.issues:
        print_text(f"known: {issue}")
    if len(result.groups) > 1 or any(group.worst for group in result.groups):
        print_table(
            result.groups,
            [
                Column("new side", lambda group: group.name),
                Column("change", lambda group: group.slowdown),
                Column("worst size", lambda group: f"{group.worst} {group.worst_change}" if group.worst else "-"),
                Column("decision", lambda group: group.decision),
            ],
        )
    print_text(f"verdict: {result.decision}: {result.reason}")
    for line in result.failure.splitlines()[1:]:
        say(f"  {line}")
    for sentence in () if quiet else result.notes:
        note(sentence)
    print_text(f"Next:    {_next_step(request, result)}")


def _set_differently(request: GateRequest) -> list[str]:
    """Describe what the user sets differently, without secrets."""
    today, new = (dict(variables_without_secrets(env)) for env in (request.sides.base_env, request.sides.tuned_env))
    changed = [f"command, today {shlex.join(_safe_argv(request, Side.BASE))}"]
    return (changed if request.sides.base_argv else []) + [
        f"{name} set to {new[name]}, today {today.get(name, 'unset')}"
        if name in new
        else f"{name} unset, today {today[name]}"
        for name in dict.fromkeys((*today, *new))
        if today.get(name) != new.get(name)
    ]


def _next_step(request: GateRequest, result: GateResult) -> str:
    from ncclt.prove.gate import SIDE_NAMES, GateDecision

    versions = {side: facts.get("NCCL", "") for side, facts in result.seen.items()}
    if result.decision is GateDecision.FAILED:
        variables = [f"{name}={value}" for name, value in variables_without_secrets(request.sides.tuned_env)]
        command = shlex.join(["env", *variables, *_safe_argv(request, Side.TUNED)])
        return f"keep today's side; to reproduce the failure: {command}"
    if result.decision is GateDecision.SLOWER:
        return f"stay with {f'NCCL {versions[Side.BASE]}' if versions[Side.BASE] else 'the side of today'}"
    if result.decision is GateDecision.UNDECIDED:
        if result.failure:
            side = next((launch.side for launch in result.launches if launch.failure), Side.TUNED)
            return f"run the command alone on the side {SIDE_NAMES[side]} until it is reliable"
        if " did not measure " in result.reason:
            return "run the command alone on the new side until it measures the same calls"
        blocks = replace(request.sides.how, blocks=2 * request.sides.how.blocks).blocks
        return f"--blocks {blocks} compares longer; fewer disturbances on the nodes help more"
    if " and " in versions[Side.TUNED]:
        return f"check the environment: processes of the new side load NCCL {versions[Side.TUNED]}"
    if request.cluster and all(versions.values()) and versions[Side.BASE] != versions[Side.TUNED]:
        return (
            f"upgrade; for what has to be tuned again: ncclt upgrade --cluster {shlex.quote(request.cluster.name)} "
            f"--from {versions[Side.BASE]} --to {versions[Side.TUNED]}"
        )
    return "upgrade; recommendations are measured again with the new version (`ncclt upgrade` lists them)"
