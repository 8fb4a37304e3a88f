"""The pages over many studies: the map, the list, a cluster, a workload, a comparison; each also as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse, Response

from ncclt.core.api_key import Role
from ncclt.core.cluster import Cluster
from ncclt.core.revision import Action
from ncclt.core.rollout import OPEN_STATES
from ncclt.core.study import StudyEntry
from ncclt.core.trial import TimesOrigin
from ncclt.errors import NotFoundError, UsageError
from ncclt.health.preflight.heat_map import heat_maps
from ncclt.profile.views.difference import compare_workloads
from ncclt.profile.views.exposure import bound_gain
from ncclt.profile.views.histogram import find_median_sizes, histogram
from ncclt.store.recommendations import FingerprintPeriod, Pair
from ncclt.store.store import Store
from ncclt.user_dirs import recorded_tables
from ncclt_api.access import needs
from ncclt_api.dependencies import MOST_NUMBER, CurrentStore, StrictQuery
from ncclt_api.pages.compare import FEWEST, MOST, Compared, compare
from ncclt_api.pages.gain import compare_jobs, gain_chart, group_comparable
from ncclt_api.pages.overview import ORIGIN_ORDER, build_map, compare_releases, is_for_other_version, list_cells, sum_up
from ncclt_api.pages.rollouts import Holds
from ncclt_api.routes.pages import Form, PageQuery, json_response, page_response
from ncclt_api.schemas import StudySummaryDocument, study_summary_document

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=needs(Role.READ))

STUDIES_PER_PAGE = 25
RECENT = 12
"""Studies below the map."""

PREFLIGHTS, REPORTS = 12, 10
"""Preflights and attestations on the page of a cluster."""

USUAL_DAYS = 30
"""Default period of the summary of recent verdicts, days."""

MOST_STALE = 100
"""Max rows of the list of stale recommendations."""

MOST_VERDICTS, MOST_EVENTS, MOST_ROLLOUTS, JOBS_PER_PAGE = 150, 200, 20, 25
"""Revisions, entries of the history, roll-outs and jobs on the page of a workload on a cluster."""

MOST_MESSAGES, MOST_DIFFERENT = 60, 40
"""Rows of the tables of messages and of differences on the page of a workload; the API has all of them."""


class Filter(StrictQuery):
    """Filter by cluster and workload; empty values come from a form and mean all."""

    cluster: str = ""
    model: str = ""
    format: Form = "html"


class HomeQuery(Filter):
    """Filter of the map, and the period of changes, days; the state `stale` lists stale recommendations instead."""

    days: Annotated[int, Field(ge=1, le=3650)] | Literal[""] = ""
    state: Literal["", "stale"] = ""


class ListQuery(Filter):
    """Filter of the list, and its page."""

    cursor: str = ""


class FindQuery(StrictQuery):
    """Text to find; a cluster confines studies to it."""

    q: str = Field("", max_length=200)
    cluster: str = ""
    format: Form = "html"


class WorkloadQuery(StrictQuery):
    """Another workload to compare with; a cluster hides results elsewhere."""

    other: str = Field("", alias="with")
    cluster: str = ""
    format: Form = "html"


class GainQuery(PageQuery):
    """Group of verdicts in the chart, and page of the jobs of roll-outs; empty = the first."""

    jobs: str = Field("", max_length=200)
    before: int | None = Field(None, ge=1, le=MOST_NUMBER)


class CompareQuery(StrictQuery):
    """Results to compare: studies, revisions, or a workload on clusters."""

    study: list[str] = Field([], max_length=50)
    revision: list[str] = Field([], max_length=50)
    model: str = ""
    cluster: list[str] = Field([], max_length=50)
    format: Form = "html"


@router.get("/")
def show_map(query: Annotated[HomeQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Show clusters by workloads, and the newest studies below."""
    days = query.days or None
    cluster, model = query.cluster or None, query.model or None
    then = (datetime.now(UTC) - timedelta(days=days or USUAL_DAYS)).isoformat(timespec="milliseconds")
    before = store.recommendations.preferred_before(then, cluster=cluster, model=model) if days else None
    verdicts = store.recommendations.find(cluster=cluster, model=model, origin=TimesOrigin.MEASURED, since=then)
    pairs = store.recommendations.pairs(cluster=cluster, model=model)
    lost = [pair.recommendation for pair in pairs if pair.recommendation and pair.recommendation.stale]
    lost.sort(key=lambda one: ORIGIN_ORDER[one.origin])  # real clusters first
    stale = lost if query.state else None
    measured = [one.id for one in lost if one.origin is TimesOrigin.MEASURED]
    marks = store.revisions.history(recommendation=measured, action=Action.STALE) if measured else ()
    recent_marks = {mark.recommendation for mark in marks if mark.created >= then}
    gain = sum_up(verdicts, stale=len(recent_marks), days=days or USUAL_DAYS)
    catalogue = [cluster for cluster, _ in store.clusters.entries()]
    versions = {cluster.name: str(cluster.version) for cluster in catalogue}
    shown, running = build_map(pairs, nccl_versions=versions, before=before), _running(store, query)
    recent = store.studies.recent(limit=RECENT, cluster=cluster, model=model)
    rollouts = store.revisions.rollouts(cluster=cluster, model=model, state=OPEN_STATES)
    holds = Holds.read(store, rollouts)
    rolling = {(one.cluster, one.model): {"id": one.id, "percent": holds.percent(one)} for one in rollouts}
    if query.format == "json":
        lists = {
            "running": _summaries(running),
            "recent": _summaries(recent),
            "stale": stale,
        }
        return json_response({"map": list_cells(shown, rolling), "gain": gain, **lists})
    return page_response(
        request,
        "home.html",
        map=shown,
        gain=gain,
        stale=stale,
        most_stale=MOST_STALE,
        stale_path="/?" + urlencode({"cluster": query.cluster, "model": query.model, "state": "stale"}),
        running=running,
        rolling=rolling,
        recent=recent,
        effects=_effects(store, recent),
        days=days,
        query=_query(query),
        clusters=list_names(versions, query.cluster),
        models=list_names((workload.name for workload, _ in store.workloads.entries()), query.model),
        chosen={"cluster": query.cluster, "model": query.model, "days": str(query.days), "state": query.state},
        filtered=bool(query.cluster or query.model or query.days or query.state),
    )


@router.get("/live")
def show_running(query: Annotated[Filter, Query()], store: CurrentStore, request: Request) -> Response:
    """Show the running studies alone, for a page that is open."""
    running = _running(store, query)
    if query.format == "json":
        return json_response({"running": _summaries(running)})
    return page_response(request, "_live.html", running=running, query=_query(query))


@router.get("/studies")
def show_studies(query: Annotated[ListQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """List the studies, newest first."""
    page = store.studies.page(
        limit=STUDIES_PER_PAGE, cursor=query.cursor or None, cluster=query.cluster or None, model=query.model or None
    )
    if query.format == "json":
        return json_response({"studies": _summaries(page.items), "next_cursor": page.next_cursor})
    chosen = {"cluster": query.cluster, "model": query.model}
    return page_response(
        request,
        "index.html",
        rows=page.items,
        effects=_effects(store, page.items),
        chosen=chosen,
        filtered=bool(query.cluster or query.model),
        clusters=list_names((cluster.name for cluster, _ in store.clusters.entries()), query.cluster),
        models=list_names((workload.name for workload, _ in store.workloads.entries()), query.model),
        first=not query.cursor,
        newest="/studies?" + urlencode(chosen),
        older="/studies?" + urlencode({**chosen, "cursor": page.next_cursor}) if page.next_cursor else "",
    )


@router.get("/find")
def show_found(query: Annotated[FindQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Find clusters, workloads and studies by a part of their names."""
    paths = {"cluster": "/clusters/", "workload": "/workloads/", "study": "/studies/"}
    hits = [
        {"kind": kind, "name": name, "href": paths[kind] + quote(key, safe="", errors="replace")}
        for kind, key, name in store.studies.search(query.q, cluster=query.cluster or None)
    ]
    if query.format == "json":
        return json_response({"hits": hits})
    template = "_found.html" if request.headers.get("hx-request") else "found.html"
    return page_response(request, template, hits=hits, typed=query.q)


@router.get("/clusters/{name:path}/workloads/{model:path}")
def show_gain(
    name: str, model: str, query: Annotated[GainQuery, Query()], store: CurrentStore, request: Request
) -> Response:
    """Show one workload on one cluster over time: verdicts, later events, and the jobs of roll-outs."""
    now = datetime.now(UTC)
    found = store.recommendations.find(cluster=name, model=model, limit=MOST_VERDICTS)
    if not found:  # an unknown name is an error
        find_cluster(store, name)
        store.workloads.get(model)
    groups = group_comparable(found)
    chosen = query.jobs if query.jobs in groups else next(iter(groups), "")
    ids = [one.id for one in groups.get(chosen, ())]
    listed = store.revisions.newest_starts(cluster=name, model=model, before=query.before, limit=JOBS_PER_PAGE + 1)
    starts = [(start, control) for _, start, control in listed[:JOBS_PER_PAGE]]
    times = store.revisions.job_times(*{start.rollout for start, _ in starts})
    values: dict[str, Any] = {
        "cluster": name,
        "model": model,
        "groups": list(groups),
        "chosen": chosen,
        "timeline": gain_chart(
            groups.get(chosen, ()),
            rechecks=store.records.rechecks(*ids),
            marks=store.revisions.history(recommendation=ids, action=Action.STALE, limit=MOST_EVENTS),
            rollouts=store.revisions.rollouts(cluster=name, model=model, limit=MOST_ROLLOUTS),
            now=now,
        ),
        "jobs": compare_jobs(starts, times, now=now),
        "before": listed[JOBS_PER_PAGE - 1][0] if len(listed) > JOBS_PER_PAGE else None,
    }
    if query.format == "json":
        return json_response(values)
    return page_response(
        request,
        "gain.html",
        newest=found[0] if found else None,
        revisions={one.id: one.revision for one in found},
        is_cut=len(found) == MOST_VERDICTS,
        is_demonstration=bool(ids) and bool(groups[chosen][0].label),
        is_first=query.before is None,
        **values,
    )


@router.get("/clusters/{name:path}")
def show_cluster(name: str, query: Annotated[PageQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Show one cluster: what jobs get there, its releases of NCCL, the health of its fabric."""
    pairs = store.recommendations.pairs(cluster=name)
    cluster, in_catalogue = find_cluster(store, name)
    shown = [pair.recommendation for pair in pairs if pair.recommendation]
    ids = [one.id for one in shown]
    installed = str(cluster.version) if in_catalogue else ""
    newest, described = store.recommendations.newest_each(cluster=name), cluster.fingerprint()
    # The catalogue does not know the variables of the site, which measurements add.
    current = next((one.fingerprint for one in newest if not described.mismatches(one.fingerprint)), described)
    eras = store.recommendations.fingerprint_periods(name)
    if current.digest() not in {era.fingerprint for era in eras}:
        eras = (FingerprintPeriod(fingerprint=current.digest(), revisions=0, first="", last=""), *eras)
    versions, by_release = compare_releases(newest)
    preflights = store.records.preflights(cluster=name, limit=PREFLIGHTS)
    mapped = next((one for one in preflights if heat_maps(one)), None)
    values: dict[str, Any] = {
        "cluster": cluster,
        "in_catalogue": in_catalogue,
        "pairs": pairs,
        "effects": store.records.effects(ids),
        "versions": versions,
        "by_release": by_release,
        "eras": eras,
        "current": current.digest(),
        "fingerprints": {place.digest(): place for place in (current, *(one.fingerprint for one in newest))},
        "preflights": preflights,
        "mapped": mapped,
        "heat_maps": heat_maps(mapped) if mapped else (),
        "attestations": store.records.attestations(ids, limit=REPORTS),
        "rules": store.revisions.rules(name),
        "other_version": [one.model for one in shown if is_for_other_version(one, installed)],
        "open_rollouts": len(store.revisions.rollouts(cluster=name, state=OPEN_STATES)),
    }
    if query.format == "json":
        return json_response(values)
    return page_response(request, "cluster.html", is_recorded=name in recorded_tables(), **values)


@router.get("/workloads/{name:path}")
def show_workload(
    name: str, query: Annotated[WorkloadQuery, Query()], store: CurrentStore, request: Request
) -> Response:
    """Show the messages of one workload, the most that tuning can gain, and where it was tuned."""
    shipped = {entry.name: is_shipped for entry, is_shipped in store.workloads.entries()}
    workload = store.workloads.get(name)
    other = store.workloads.get(query.other) if query.other else None
    weights = workload.weights()
    values: dict[str, Any] = {
        "workload": workload,
        "shipped": shipped[name],
        "calls": sum(calls.calls_per_step for calls in workload.messages),
        "half": find_median_sizes(workload),
        "bins": histogram(workload),
        "bound": bound_gain(workload),
        "dominant": {calls.message for calls in workload.dominant()},
        "shares": sorted(
            ((calls, weight / sum(weights)) for calls, weight in zip(workload.messages, weights, strict=True)),
            key=lambda pair: -pair[1],
        ),
        "pairs": sorted(store.recommendations.pairs(cluster=query.cluster or None, model=name), key=_best_first),
        "other": other,
        "changes": compare_workloads(workload, other) if other else None,
    }
    if query.format == "json":
        return json_response(values)
    return page_response(
        request,
        "workload.html",
        others=[one for one in sorted(shipped) if one != name],
        most_messages=MOST_MESSAGES,
        most_different=MOST_DIFFERENT,
        **values,
    )


@router.get("/compare")
def show_comparison(query: Annotated[CompareQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Set two to six results side by side."""
    found, left = _compared(query, store)
    asked = bool(query.study or query.revision or query.model)
    why = ""
    if len(found) > MOST:
        why = f"{len(found)} results selected: select at most {MOST}."
    elif asked and len(found) < FEWEST:
        why = f"{'Only one result' if found else 'No result'} for this selection: select at least {FEWEST}."
    view = compare(found) if asked and not why else None
    if query.format == "json":
        if view is None:
            raise UsageError(why or "nothing selected to compare", hint="for example ?study=ID&study=ID")
        return json_response(view)
    return page_response(
        request,
        "compare.html",
        view=view,
        why=why,
        left=left,
        most=MOST,
        chosen=query.model,
        chosen_clusters=query.cluster,
        clusters=list_names(cluster.name for cluster, _ in store.clusters.entries()),
        models=list_names(workload.name for workload, _ in store.workloads.entries()),
    )


def _compared(query: CompareQuery, store: Store) -> tuple[list[Compared], int]:
    """Return the selected revisions with their studies, and the number of clusters that are left out.

    A workload alone selects its first clusters; a selection one by one is never cut.
    """
    found = []
    for key in query.study:
        study = store.studies.get(key)
        published = store.recommendations.find(study=study.id)
        found.append(Compared(study=study, recommendation=published[0] if published else None))
    revisions, left = [store.recommendations.get(id) for id in query.revision], 0
    if query.model and len(query.cluster) == 1:
        revisions += store.recommendations.newest_each(cluster=query.cluster[0], model=query.model)[:MOST]
    elif query.model:
        newest = [pair.recommendation for pair in store.recommendations.pairs(model=query.model) if pair.recommendation]
        newest.sort(key=lambda one: (list(TimesOrigin).index(one.origin), one.cluster))
        if query.cluster:
            revisions += [one for one in newest if one.cluster in query.cluster]
        else:
            revisions, left = revisions + newest[:MOST], max(0, len(newest) - MOST)
    return found + [Compared(study=store.studies.get(one.study), recommendation=one) for one in revisions], left


def _running(store: Store, query: Filter) -> Sequence[StudyEntry]:
    return store.studies.running(cluster=query.cluster or None, model=query.model or None)


def _summaries(studies: Iterable[StudyEntry]) -> list[StudySummaryDocument]:
    return [study_summary_document(one) for one in studies]


def _effects(store: Store, studies: Iterable[StudyEntry]) -> Mapping[str, str]:
    """Return the effect in the newest attestation of each recommendation that has one."""
    return store.records.effects([one.recommendation.id for one in studies if one.recommendation])


def _best_first(pair: Pair) -> tuple[bool, bool, float, str]:
    found = pair.recommendation
    if found is None:
        return True, True, 0.0, pair.cluster
    return bool(found.stale), bool(found.label), -found.table.verdict.speedup, pair.cluster


def find_cluster(store: Store, name: str) -> tuple[Cluster, bool]:
    """Return a cluster, and whether it is in the catalogue; one that left it is known from its newest study."""
    try:
        return store.clusters.get(name), True
    except NotFoundError:
        if items := store.studies.page(limit=1, cluster=name).items:
            return items[0].study.cluster, False
        raise


def list_names(names: Iterable[str], chosen: str = "") -> list[str]:
    """Return the options of a filter: a study may belong to a cluster or workload that has left the catalogue."""
    return sorted({*names, chosen} - {""})


def _query(query: Filter) -> str:
    chosen = {"cluster": query.cluster, "model": query.model}
    return "?" + urlencode({name: value for name, value in chosen.items() if value}, errors="replace")
