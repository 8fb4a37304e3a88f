"""The page of one revision: its delivery to jobs, its use in every format, and the forms that change its state."""

from __future__ import annotations

import shlex
import tomllib
import uuid
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal

from fastapi import Form, Query, Request
from pydantic import Field
from starlette.responses import RedirectResponse, Response

from ncclt.core.api_key import Role
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import Recommendation, select
from ncclt.core.revision import MOST_WHY, Action, Actor, RevisionState, RevisionStatus
from ncclt.core.rollout import OPEN_STATES, RollOut
from ncclt.deliver.render.delivery import choose_form, deliver_table, deliver_variables, job_options
from ncclt.deliver.render.formats import FORMATS, TABLE_FORMATS, render
from ncclt.errors import NccltError, NotFoundError, StaleRecommendationError, UsageError
from ncclt.store.clock import utc_now
from ncclt.store.store import Store
from ncclt_api.access import needs, who
from ncclt_api.dependencies import CurrentRecommendation, CurrentStore
from ncclt_api.pages.compare import ComparisonRow, compare, find_compared
from ncclt_api.pages.response import CurrentPage, PageQuery, page_router
from ncclt_api.pages.results import is_for_other_version
from ncclt_api.pages.rollouts import Holds
from ncclt_api.routes.recommendations import JobQuery
from ncclt_api.routes.revisions import VERBS, RollOutDocument
from ncclt_api.sign_in import OwnForm

router = page_router(prefix="/recommendations")

_SHOWN = 20
"""Entries of each list."""

_WORDS: dict[str, dict[str, tuple[str, str]]] = tomllib.loads(
    Path(__file__).with_name("recommendation.toml").read_text("utf-8")
)
_FORMATS, _ACTIONS = _WORDS["formats"], _WORDS["actions"]
"""Format -> its reader and the command that fetches it; action -> its button and its effect."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """Format that can express a revision.

    Attributes:
        format: as `ncclt env --format` names it.
        reader: program that reads it.
        command: to type.
        text: its output.
    """

    format: str
    reader: str
    command: str
    text: str

    @property
    def option(self) -> tuple[str, str]:
        """Return value and text of its entry in a list."""
        return self.format, f"{self.format}: {self.reader}"


@dataclass(frozen=True, slots=True)
class RevisionNotice:
    """Notice of a revision that not all jobs get.

    Attributes:
        label, sentence: the state, and what jobs get today.
        rollout: id of its open roll-out; empty = none.
        badge: text that replaces its verdict; empty = the verdict is still one for jobs of its cluster.
    """

    label: str
    sentence: str
    rollout: str = ""
    badge: str = ""


class RevisionQuery(PageQuery):
    """Format of the page, and chosen format of the revision; empty = the recommended one."""

    use: str = Field("", max_length=40)


class ServedQuery(RevisionQuery, JobQuery):
    """The job; an omitted part matches anything."""

    cluster: str = Field(min_length=1, max_length=5000)
    model: str = Field(min_length=1, max_length=5000)


@router.get("", dependencies=needs(Role.READ))
def show_served(
    query: Annotated[ServedQuery, Query()], store: CurrentStore, request: Request, page: CurrentPage
) -> Response:
    """Show the recommendation served now: a permanent address for a cluster, a workload and the shape of a job."""
    job = query.request(cluster=query.cluster, model=query.model)
    published = store.recommendations.newest(cluster=query.cluster, model=query.model)
    try:
        revision = select(published, job, partly=True)
    except StaleRecommendationError:
        revision = next(row for row in published if not job.refusal(row.fingerprint))
    return show_revision(revision, query, store, request, page)


@router.get("/{id}", dependencies=needs(Role.READ))
def show_revision(
    revision: CurrentRecommendation,
    query: Annotated[RevisionQuery, Query()],
    store: CurrentStore,
    request: Request,
    page: CurrentPage,
) -> Response:
    """Show one revision."""
    served = find_served(store, revision)
    served_id = served.id if served else ""
    status = store.revisions.status(revision.id)
    events = store.revisions.history(recommendation=revision.id, limit=_SHOWN)
    rollout = next(iter(store.revisions.rollouts(recommendation=revision.id, limit=1)), None)
    differences: list[ComparisonRow] = []
    if served and served.id != revision.id:
        comparison = compare([find_compared(store, served), find_compared(store, revision)])
        differences = [row for row in (*comparison["facts"], *comparison["rules"]) if row.differs]
    source = server_option(request.app.state.public_url)
    open_rollout = rollout if rollout and rollout.is_open else None
    is_usable = served_id == revision.id and not (revision.stale or revision.label)
    values = {
        "recommendation": revision,
        "status": status,
        "use": choose_form(revision, source=source),
        "snippets": list_snippets(revision, source=source) if is_usable else (),
        "served": served_id,
        "revisions": _list_siblings(store, status),
        "approvals": [event for event in events if event.action is Action.APPROVED],
        "events": events,
        "rechecks": store.records.rechecks(revision.id)[:_SHOWN],
        "differences": differences,
        "actions": list_actions(status, open_rollout, is_untried=revision.is_untried),
        "delivery": describe_delivery(store, revision, served),
        "percent": store.revisions.rules(revision.cluster).percent,
        # Without the seed: who knows it can choose the name of a job.
        "rollout": RollOutDocument.model_validate(rollout.to_document()) if rollout else None,
    }
    return page.write("recommendation.html", query, values, rollout=rollout, wanted=query.use)


@router.post("/{id}/{verb}", dependencies=[*needs(Role.APPROVE), OwnForm])
def change(
    revision: CurrentRecommendation,
    verb: Literal["approve", "activate", "rollback", "pin", "unpin", "retire", "stale"],
    store: CurrentStore,
    request: Request,
    why: Annotated[str, Form(max_length=MOST_WHY)] = "",
    percent: Annotated[int | None, Form(ge=1, le=100)] = None,
    rollout: Annotated[str, Form(pattern="^[0-9a-f]{0,12}$")] = "",
) -> Response:
    """Change the state of a revision, and show the page of the form again, of the revision or of a roll-out."""
    actor = Actor(who=who(request), why=why.strip())
    if verb == "approve":
        store.revisions.approve(revision.id, actor, percent=percent)
    elif verb == "stale":
        _mark_stale(store, revision, actor)
    else:
        VERBS[verb].change(store.revisions, revision.id, actor)
    return RedirectResponse(f"/roll-outs/{rollout}" if rollout else f"/recommendations/{revision.id}", 303)


def _mark_stale(store: Store, revision: Recommendation, by: Actor) -> None:
    """Store the finding of a person as a recheck, so that `ncclt recheck` can refute it."""
    if not by.why:
        raise UsageError("marking a revision stale needs a reason", hint="describe the problem")
    recheck = Recheck(
        id=uuid.uuid4().hex[:12],
        recommendation=revision.id,
        cluster=revision.cluster,
        model=revision.model,
        freshness=Freshness.STALE,
        reasons=(f"{by.why} ({by.who})",),
        changes=(),
        launches=0,
        launcher="",
        created=utc_now(),
    )
    store.records.add_recheck(recheck, by=by)


def _list_siblings(store: Store, status: RevisionStatus) -> list[RevisionStatus]:
    """Return the newest revisions for the same jobs, of the same origin."""
    shape = attrgetter("nodes", "gpus_per_node", "nccl_version", "origin")
    rows = store.revisions.statuses(cluster=status.cluster, model=status.model, limit=200)
    return [row for row in rows if shape(row) == shape(status)][:_SHOWN]


def server_option(url: str) -> str:
    """Return the option of commands that names this service, after a space; empty where it has no address."""
    return f" --server {shlex.quote(url)}" if url else ""


def find_served(store: Store, revision: Recommendation) -> Recommendation | None:
    """Return the revision that jobs of the same shape get; None = none."""
    shape = attrgetter("fingerprint", "origin")
    newest = store.recommendations.newest(cluster=revision.cluster, model=revision.model)
    return next((row for row in newest if shape(row) == shape(revision)), None)


def describe_delivery(store: Store, revision: Recommendation, served: Recommendation | None) -> RevisionNotice | None:
    """Return the notice of a revision that not all jobs get; None = all get it, or one of another study.

    Args:
        store: of the revision.
        revision: the revision.
        served: as of `find_served`.
    """
    id, cluster = revision.id, revision.cluster
    open_rollouts = store.revisions.rollouts(cluster=cluster, model=revision.model, state=OPEN_STATES)
    rollouts = [row for row in open_rollouts if id in (row.control, *(arm.recommendation for arm in row.arms))]
    holds = Holds.read(store, rollouts)
    active = served if served and served.id != id else None
    others = f"get revision {active.revision}" if active else "keep their own settings"
    if cluster in holds.switched_off:
        return RevisionNotice("Delivery is off.", f"All jobs on {cluster} keep their own settings until it is on.")
    if rollouts:
        return _describe_roll_out(rollouts[0], revision, holds, others)
    if active and active.stale:
        sentence = (
            f"No job gets it: revision {active.revision}, the active one, is stale; "
            "`ncclt recheck` or `ncclt tune` renews that."
        )
        return RevisionNotice("Not active.", sentence)
    if served is None or (active and active.study == revision.study):
        return RevisionNotice("Not active.", f"Jobs {others}.")
    return None if active else _describe_other_version(store, revision)


def _describe_roll_out(rollout: RollOut, revision: Recommendation, holds: Holds, others: str) -> RevisionNotice:
    """Return the notice of a revision that is an arm or the control of an open roll-out."""
    held, is_control = holds.explain(rollout), rollout.control == revision.id
    share = holds.percent(rollout, "" if is_control else revision.id)
    if is_control and revision.stale:
        sentence = f"No job that starts gets it: {held}."
    elif is_control:
        sentence = f"{share:.3g} % of the jobs that start get a candidate; the others get this revision."
    elif share:
        sentence = f"{share:.3g} % of the jobs that start get it; the others {others}."
    elif held:
        sentence = f"No job that starts gets it: {held}."
    else:
        sentence = f"It is paused: all jobs that start {others}."
    return RevisionNotice("In a roll-out.", sentence, rollout=rollout.id)


def _describe_other_version(store: Store, revision: Recommendation) -> RevisionNotice | None:
    """Return the notice of a gain for another NCCL version than that of the cluster in the catalogue."""
    try:
        installed = str(store.clusters.get(revision.cluster).version)
    except NotFoundError:
        return None
    if not is_for_other_version(revision, installed):
        return None
    tuned_for = revision.fingerprint.nccl_version
    sentence = (
        f"Tuned with NCCL {tuned_for}; jobs with NCCL {installed}, that of the cluster, do not get it."
        " `ncclt upgrade` says what to tune again."
    )
    return RevisionNotice("For another NCCL version.", sentence, badge=f"for NCCL {tuned_for}")


def list_snippets(revision: Recommendation, *, source: str) -> tuple[Snippet, ...]:
    """Return the formats that can express a revision; the others would set nothing.

    Args:
        revision: the revision.
        source: options of the commands that name its store or server, with a space before each.
    """
    job = job_options(revision, source=source)
    snippets = []
    for format in FORMATS:
        reader, command = _FORMATS[format]
        with suppress(NccltError):  # it cannot express the policy
            if _sets_anything(revision, format):
                text = render(revision, format=format, group="tp" if format == "megatron-yaml" else "")
                snippets.append(Snippet(format, reader, command.replace("{job}", job), text))
    return tuple(snippets)


def list_actions(
    status: RevisionStatus, rollout: RollOut | None, *, is_untried: bool = False
) -> dict[str, tuple[str, str]]:
    """Return the actions that the state of a revision allows, with button and effect.

    Args:
        status: of the revision.
        rollout: open one with it as an arm; None = none.
        is_untried: it has no evidence, so only a share of the jobs may try it.
    """
    if rollout is not None and status.id == rollout.winner:
        return {"approve": _ACTIONS["promote"], "retire": _ACTIONS["retire"]}
    verbs = {
        RevisionState.CANDIDATE: ("approve", "retire") if is_untried else ("approve", "activate", "retire"),
        RevisionState.ACTIVE: ("unpin", "stale") if status.pinned else ("pin", "stale", "retire"),
        RevisionState.STALE: ("unpin",) if status.pinned else ("retire",),
        RevisionState.RETIRED: ("rollback",),
    }[status.state]
    return {verb: _ACTIONS[verb] for verb in verbs if verb != "approve" or rollout is None}


def _sets_anything(revision: Recommendation, format: str) -> bool:
    if format in TABLE_FORMATS:
        return bool(deliver_table(revision).rules)
    if format == "json":  # has both
        return any(form is not None and not form.effective.is_default for form in (revision.table, revision.variables))
    return bool(deliver_variables(revision).variables)
