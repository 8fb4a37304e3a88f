"""`ncclt upgrade`: changes of another NCCL version for a cluster and its recommendations, and the gate before it."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.completion import cluster_names
from ncclt.cli.configuration import lookup, storage_url
from ncclt.cli.options import AsJson, Fields, Quiet, spread
from ncclt.cli.output import note, print_json, print_table
from ncclt.core.option import Group, Option
from ncclt.core.recommendation import MIN_EFFECT
from ncclt.errors import UsageError
from ncclt.prove.comparison import Comparison

if TYPE_CHECKING:
    from ncclt.core.nccl_version import NcclVersion
    from ncclt.core.printed_costs import PrintedCosts
    from ncclt.core.recommendation import Recommendation
    from ncclt.health.doctor.known_issues import KnownIssue
    from ncclt.nccl.upgrade import ChoiceChange, PolicyChange, VariableChange
    from ncclt.store import Store

app = typer.Typer()

_BY_MODEL = (
    "defaults are predicted by a port of NCCL's cost model (2.30.7), which knows the algorithms that a version adds, "
    "but not changed constants; for exact tables pass the logs of both versions (NCCL_DEBUG=INFO, "
    "NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING) with --from-log and --to-log"
)


_FEW = 12
"""New variables that are all named; of more, those of the parameter catalogue."""

_WIDTH = 100
"""Most columns of a paragraph."""

_OF_GATE = {
    "steps": Option("Training steps to measure in each launch.", group=Group.PROOF),
}
"""Options of the comparison that the help of the report does not need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remeasured:
    """A recommendation that the new version needs measured again.

    Attributes:
        recommendation, model, nodes, gpus_per_node, decision, stale, label: of what was published.
        word: verdict shown in tables; a gain on recorded or simulated times is a demonstration.
        change: of its policy.
        moved: share of the bytes per step in messages for which NCCL itself would choose otherwise.
        command: measures it again; empty for a replayed study, since a recording has one NCCL version.
    """

    recommendation: str
    model: str
    nodes: int
    gpus_per_node: int
    decision: str
    word: str
    stale: str
    label: str
    change: PolicyChange
    moved: float
    command: str


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
    old: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="NCCL version of the jobs now, or a path as for --to; default: the cluster's.",
        ),
    ] = None,
    new: Annotated[
        str | None, typer.Option("--to", help="NCCL version to upgrade to; with --gate also the path to its library.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Name of the cluster.", envvar="NCCLT_CLUSTER", autocompletion=cluster_names)
    ] = None,
    from_log: Annotated[
        Path | None, typer.Option(help="Path to an NCCL log of the old version, for its cost tables.")
    ] = None,
    to_log: Annotated[Path | None, typer.Option(help="Path to an NCCL log of the new version.")] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Run COMMAND with the old and the new NCCL; fail if the new is slower.")
    ] = False,
    *,
    to_env: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="NAME=VALUE of the new side; repeatable.")
    ] = None,
    from_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<str>", rich_help_panel=Group.LAUNCH, help="NAME=VALUE of today's side; repeatable; default: none."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=Group.LAUNCH,
            help="Command of today's side, quoted, if another one, such as an older image.",
        ),
    ] = None,
    differs: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=Group.LAUNCH, help="Difference between the sides, if NCCL's log does not show it."
        ),
    ] = None,
    margin: Annotated[float, typer.Option(min=0.001, max=0.5, help="Largest slowdown that passes, as a share.")] = (
        MIN_EFFECT
    ),
    how: Annotated[Comparison, Fields("blocks steps warmup timeout_s run_to_end directory", _OF_GATE)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the launches of --gate; run nothing.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare two NCCL versions: variables, defaults, work to do.

    Launches nothing, except with --gate: then COMMAND runs under today's and the new environment, in pairs of random
    order, until it is decided whether the new one is slower.
    """
    from ncclt.core.nccl_version import NcclVersion
    from ncclt.store import open_to_read

    name = cluster or lookup("cluster").value
    argv = tuple(command or ())
    if gate:
        from ncclt.cli.upgrade_gate import GateOptions, gate_upgrade

        if from_log or to_log:
            raise UsageError("--from-log and --to-log are for the report, not for --gate", hint="leave them out")
        there = None
        if name:
            with open_to_read(storage_url()) as store:
                there = store.clusters.get(name)
        options = GateOptions(
            argv=argv,
            old=old or "",
            new=new or "",
            from_env=tuple(from_env or ()),
            to_env=tuple(to_env or ()),
            against=against,
            stated=differs or "",
            margin=margin,
            how=how,
            cluster=there,
        )
        gate_upgrade(options, dry_run=dry_run, hidden=quiet or as_json, as_json=as_json)
        return
    if argv or to_env or from_env or against is not None or differs:
        raise UsageError("a command and its environments need --gate", hint="ncclt upgrade --gate --to ... -- COMMAND")
    if not name:
        raise UsageError("--cluster is needed", hint="or set NCCLT_CLUSTER; `ncclt cluster list` shows the names")
    if not new:
        raise UsageError("--to is needed", hint="the NCCL version to upgrade to, such as 2.31.2")
    with open_to_read(storage_url()) as store:
        before = NcclVersion.parse(old) if old else store.clusters.get(name).version
        _report(store, name, (before, NcclVersion.parse(new)), (from_log, to_log), as_json=as_json)


def _report(
    store: Store,
    name: str,
    versions: tuple[NcclVersion, NcclVersion],
    logs: tuple[Path | None, Path | None],
    *,
    as_json: bool,
) -> None:
    """Print the changes between two versions on a cluster, and the recommendations to measure again."""
    from ncclt.core.message import Collective
    from ncclt.core.nccl_version import NcclVersion
    from ncclt.health.doctor.facts import Facts
    from ncclt.health.doctor.files import read_printed_costs_file
    from ncclt.health.doctor.known_issues import find_upgrade_issues
    from ncclt.nccl.upgrade import choice_changes, newest_read, variable_changes

    before, after = versions
    if before == after:
        raise UsageError(f"--from and --to are both {before}", hint="name two versions")
    from_log, to_log = logs
    if (from_log is None) != (to_log is None):
        raise UsageError("--from-log and --to-log belong together", hint="the two tables are compared")
    costs = (
        read_printed_costs_file(from_log) if from_log else None,
        read_printed_costs_file(to_log) if to_log else None,
    )
    for tables, version in zip(costs, (before, after), strict=True):
        if tables and tables.version and NcclVersion.parse(tables.version) != version:
            raise UsageError(f"the log is of NCCL {tables.version}, not {version}", hint="are the logs swapped?")
    variables = variable_changes(before, after)
    there = store.clusters.get(name).sized(nccl_version=str(before))
    for tables in costs:
        if tables:
            tables.require(there)
    tunable = tuple(collective for collective in Collective if collective.is_tunable)
    changed = choice_changes(tunable, there, there.sized(nccl_version=str(after)), costs)
    every = store.recommendations.find(cluster=name)
    published: dict[tuple[str, str], Recommendation] = {}  # the newest of each workload and fingerprint
    for one in every:
        if one.fingerprint.version == before:
            published.setdefault((one.model, one.fingerprint.digest()), one)
    again = [_remeasured(store, found, after, costs) for found in published.values()]
    issues = find_upgrade_issues(
        Facts(cluster=there, version=before), Facts(cluster=there.sized(nccl_version=str(after)), version=after)
    )
    others = sorted({one.fingerprint.version for one in every} - {before})
    notes = [] if costs[0] else [_BY_MODEL]
    if after > newest_read():
        notes.append(f"the newest known release is {newest_read()}")
    if others and not published:
        measured = ", ".join(map(str, others))
        notes.append(f"recommendations for {name} were measured with NCCL {measured}, not {before}")
    if as_json:
        notes += _recorded_words(name, (before, after), again)
        print_json(
            {
                "cluster": name,
                "from": str(before),
                "to": str(after),
                "notes": notes,
                "variables": [asdict(row) for row in variables],
                "choices": [asdict(row) for row in changed],
                "known_issues": [issue.to_document() for issue in issues],
                "measure_again": [asdict(row) for row in again],
            }
        )
        return
    _print(name, versions, variables, changed, issues, again, notes)


def _remeasured(
    store: Store,
    found: Recommendation,
    after: NcclVersion,
    costs: tuple[PrintedCosts | None, PrintedCosts | None],
) -> _Remeasured:
    from ncclt.core.trial import TimesOrigin
    from ncclt.deliver.render.delivery import choose_form
    from ncclt.nccl.upgrade import choice, policy_change
    from ncclt.user_dirs import recorded_tables

    study, place = store.studies.get(found.study), found.fingerprint
    there = study.cluster.sized(nccl_version=str(after))
    sent = study.workload.messages
    moved = sum(
        calls.bytes_per_step
        for calls in sent
        if choice(calls.message, study.cluster, costs[0]) != choice(calls.message, there, costs[1])
    )
    verdict = choose_form(found).proven.verdict
    replayed, recorded = found.origin is TimesOrigin.RECORDED, found.cluster in recorded_tables()
    # A recorded cluster is replayed unless the launcher says otherwise, and a simulated result is not measured by this.
    how = f" --launcher {found.launcher}" if recorded or found.simulated else ""
    how += " --deterministic" if found.deterministic else ""
    job = f"--model {shlex.quote(found.model)} --cluster {shlex.quote(found.cluster)} --nodes {place.nodes}"
    return _Remeasured(
        recommendation=found.id,
        model=found.model,
        nodes=place.nodes,
        gpus_per_node=place.gpus_per_node,
        decision=verdict.decision,
        word=found.verdict_word(verdict),
        stale=found.stale,
        label=found.label,
        change=policy_change(found.table.effective, place.version, after, found.collectives),
        moved=moved / sum(calls.bytes_per_step for calls in sent),
        command=""
        if replayed
        else f"ncclt tune {job} --gpus-per-node {place.gpus_per_node} --nccl-version {after}{how}",
    )


def _print(
    name: str,
    versions: tuple[NcclVersion, NcclVersion],
    variables: tuple[VariableChange, ...],
    choices: tuple[ChoiceChange, ...],
    issues: tuple[KnownIssue, ...],
    again: list[_Remeasured],
    notes: list[str],
) -> None:
    """Print the three tables; of the new variables those worth tuning, as nothing that is set becomes wrong by them."""
    from ncclt.core.message import format_bytes
    from ncclt.nccl.parameters import CATALOGUE

    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    print(f"{name}: NCCL {versions[0]} to {versions[1]}")
    rows = [(row.variable, row.change, row.note) for row in variables if row.note]
    gone = [row.variable for row in variables if row.change == "gone"]
    new = [row.variable for row in variables if row.change == "new"]
    known = [name for name in new if name in {row.variable for row in CATALOGUE}] if len(new) > _FEW else new
    print()
    if rows:
        print_table(("variable", "change", "note"), rows)
        print()
    more = f"; {len(new) - len(known)} more with --json" if len(known) < len(new) else ""
    if new and not known:
        known, more = [str(len(new))], ", all of them with --json"
    for line in (
        f"no longer read: {', '.join(gone) or 'nothing'}",
        f"new: {', '.join(known) or 'nothing'}{more}",
    ):
        print(textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False))
    print()
    if choices:
        print("Predicted changes of the NCCL default:")
        print_table(
            ("collective", "from", "to", str(versions[0]), str(versions[1])),
            [
                (str(row.collective), format_bytes(row.min_bytes), format_bytes(row.max_bytes), row.before, row.after)
                for row in choices
            ],
        )
    else:
        print("No predicted change of the NCCL default from 1 KiB to 1 GiB")
    if issues:
        print(f"\nKnown issues of NCCL {versions[1]} here:")
    for issue in issues:
        print(
            textwrap.fill(
                str(issue),
                width,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    for sentence in notes:
        note(sentence)
    print()
    if not again:
        print(f"no recommendation for {name} was measured with NCCL {versions[0]}")
        return
    print_table(
        ("workload", "job", "verdict", "default changes for", "policy"),
        [
            (
                row.model,
                f"{row.nodes} x {row.gpus_per_node}",
                ", ".join(filter(None, (row.word, row.label.partition(":")[0], "stale" if row.stale else ""))),
                f"{100 * row.moved:.3g} % of the bytes",
                _words(row.change),
            )
            for row in again
        ],
    )
    commands = [row.command for row in again if row.command]
    if commands:
        print(f"Not served to jobs with NCCL {versions[1]} until measured again:")
    for command in commands:
        print(f"  {command}")
    for words in _recorded_words(name, versions, again):
        print(textwrap.fill(words, width, break_on_hyphens=False))


def _recorded_words(name: str, versions: tuple[NcclVersion, NcclVersion], again: list[_Remeasured]) -> list[str]:
    """Say once why a recording is not measured again, and what to do; empty where all can be."""
    if all(row.command for row in again):
        return []
    return [
        f"{name} is a recording of NCCL {versions[0]}: for jobs with NCCL {versions[1]} tune on your own cluster with "
        f"--cluster NAME --nccl-version {versions[1]}"
    ]


def _words(change: PolicyChange) -> str:
    if change.refused:
        return f"not possible: {change.refused}"
    parts = ["no tuner table any more"] if change.table_lost else []
    return ", ".join([*parts, *(["other variables"] if change.variables_differ else [])]) or "as before"
