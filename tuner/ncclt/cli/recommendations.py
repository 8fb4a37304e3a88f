"""`ncclt admin recommendations`: which revision jobs get, who decided that, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.completion import cluster_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, ClusterFilter, Limit, ModelFilter, spread
from ncclt.cli.render import Column, format_percent, print_facts, print_json, print_table, print_text, say
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.core.revision import Actor, HistoryEvent, RevisionState, RevisionStatus
from ncclt.core.rollout import OPEN_STATES, RollOut
from ncclt.deliver.render.delivery import choose_form
from ncclt.store import open_store, open_to_read
from ncclt.user_dirs import account_name

if TYPE_CHECKING:
    from ncclt.prove.rollout import RollOutVerdict
    from ncclt.store import Store

app = typer.Typer(help="List, approve, activate, pin and retire revisions.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Id of the revision, see `ncclt admin recommendations list`.")]
Why = Annotated[str, typer.Option(help="Reason, for the history.")]
LossLimit = Annotated[
    float | None, Option("Max loss of step time, as a share, before an arm is dropped.", least=0, most=0.5)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChanges:
    """Rules of a cluster to change; None = unchanged."""

    require_approval: Annotated[bool | None, Option("Require approval by another person.")] = None
    require_verification: Annotated[bool | None, Option("Require a gain in `ncclt verify`.")] = None
    percent: Annotated[int | None, Option("Percentage of jobs in a new roll-out.", least=1, most=100)] = None
    loss_limit: LossLimit = None
    delivery: Annotated[bool | None, Option("Serve active revisions; otherwise jobs keep their own settings.")] = None
    approve_wins: Annotated[bool | None, Option("Require approval of winners on step times.")] = None


@app.command("list")
def list_recommendations(
    cluster: ClusterFilter = None, model: ModelFilter = None, limit: Limit = 50, as_json: AsJson = False
) -> None:
    """List published revisions with their states, newest first."""
    with open_to_read(storage_url()) as store:
        revisions = store.revisions.statuses(cluster=cluster, model=model, limit=limit)
        rollouts = store.revisions.rollouts(cluster=cluster, model=model, state=OPEN_STATES)
    rolling = {
        arm.recommendation: rollout.id for rollout in rollouts for arm in rollout.arms if arm.is_open or arm.is_served
    }
    if as_json:
        documents = [revision.to_document() | {"rollout": rolling.get(revision.id, "")} for revision in revisions]
        print_json({"schema": 1, "recommendations": documents})
        return
    print_table(
        revisions,
        [
            Column("id", lambda revision: revision.id),
            Column("no", lambda revision: revision.revision, drop=3),
            Column("cluster", lambda revision: revision.cluster),
            Column("workload", lambda revision: revision.model),
            Column("nodes x GPUs", _format_size, drop=5),
            Column("nccl", lambda revision: revision.nccl_version, drop=2),
            Column("times", lambda revision: revision.origin, drop=1),
            Column("state", lambda row: ", in roll-out ".join(filter(None, (_format_state(row), rolling.get(row.id))))),
            Column("publisher", lambda revision: revision.publisher, drop=6),
            Column("created", lambda revision: revision.created[:16].replace("T", " "), drop=4),
        ],
    )


@app.command("show")
def show(id: Id, as_json: AsJson = False) -> None:
    """Show a revision, its roll-outs and its history."""
    from ncclt.prove.rollout import describe_cohort_bits, judge_stored

    with open_to_read(storage_url()) as store:
        revision = store.revisions.status(id)
        recommendation = store.recommendations.get(id)
        events = store.revisions.history(recommendation=id)
        rollouts = [
            (rollout, judge_stored(store, rollout), describe_cohort_bits(store, rollout))
            for rollout in store.revisions.rollouts(recommendation=id)
        ]
    verdict = choose_form(recommendation).proven.verdict
    if as_json:
        documents = [
            rollout.to_document() | {"verdict": judged, "numerics": bits} for rollout, judged, bits in rollouts
        ]
        facts = {"label": recommendation.label, "verdict": verdict, "rollouts": documents, "history": events}
        print_json(revision.to_document() | facts)
        return
    job = f"{revision.model} on {revision.cluster} {_format_size(revision)}, NCCL {revision.nccl_version}"
    print_text(f"revision {id}, number {revision.revision}: {job}")
    if recommendation.label:
        print_text(f"{recommendation.label}: nothing was measured on {revision.cluster} itself")
    print_text(f"verdict: {recommendation.verdict_word(verdict)}: {verdict.reason}")
    print_text(f"state: {': '.join(filter(None, (_format_state(revision), revision.stale)))}")
    for rollout, judged, bits in rollouts:
        _print_rollout(rollout, judged, bits)
    _print_history(events)


def _print_rollout(rollout: RollOut, judged: RollOutVerdict, bits: str) -> None:
    from ncclt.prove.rollout import describe_cost

    control = f"revision {rollout.control}" if rollout.control else "the jobs' own settings"
    print_text(f"roll-out {rollout.id}: {rollout.state}, against {control}, {describe_cost(judged)}")
    for arm, verdict in zip(rollout.arms, judged.arms, strict=True):
        counts = f"{count_noun(verdict.starts, 'start')}, {count_noun(verdict.reports, 'report')}"
        state, share = arm.state.value, f"{format_percent(arm.share)} of the jobs"
        if rollout.is_open and (arm.is_open or arm.is_served) and not rollout.percent_of(arm.recommendation):
            state, share = "paused", f"0 instead of {share}"
        print_text(f"  {arm.recommendation}: {state}, {share}, {counts}")
        print_text(f"    {verdict.reason if arm.is_open else arm.reason}")
    if bits:
        print_text(f"  warning: {bits}")


@app.command("history")
def history(
    cluster: ClusterFilter = None,
    limit: Limit = 50,
    before: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help="Entry before which to continue.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the changes of revisions, newest first."""
    with open_to_read(storage_url()) as store:
        events = store.revisions.history(cluster=cluster, before=before, limit=limit)
    if as_json:
        print_json({"schema": 1, "history": events})
    else:
        _print_history(events)


_Percent = Annotated[int | None, Option("Percentage of jobs; default: the cluster's rule.", least=1, most=100)]


@app.command("approve")
@spread
def approve(
    ids: Annotated[list[str], typer.Argument(help="Id of the revision; several become arms of one roll-out.")],
    percent: _Percent = None,
    loss_limit: LossLimit = None,
    max_cost: Annotated[float, Option("Max cost, as a share of the jobs' GPU hours.", least=0, most=1)] = 0.005,
    why: Why = "",
) -> None:
    """Approve a candidate; roll it out or activate it.

    It is rolled out to a share of the jobs and compared; a winner of its roll-out is activated for all jobs. Up to four
    candidates for the same jobs are compared in one roll-out.
    """

    def work(store: Store, by: Actor) -> str:
        from ncclt.prove.rollout import describe_cohort_bits

        rollout = store.revisions.approve(
            ids[0], by, arms=ids[1:], percent=percent, loss_limit=loss_limit, max_cost=max_cost
        )
        if not rollout:
            return "approved, and active for all jobs"
        bits = describe_cohort_bits(store, store.revisions.rollout(rollout))
        return f"approved; roll-out {rollout} started{f'; warning: {bits}' if bits else ''}"

    _change(", ".join(ids), why, storage_url(), work)


@app.command("activate")
def activate(id: Id, why: Why = "") -> None:
    """Activate a candidate for all jobs, or restore a revision.

    Ends open roll-outs for the same jobs.
    """

    def work(store: Store, by: Actor) -> str:
        if store.revisions.status(id).state is RevisionState.RETIRED:
            return _add_ended("active again", store.revisions.roll_back(id, by))
        return _add_ended("active for all jobs", store.revisions.activate(id, by))

    _change(id, why, storage_url(), work)


@app.command("pin")
@spread
def pin(id: Id, off: Annotated[bool, Option("Unpin it instead.")] = False, why: Why = "") -> None:
    """Keep a revision active, whatever is published later.

    Ends open roll-outs for the same jobs.
    """

    def work(store: Store, by: Actor) -> str:
        if off:
            store.revisions.unpin(id, by)
            return "no longer pinned"
        return _add_ended("pinned", store.revisions.pin(id, by))

    _change(id, why, storage_url(), work)


@app.command("pause")
@spread
def pause(
    rollout: Annotated[str, typer.Argument(help="Id of the roll-out, or of a revision in an open one.")],
    off: Annotated[bool, Option("Resume it instead.")] = False,
    why: Why = "",
) -> None:
    """Pause a roll-out: jobs that start get the control."""
    with open_store(storage_url(), makes=False) as store:
        change = store.revisions.resume_rollout if off else store.revisions.pause_rollout
        for opened in store.revisions.rollouts(recommendation=rollout, state=OPEN_STATES, limit=1):
            rollout = opened.id
        change(rollout, Actor(who=account_name(), why=why))
    say(f"ncclt: the roll-out {rollout} is {'resumed' if off else 'paused'}; services see it within a second")


@app.command("retire")
def retire(id: Id, why: Why = "") -> None:
    """Stop serving a revision.

    Without an active revision, jobs keep their own settings. A roll-out that compares with it, or has no other arm,
    ends.
    """
    _change(id, why, storage_url(), lambda store, by: _add_ended("retired", store.revisions.retire(id, by)))


@app.command("rules")
@spread
def rules(
    cluster: Annotated[str, typer.Argument(help="Name of the cluster.", autocompletion=cluster_names)],
    rules: RuleChanges,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Show or change the publication rules of a cluster."""
    changes = {name: value for name, value in asdict(rules).items() if value is not None}
    with open_store(storage_url()) if changes else open_to_read(storage_url()) as store:
        store.clusters.get(cluster)
        publication = replace(store.revisions.rules(cluster), **changes)
        if changes:
            store.revisions.set_rules(publication, Actor(who=account_name(), why=why))
    if as_json:
        print_json(publication)
        return
    required = {True: "required", False: "not required"}
    print_facts(
        [
            ("approval by another person", required[publication.require_approval]),
            ("verification of step times", required[publication.require_verification]),
            ("new revisions", f"go to {publication.percent} % of the jobs at first"),
            ("loss limit", format_percent(publication.loss_limit)),
            ("wins on step times", "await approval" if publication.approve_wins else "go to all jobs at once"),
            ("delivery to jobs", "on" if publication.delivery else "off; all jobs keep their own settings"),
        ]
    )


def _change(id: str, why: str, storage: str | None, change: Callable[[Store, Actor], str]) -> None:

    with open_store(storage, makes=False) as store:
        state = change(store, Actor(who=account_name(), why=why))
    say(f"ncclt: the revision {id} is {state}; services see it within a second")


def _add_ended(state: str, ended: tuple[str, ...]) -> str:
    """Add the roll-outs that a change ended to its message."""
    return f"{state}; this ended the roll-out{'s' if len(ended) > 1 else ''} {', '.join(ended)}" if ended else state


def _format_size(revision: RevisionStatus) -> str:
    return f"{revision.nodes}x{revision.gpus_per_node}"


def _format_state(revision: RevisionStatus) -> str:
    marks = ("pinned" if revision.pinned else "", "awaits verification" if revision.unverified else "")
    return ", ".join(filter(None, (revision.state.value, *marks)))


def _print_history(events: Sequence[HistoryEvent]) -> None:
    if not events:
        print_text("no history: nothing has changed yet")
        return
    print_table(
        events,
        [
            Column("entry", lambda event: str(event.number), right=True),
            Column("when", lambda event: event.created[:19].replace("T", " "), drop=2),
            Column("action", lambda event: event.action.value),
            Column("cluster", lambda event: event.cluster, drop=3),
            Column("workload", lambda event: event.model),
            Column("revision", lambda event: event.recommendation),
            Column("who", lambda event: event.who, drop=1),
            Column("why", lambda event: event.why),
        ],
    )
