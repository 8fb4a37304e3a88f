"""`ncclt admin recommendations`: which revision jobs get, who decided that, and why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.completion import cluster_names, model_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson
from ncclt.cli.output import print_json, print_table, say
from ncclt.core.plural import count_noun
from ncclt.core.revision import Actor, HistoryEvent, RevisionState, RevisionStatus
from ncclt.core.rollout import OPEN_STATES
from ncclt.user_dirs import account_name

if TYPE_CHECKING:
    from ncclt.store import Store

app = typer.Typer(help="List, approve, activate, pin and retire revisions.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Id of the revision, see `ncclt admin recommendations list`.")]
Why = Annotated[str, typer.Option(help="Reason, for the history.")]


@app.command("list")
def list_recommendations(
    cluster: Annotated[str | None, typer.Option(help="Cluster of the revisions.", autocompletion=cluster_names)] = None,
    model: Annotated[str | None, typer.Option(help="Workload of the revisions.", autocompletion=model_names)] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Max rows.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List published revisions with their states, newest first."""
    from ncclt.store import open_to_read

    with open_to_read(storage_url()) as store:
        found = store.revisions.statuses(cluster=cluster, model=model, limit=limit)
        rolling = store.revisions.rollouts(cluster=cluster, model=model, state=OPEN_STATES)
    arms = {arm.recommendation: one.id for one in rolling for arm in one.arms if arm.is_open or arm.is_served}
    if as_json:
        documents = [one.to_document() | {"rollout": arms.get(one.id, "")} for one in found]
        print_json({"schema": 1, "recommendations": documents})
        return
    rows = [
        (
            one.id,
            str(one.revision),
            one.cluster,
            one.model,
            f"{one.nodes}x{one.gpus_per_node}",
            one.nccl_version,
            one.origin,
            _state(one) + (f", in roll-out {arms[one.id]}" if one.id in arms else ""),
            one.publisher,
            one.created[:16].replace("T", " "),
        )
        for one in found
    ]
    header = ("id", "no", "cluster", "workload", "size", "nccl", "times", "state", "publisher", "created")
    print_table(header, rows, numbers=("no",))


@app.command("show")
def show(id: Id, as_json: AsJson = False) -> None:
    """Show a revision, its roll-outs and its history."""
    from ncclt.deliver.render.delivery import choose_form
    from ncclt.prove.rollout import describe_cohort_bits, describe_cost, judge_stored
    from ncclt.store import open_to_read

    with open_to_read(storage_url()) as store:
        one, rollouts, found = (
            store.revisions.status(id),
            store.revisions.rollouts(recommendation=id),
            store.recommendations.get(id),
        )
        events = store.revisions.history(recommendation=id)
        judged = {each.id: judge_stored(store, each) for each in rollouts}
        bits = {each.id: describe_cohort_bits(store, each) for each in rollouts}
    verdict = choose_form(found).proven.verdict
    if as_json:
        shown = [
            each.to_document() | {"verdict": judged[each.id].to_document(), "numerics": bits[each.id]}
            for each in rollouts
        ]
        history = [event.to_document() for event in events]
        told = {"label": found.label, "verdict": verdict.to_document()}
        print_json(one.to_document() | told | {"rollouts": shown, "history": history})
        return
    size = f"{one.nodes}x{one.gpus_per_node}"
    print(f"revision {one.id}, number {one.revision}: {one.model} on {one.cluster} {size}, NCCL {one.nccl_version}")
    if found.label:
        print(f"{found.label}: nothing was measured on {one.cluster} itself")
    print(f"verdict: {found.verdict_word(verdict)}: {verdict.reason}")
    print(f"state: {_state(one)}{f': {one.stale}' if one.stale else ''}")
    for each in rollouts:
        against = f"revision {each.control}" if each.control else "the jobs' own settings"
        verdict_now = judged[each.id]
        print(f"roll-out {each.id}: {each.state}, against {against}, {describe_cost(verdict_now)}")
        for arm, now in zip(each.arms, verdict_now.arms, strict=True):
            counts = f"{count_noun(now.starts, 'start')}, {count_noun(now.reports, 'report')}"
            state, share = arm.state.value, f"{100 * arm.share:.3g} % of the jobs"
            if each.is_open and (arm.is_open or arm.is_served) and not each.percent_of(arm.recommendation):
                state, share = "paused", f"0 instead of {share}"
            print(f"  {arm.recommendation}: {state}, {share}, {counts}")
            print(f"    {now.reason if arm.is_open else arm.reason}")
        if bits[each.id]:
            print(f"  warning: {bits[each.id]}")
    _print_history(events)


@app.command("history")
def history(
    cluster: Annotated[str | None, typer.Option(help="Cluster of the revisions.", autocompletion=cluster_names)] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Max rows.")] = 50,
    before: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help="Entry before which to continue.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the changes of revisions, newest first."""
    from ncclt.store import open_to_read

    with open_to_read(storage_url()) as store:
        events = store.revisions.history(cluster=cluster, before=before, limit=limit)
    if as_json:
        print_json({"schema": 1, "history": [event.to_document() for event in events]})
        return
    _print_history(events)


@app.command("approve")
def approve(
    ids: Annotated[list[str], typer.Argument(help="Id of the revision; several become arms of one roll-out.")],
    percent: Annotated[
        int | None, typer.Option(min=1, max=100, help="Percentage of jobs; default: the cluster's rule.")
    ] = None,
    loss_limit: Annotated[
        float | None, typer.Option(min=0, max=0.5, help="Max loss of step time, as a share, before an arm is dropped.")
    ] = None,
    max_cost: Annotated[float, typer.Option(min=0, max=1, help="Max cost, as a share of the jobs' GPU hours.")] = 0.005,
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
            return _with_ended("active again", store.revisions.roll_back(id, by))
        return _with_ended("active for all jobs", store.revisions.activate(id, by))

    _change(id, why, storage_url(), work)


@app.command("pin")
def pin(id: Id, off: Annotated[bool, typer.Option("--off", help="Unpin it instead.")] = False, why: Why = "") -> None:
    """Keep a revision active, whatever is published later.

    Ends open roll-outs for the same jobs.
    """

    def work(store: Store, by: Actor) -> str:
        if off:
            store.revisions.unpin(id, by)
            return "no longer pinned"
        return _with_ended("pinned", store.revisions.pin(id, by))

    _change(id, why, storage_url(), work)


@app.command("pause")
def pause(
    rollout: Annotated[str, typer.Argument(help="Id of the roll-out, or of a revision in an open one.")],
    off: Annotated[bool, typer.Option("--off", help="Resume it instead.")] = False,
    why: Why = "",
) -> None:
    """Pause a roll-out: jobs that start get the control."""
    from ncclt.store import open_store

    with open_store(storage_url(), makes=False) as store:
        change = store.revisions.resume_rollout if off else store.revisions.pause_rollout
        for one in store.revisions.rollouts(recommendation=rollout, state=OPEN_STATES, limit=1):
            rollout = one.id
        change(rollout, Actor(who=account_name(), why=why))
    say(f"ncclt: the roll-out {rollout} is {'resumed' if off else 'paused'}; services see it within a second")


@app.command("retire")
def retire(id: Id, why: Why = "") -> None:
    """Stop serving a revision.

    Without an active revision, jobs keep their own settings. A roll-out that compares with it, or has no other arm,
    ends.
    """
    _change(id, why, storage_url(), lambda store, by: _with_ended("retired", store.revisions.retire(id, by)))


@app.command("rules")
def rules(
    cluster: Annotated[str, typer.Argument(help="Name of the cluster.", autocompletion=cluster_names)],
    require_approval: Annotated[
        bool | None, typer.Option(help="Require approval by another person.", show_default=False)
    ] = None,
    require_verification: Annotated[
        bool | None, typer.Option(help="Require a gain in `ncclt verify`.", show_default=False)
    ] = None,
    percent: Annotated[int | None, typer.Option(min=1, max=100, help="Percentage of jobs in a new roll-out.")] = None,
    loss_limit: Annotated[
        float | None, typer.Option(min=0, max=0.5, help="Max loss of step time, as a share, before an arm is dropped.")
    ] = None,
    delivery: Annotated[
        bool | None,
        typer.Option(help="Serve active revisions; otherwise jobs keep their own settings.", show_default=False),
    ] = None,
    approve_wins: Annotated[
        bool | None,
        typer.Option(help="Require approval of winners on step times.", show_default=False),
    ] = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Show or change the publication rules of a cluster."""
    storage = storage_url()
    from ncclt.store import open_store, open_to_read

    given: dict[str, Any] = {
        "require_approval": require_approval,
        "require_verification": require_verification,
        "percent": percent,
        "loss_limit": loss_limit,
        "delivery": delivery,
        "approve_wins": approve_wins,
    }
    wanted = {name: value for name, value in given.items() if value is not None}
    with open_store(storage) if wanted else open_to_read(storage) as store:
        store.clusters.get(cluster)
        found = store.revisions.rules(cluster)
        if wanted:
            found = replace(found, **wanted)
            store.revisions.set_rules(found, Actor(who=account_name(), why=why))
    if as_json:
        print_json(found.to_document())
        return
    print(f"{cluster}: approval by another person: {'required' if found.require_approval else 'not required'}")
    print(f"verification of step times: {'required' if found.require_verification else 'not required'}")
    print(f"new revisions: for {found.percent} % of the jobs at first, loss limit {found.loss_limit * 100:g} %")
    print(f"wins on step times: {'await approval' if found.approve_wins else 'go to all jobs at once'}")
    print("delivery to jobs: " + ("on" if found.delivery else "off; all jobs keep their own settings"))


def _change(id: str, why: str, storage: str | None, work: Callable[[Store, Actor], str]) -> None:
    from ncclt.store import open_store

    with open_store(storage, makes=False) as store:
        done = work(store, Actor(who=account_name(), why=why))
    say(f"ncclt: the revision {id} is {done}; services see it within a second")


def _with_ended(said: str, ended: tuple[str, ...]) -> str:
    """Add the roll-outs that a change ended to its message."""
    return f"{said}; this ended the roll-out{'s' if len(ended) > 1 else ''} {', '.join(ended)}" if ended else said


def _state(one: RevisionStatus) -> str:
    marks = [*(["pinned"] if one.pinned else []), *(["awaits verification"] if one.unverified else [])]
    return ", ".join([one.state.value, *marks])


def _print_history(events: tuple[HistoryEvent, ...]) -> None:
    if not events:
        sys.stdout.write("no history: nothing has changed yet\n")
        return
    rows = [
        (
            str(one.number),
            one.created[:19].replace("T", " "),
            one.action.value,
            one.cluster,
            one.model,
            one.recommendation,
            one.who,
            one.why,
        )
        for one in events
    ]
    print_table(("entry", "when", "action", "cluster", "workload", "revision", "who", "why"), rows, numbers=("entry",))
