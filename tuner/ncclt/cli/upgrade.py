"""`ncclt upgrade`: what another NCCL version changes for a cluster and for what was published on it."""

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
from ncclt.cli.options import AsJson
from ncclt.cli.output import note, print_json, print_table
from ncclt.errors import UsageError

if TYPE_CHECKING:
    from ncclt.core.nccl_version import NcclVersion
    from ncclt.core.printed_costs import PrintedCosts
    from ncclt.core.recommendation import Recommendation
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remeasured:
    """A recommendation that the new version needs measured again.

    Attributes:
        recommendation, model, nodes, gpus_per_node, decision, stale: of what was published.
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
    change: PolicyChange
    moved: float
    command: str


@app.command()
def upgrade(
    old: Annotated[str, typer.Option("--from", help="NCCL version of the jobs now, such as 2.28.9.")],
    new: Annotated[str, typer.Option("--to", help="NCCL version to upgrade to.")],
    cluster: Annotated[
        str | None, typer.Option(help="Name of the cluster.", envvar="NCCLT_CLUSTER", autocompletion=cluster_names)
    ] = None,
    from_log: Annotated[
        Path | None, typer.Option(help="Path to an NCCL log of the old version, for its cost tables.")
    ] = None,
    to_log: Annotated[Path | None, typer.Option(help="Path to an NCCL log of the new version.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two NCCL versions: variables, defaults, work to do.

    Nothing is launched. A recommendation is served only to jobs with the NCCL that it was measured with.
    """
    from ncclt.core.message import Collective
    from ncclt.core.nccl_version import NcclVersion
    from ncclt.health.doctor.files import read_printed_costs_file
    from ncclt.nccl.upgrade import choice_changes, newest_read, variable_changes
    from ncclt.store import open_to_read

    before, after = NcclVersion.parse(old), NcclVersion.parse(new)
    if before == after:
        raise UsageError(f"--from and --to are both {before}", hint="name two versions")
    name = cluster or lookup("cluster").value
    if not name:
        raise UsageError("--cluster is needed", hint="or set NCCLT_CLUSTER; `ncclt cluster list` shows the names")
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
    with open_to_read(storage_url()) as store:
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
                "measure_again": [asdict(row) for row in again],
            }
        )
        return
    _print(name, (before, after), variables, changed, again, notes)


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
    # A recorded cluster is replayed unless the launcher says otherwise.
    how = f" --launcher {found.launcher}" if recorded else ""
    job = f"--model {shlex.quote(found.model)} --cluster {shlex.quote(found.cluster)} --nodes {place.nodes}"
    return _Remeasured(
        recommendation=found.id,
        model=found.model,
        nodes=place.nodes,
        gpus_per_node=place.gpus_per_node,
        decision=verdict.decision,
        word=found.verdict_word(verdict),
        stale=found.stale,
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
        print("The NCCL default changes for these sizes:")
        print_table(
            ("collective", "from", "to", str(versions[0]), str(versions[1])),
            [
                (str(row.collective), format_bytes(row.min_bytes), format_bytes(row.max_bytes), row.before, row.after)
                for row in choices
            ],
        )
    else:
        print("The NCCL default changes for no size from 1 KiB to 1 GiB")
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
                row.word + (" (stale)" if row.stale else ""),
                f"{row.moved:.0%} of the bytes",
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
