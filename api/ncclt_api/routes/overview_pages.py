"""The pages over many studies: the map, the list, a cluster, a workload, a comparison; each also as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse, Response

from ncclt.core.api_key import Role
from ncclt.core.cluster import Cluster
from ncclt.core.recommendation import TimesOrigin
from ncclt.errors import NotFoundError, UsageError
from ncclt.store.store import Store
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentStore, StrictQuery
from ncclt_api.pages.cluster_view import ClusterFacts, cluster_view
from ncclt_api.pages.compare_view import FEWEST, MOST, Compared, compare_view
from ncclt_api.pages.home_view import home_map
from ncclt_api.pages.index_view import StudyRow, study_rows
from ncclt_api.pages.workload_view import MOST_DIFFERENT, workload_view
from ncclt_api.routes.pages import Form, json_response, page_response

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=needs(Role.READ))

STUDIES_PER_PAGE = 25
RECENT = 12
"""Studies below the map."""

PREFLIGHTS, REPORTS = 12, 10
"""Preflights and attestations on the page of a cluster."""


class Filter(StrictQuery):
    """Which clusters and workloads; empty values come from a form and mean all."""

    cluster: str = ""
    model: str = ""
    format: Form = "html"


class HomeQuery(Filter):
    """What the map shows."""

    days: Annotated[int, Field(ge=1, le=3650)] | Literal[""] = ""


class ListQuery(Filter):
    """Which page of the studies."""

    cursor: str = ""


class FindQuery(StrictQuery):
    """What was typed; a cluster confines studies to it."""

    q: str = Field("", max_length=200)
    cluster: str = ""
    format: Form = "html"


class ClusterQuery(StrictQuery):
    """In which form."""

    format: Form = "html"


class WorkloadQuery(StrictQuery):
    """What it is compared with; a cluster leaves out where else it was tuned."""

    other: str = Field("", alias="with")
    cluster: str = ""
    format: Form = "html"


class CompareQuery(StrictQuery):
    """What is compared: studies, revisions, or a workload on clusters."""

    study: list[str] = Field([], max_length=50)
    revision: list[str] = Field([], max_length=50)
    model: str = ""
    cluster: list[str] = Field([], max_length=50)
    format: Form = "html"


@router.get("/")
def show_map(query: Annotated[HomeQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Show clusters by workloads, and the newest studies below."""
    now, days = datetime.now(UTC), query.days or None
    cluster, model = query.cluster or None, query.model or None
    before = None
    if days:
        then = (now - timedelta(days=days)).isoformat(timespec="milliseconds")
        before = store.recommended_before(then, cluster=cluster, model=model)
    chart = home_map(store.pairs(cluster=cluster, model=model), now=now, before=before)
    running = _running(store, query, now)
    recent = store.recent_studies(limit=RECENT, cluster=cluster, model=model)
    effects = store.effects([one.recommendation.id for one in recent if one.recommendation])
    rows = study_rows(recent, now=now, effects=effects)
    if query.format == "json":
        return json_response({"map": chart, "running": running, "recent": rows})
    return page_response(
        request,
        "home.html",
        map=chart,
        running=running,
        recent=rows,
        days=days,
        query=_query(query),
        clusters=_names((entry.item.name for entry in store.clusters()), query.cluster),
        models=_names((entry.item.name for entry in store.workloads()), query.model),
        chosen={"cluster": query.cluster, "model": query.model, "days": str(query.days)},
        filtered=bool(query.cluster or query.model or query.days),
    )


@router.get("/live")
def show_running(query: Annotated[Filter, Query()], store: CurrentStore, request: Request) -> Response:
    """Show the running studies alone, for a page that is open."""
    running = _running(store, query, datetime.now(UTC))
    if query.format == "json":
        return json_response({"running": running})
    return page_response(request, "_live.html", running=running, query=_query(query))


@router.get("/studies")
def show_studies(query: Annotated[ListQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """List the studies, newest first."""
    page = store.studies(
        limit=STUDIES_PER_PAGE, cursor=query.cursor or None, cluster=query.cluster or None, model=query.model or None
    )
    effects = store.effects([item.recommendation.id for item in page.items if item.recommendation])
    rows = study_rows(page.items, now=datetime.now(UTC), effects=effects)
    if query.format == "json":
        return json_response({"studies": rows, "next_cursor": page.next_cursor})
    chosen = {"cluster": query.cluster, "model": query.model}
    return page_response(
        request,
        "index.html",
        rows=rows,
        chosen=chosen,
        filtered=bool(query.cluster or query.model),
        clusters=_names((entry.item.name for entry in store.clusters()), query.cluster),
        models=_names((entry.item.name for entry in store.workloads()), query.model),
        first=not query.cursor,
        newest="/studies?" + urlencode(chosen),
        older="/studies?" + urlencode({**chosen, "cursor": page.next_cursor}) if page.next_cursor else "",
    )


@router.get("/find")
def show_found(query: Annotated[FindQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Find clusters, workloads and studies by a part of their names."""
    paths = {"cluster": "/clusters/", "workload": "/workloads/", "study": "/studies/"}
    hits = [
        {"kind": hit.kind, "name": hit.name, "href": paths[hit.kind] + quote(hit.key, safe="", errors="replace")}
        for hit in store.find(query.q, cluster=query.cluster or None)
    ]
    if query.format == "json":
        return json_response({"hits": hits})
    template = "_found.html" if request.headers.get("hx-request") else "found.html"
    return page_response(request, template, hits=hits, typed=query.q)


@router.get("/clusters/{name:path}")
def show_cluster(name: str, query: Annotated[ClusterQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Show one cluster: what jobs get there, its releases of NCCL, the health of its fabric."""
    pairs = store.pairs(cluster=name)
    cluster, in_catalogue = _cluster(store, name)
    ids = [pair.recommendation.id for pair in pairs if pair.recommendation]
    facts = ClusterFacts(
        cluster=cluster,
        in_catalogue=in_catalogue,
        pairs=pairs,
        newest=store.newest_each(cluster=name),
        eras=store.eras(name),
        preflights=store.preflights(cluster=name, limit=PREFLIGHTS),
        attestations=store.attestations(ids, limit=REPORTS),
        effects=store.effects(ids),
    )
    view = cluster_view(facts, now=datetime.now(UTC))
    return json_response(view) if query.format == "json" else page_response(request, "cluster.html", view=view)


@router.get("/workloads/{name:path}")
def show_workload(
    name: str, query: Annotated[WorkloadQuery, Query()], store: CurrentStore, request: Request
) -> Response:
    """Show what one workload sends, what tuning can gain at most, and where it was tuned."""
    entries = {entry.item.name: entry for entry in store.workloads()}
    workload = store.workload(name)
    view = workload_view(
        workload,
        store.pairs(cluster=query.cluster or None, model=name),
        shipped=entries[name].shipped,
        now=datetime.now(UTC),
        other=store.workload(query.other) if query.other else None,
    )
    if query.format == "json":
        return json_response(view)
    return page_response(
        request, "workload.html", view=view, most=MOST_DIFFERENT, others=[one for one in sorted(entries) if one != name]
    )


@router.get("/compare")
def show_comparison(query: Annotated[CompareQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Set two to six results side by side."""
    found, left = _compared(query, store)
    asked = bool(query.study or query.revision or query.model)
    why = ""
    if len(found) > MOST:
        why = f"These are {len(found)}: choose at most {MOST}."
    elif asked and len(found) < FEWEST:
        why = f"There {'is only one result' if found else 'is no result'} for this choice: choose at least {FEWEST}."
    view = compare_view(found, now=datetime.now(UTC)) if asked and not why else None
    if query.format == "json":
        if view is None:
            raise UsageError(why or "nothing was chosen to compare", hint="for example ?study=ID&study=ID")
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
        clusters=_names(entry.item.name for entry in store.clusters()),
        models=_names(entry.item.name for entry in store.workloads()),
    )


def _compared(query: CompareQuery, store: Store) -> tuple[list[Compared], int]:
    """Return what was chosen, each revision with the study that gave it, and how many clusters of a workload are left.

    Who names a workload alone gets the first clusters; what is named one by one is never cut.
    """
    found = []
    for key in query.study:
        study = store.study(key)
        published = store.recommendations(study=study.id)
        found.append(Compared(study=study, recommendation=published[0] if published else None))
    revisions, left = [store.recommendation(id) for id in query.revision], 0
    if query.model and len(query.cluster) == 1:
        revisions += store.newest_each(cluster=query.cluster[0], model=query.model)[:MOST]
    elif query.model:
        newest = [pair.recommendation for pair in store.pairs(model=query.model) if pair.recommendation]
        newest.sort(key=lambda one: (list(TimesOrigin).index(one.origin), one.cluster))
        if query.cluster:
            revisions += [one for one in newest if one.cluster in query.cluster]
        else:
            revisions, left = revisions + newest[:MOST], max(0, len(newest) - MOST)
    return found + [Compared(study=store.study(one.study), recommendation=one) for one in revisions], left


def _running(store: Store, query: Filter, now: datetime) -> Sequence[StudyRow]:
    return study_rows(store.running_studies(cluster=query.cluster or None, model=query.model or None), now=now)


def _cluster(store: Store, name: str) -> tuple[Cluster, bool]:
    """Return a cluster, and whether it is in the catalogue; one that left it is known from its newest study."""
    try:
        return store.cluster(name), True
    except NotFoundError:
        if items := store.studies(limit=1, cluster=name).items:
            return items[0].study.cluster, False
        raise


def _names(names: Any, chosen: str = "") -> list[str]:
    # A study may belong to a cluster or workload that has since left the catalogue.
    return sorted({*names, chosen} - {""})


def _query(query: Filter) -> str:
    chosen = {"cluster": query.cluster, "model": query.model}
    return "?" + urlencode({name: value for name, value in chosen.items() if value}, errors="replace")
