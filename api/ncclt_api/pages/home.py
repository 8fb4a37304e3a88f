"""The home page with the map of clusters by workloads, and the pages that list and find studies."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from ncclt.core.api_key import Role
from ncclt.core.cluster import NO_GPU
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.revision import Action
from ncclt.core.rollout import OPEN_STATES
from ncclt.core.study import StudyEntry
from ncclt.core.trial import TimesOrigin
from ncclt.store.recommendations import Pair
from ncclt.store.store import Store
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentStore
from ncclt_api.json_models import StudySummaryDocument, study_summary_document
from ncclt_api.pages.response import CurrentPage, Filter, PageQuery, json_response, page_router
from ncclt_api.pages.results import ORIGIN_ORDER, Result, build_result, is_for_other_version
from ncclt_api.pages.rollouts import Holds

router = page_router(dependencies=needs(Role.READ))

STUDIES_PER_PAGE = 25
RECENT = 12
"""Studies below the map."""

USUAL_DAYS = 30
"""Default period of the summary of recent verdicts, days."""

MOST_ROWS, MOST_COLUMNS = 40, 24
"""Largest map on one page; a filter shows the rest."""


class HomeQuery(Filter):
    """Filter of the map, and the period of changes, days; the state `stale` lists stale recommendations instead."""

    days: Annotated[int, Field(ge=1, le=3650)] | Literal[""] = ""
    state: Literal["", "stale"] = ""


class ListQuery(Filter):
    """Filter of the list, and its page."""

    cursor: str = ""


class FindQuery(PageQuery):
    """Text to find; a cluster confines studies to it."""

    q: str = Field("", max_length=200)
    cluster: str = ""


@router.get("/")
def show_map(query: Annotated[HomeQuery, Query()], store: CurrentStore, page: CurrentPage) -> Response:
    """Show clusters by workloads, and the newest studies below."""
    names, days = query.names, query.days or USUAL_DAYS
    since = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="milliseconds")
    before = store.recommendations.preferred_before(since, **names) if query.days else None
    pairs = store.recommendations.pairs(**names)
    stale = [pair.recommendation for pair in pairs if pair.recommendation and pair.recommendation.stale]
    stale.sort(key=lambda revision: ORIGIN_ORDER[revision.origin])  # real clusters first
    gain = _sum_up_recent(store, names, stale, since=since, days=days)
    versions = {cluster.name: str(cluster.version) for cluster, _ in store.clusters.entries()}
    home_map = _build_map(pairs, versions, before)
    running, recent = store.studies.running(**names), store.studies.recent(limit=RECENT, **names)
    rollouts = store.revisions.rollouts(**names, state=OPEN_STATES)
    holds = Holds.read(store, rollouts)
    rolling = {(row.cluster, row.model): {"id": row.id, "percent": holds.percent(row)} for row in rollouts}
    listed = stale if query.state else None
    if query.format == "json":
        studies = {"running": _summarize(running), "recent": _summarize(recent)}
        return json_response({"map": _list_cells(home_map, rolling), "gain": gain, **studies, "stale": listed})
    return page.write_html(
        "home.html",
        query=query,
        map=home_map,
        gain=gain,
        stale=listed,
        running=running,
        rolling=rolling,
        recent=recent,
        effects=_find_effects(store, recent),
    )


def _sum_up_recent(
    store: Store, names: Mapping[str, Any], stale: Iterable[Recommendation], *, since: str, days: int
) -> dict[str, Any]:
    """Count the measured verdicts since a time: all, tuned, and newly stale.

    Verdicts without evidence and verdicts over gloo do not count. The median is the median speed-up of the tuned
    results; None = no gain.
    """
    verdicts = store.recommendations.find(**names, origin=TimesOrigin.MEASURED, since=since)
    results = [build_result(row) for row in verdicts if not row.is_untried and row.fingerprint.gpu != NO_GPU]
    speedups = [result.verdict.speedup for result in results if result.is_tuned]
    measured = [revision.id for revision in stale if revision.origin is TimesOrigin.MEASURED]
    marks = store.revisions.history(recommendation=measured, action=Action.STALE) if measured else ()
    return {
        "days": days,
        "verdicts": len(results),
        "tuned": len(speedups),
        "stale": len({mark.recommendation for mark in marks if mark.created >= since}),
        "median": statistics.median(speedups) if speedups else None,
    }


@router.get("/live")
def show_running(query: Annotated[Filter, Query()], store: CurrentStore, page: CurrentPage) -> Response:
    """Show the running studies alone, for a page that is open."""
    running = store.studies.running(**query.names)
    if query.format == "json":
        return json_response({"running": _summarize(running)})
    return page.write_html("_live.html", running=running, query=query)


@router.get("/studies")
def show_studies(query: Annotated[ListQuery, Query()], store: CurrentStore, page: CurrentPage) -> Response:
    """List the studies, newest first."""
    part = store.studies.page(limit=STUDIES_PER_PAGE, cursor=query.cursor or None, **query.names)
    if query.format == "json":
        return json_response({"studies": _summarize(part.items), "next_cursor": part.next_cursor})
    return page.write_html(
        "index.html",
        query=query,
        rows=part.items,
        effects=_find_effects(store, part.items),
        older=query.address("/studies", cursor=part.next_cursor) if part.next_cursor else "",
    )


@router.get("/find")
def find_names(
    query: Annotated[FindQuery, Query()], store: CurrentStore, page: CurrentPage, request: Request
) -> Response:
    """Find clusters, workloads and studies by a part of their names."""
    paths = {"cluster": "/clusters/", "workload": "/workloads/", "study": "/studies/"}
    hits = [
        {"kind": kind, "name": name, "href": paths[kind] + quote(key, safe="", errors="replace")}
        for kind, key, name in store.studies.search(query.q, cluster=query.cluster or None)
    ]
    template = "_found.html" if request.headers.get("hx-request") else "found.html"
    return page.write(template, query, {"hits": hits}, typed=query.q)


def _summarize(studies: Iterable[StudyEntry]) -> list[StudySummaryDocument]:
    return [study_summary_document(entry) for entry in studies]


def _find_effects(store: Store, studies: Iterable[StudyEntry]) -> Mapping[str, str]:
    """Return the effect in the newest attestation of each recommendation that has one."""
    return store.records.effects([entry.recommendation.id for entry in studies if entry.recommendation])


def _build_map(
    pairs: Collection[Pair], versions: Mapping[str, str], before: Mapping[tuple[str, str], Recommendation] | None
) -> dict[str, Any]:
    """Build the map of pairs: the newest result of each workload on each cluster.

    Args:
        pairs: pairs in any order.
        versions: cluster -> its NCCL version, if known.
        before: names -> result at an earlier time; None = no comparison.

    Returns:
        models: the columns.
        clusters: the rows: measured, then recorded, then simulated; within each those with most workloads first.
        rows: pairs of each cluster in the order of the columns; None = no result.
        changes: names -> earlier result as text, for pairs that changed since the earlier time; None = no comparison.
        other_version: names of the pairs tuned for another NCCL version than the cluster's.
        counts: counts of all pairs, on the page or not.
        clusters_left, models_left: numbers of clusters and models beyond the page.
    """
    placed: dict[str, dict[str, Pair]] = {}
    for pair in pairs:
        placed.setdefault(pair.cluster, {})[pair.model] = pair
    used = Counter(pair.model for pair in pairs)
    models = sorted(sorted(used), key=lambda name: -used[name])
    clusters = sorted(placed, key=lambda name: (_rank(placed[name].values()), -len(placed[name]), name))
    columns, rows = models[:MOST_COLUMNS], clusters[:MOST_ROWS]
    changes = None if before is None else _find_changes(pairs, before)
    other_version = {
        (pair.cluster, pair.model)
        for pair in pairs
        if pair.recommendation and is_for_other_version(pair.recommendation, versions.get(pair.cluster, ""))
    }
    return {
        "models": columns,
        "clusters": rows,
        "rows": [[placed[name].get(model) for model in columns] for name in rows],
        "changes": changes,
        "other_version": other_version,
        "counts": _count(pairs, other_version, changed=len(changes or ())),
        "clusters_left": len(clusters) - len(rows),
        "models_left": len(models) - len(columns),
    }


def _list_cells(home_map: Mapping[str, Any], rolling: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return a map for JSON: its cells as one list, with ids in place of policies.

    Args:
        home_map: the map.
        rolling: id and share of each open roll-out, by names.
    """
    cells = []
    for pair in (pair for row in home_map["rows"] for pair in row if pair):
        cell = {"cluster": pair.cluster, "model": pair.model, "shapes": pair.shapes, "running": pair.running}
        place = (pair.cluster, pair.model)
        if (revision := pair.recommendation) is not None:
            result = build_result(revision)
            cell |= {
                "recommendation": revision.id,
                "revision": revision.revision,
                "study": revision.study,
                "created": revision.created,
                "origin": revision.origin,
                "nodes": revision.fingerprint.nodes,
                "gpus_per_node": revision.fingerprint.gpus_per_node,
                "nccl_version": revision.fingerprint.nccl_version,
                "for_other_version": place in home_map["other_version"],
                "stale": revision.stale,
                "needs_table": result.needs_table,
                "verdict": result.verdict,
                "change": (home_map["changes"] or {}).get(place),
            }
        cells.append(cell | {"roll_out": rolling.get(place)})
    return {"cells": cells} | {name: home_map[name] for name in ("counts", "clusters_left", "models_left")}


def _rank(pairs: Iterable[Pair]) -> int:
    """Return the group of a cluster: with a measured result, only recorded ones, only simulated ones, none."""
    ranks = (ORIGIN_ORDER[pair.recommendation.origin] for pair in pairs if pair.recommendation)
    return min(ranks, default=len(ORIGIN_ORDER))


def _find_changes(
    pairs: Iterable[Pair], before: Mapping[tuple[str, str], Recommendation]
) -> dict[tuple[str, str], str]:
    changes = {}
    for pair in pairs:
        if pair.recommendation is None:
            continue
        place = (pair.cluster, pair.model)
        if place not in before:
            changes[place] = "new"
        elif _differs(was := build_result(before[place]), build_result(pair.recommendation)):
            changes[place] = f"was {was.former}"
    return changes


def _differs(was: Result, now: Result) -> bool:
    """Compare two results: another verdict, a disjoint interval, or a stale one is a change."""
    if was.verdict.decision is not now.verdict.decision or now.status == "stale":
        return True
    if was.interval is None or now.interval is None:
        return False
    return now.is_tuned and (now.interval[0] > was.interval[1] or now.interval[1] < was.interval[0])


def _count(pairs: Collection[Pair], other_version: Collection[tuple[str, str]], *, changed: int) -> dict[str, Any]:
    """Count the results on the map; tuned results for another NCCL version do not count as tuned.

    The median is the median speed-up of the tuned results, of measured ones if there are any.
    """
    results = [build_result(pair.recommendation) for pair in pairs if pair.recommendation]
    served = [result for result in results if result.status != "stale"]
    decisions = [result.verdict.decision for result in served]
    tuned = [
        result
        for result in served
        if result.is_tuned and (result.recommendation.cluster, result.recommendation.model) not in other_version
    ]
    measured = [result for result in tuned if result.recommendation.origin is TimesOrigin.MEASURED]
    speedups = [result.speedup for result in measured or tuned if result.speedup]
    return {
        "tuned": len(tuned),
        "kept": decisions.count(Decision.KEEP_DEFAULT),
        "undecided": decisions.count(Decision.UNDECIDED),
        "other_version": len(other_version),
        "stale": len(results) - len(served),
        "running": sum(pair.running for pair in pairs),
        "changed": changed,
        "demonstrations": len(tuned) - len(measured),
        "median": statistics.median(speedups) if speedups else None,
    }
