"""The page of one cluster: its recommendations, its releases of NCCL, its fingerprints and the health of its fabric."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import quote

from fastapi import Form, Query, Request
from starlette.responses import RedirectResponse, Response

from ncclt.core.api_key import Role
from ncclt.core.cluster import Cluster
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import Recommendation
from ncclt.core.revision import MOST_WHY, Actor
from ncclt.core.rollout import OPEN_STATES
from ncclt.errors import NotFoundError
from ncclt.store.recommendations import FingerprintPeriod
from ncclt.store.store import Store
from ncclt.user_dirs import recorded_tables
from ncclt_api.access import needs, who
from ncclt_api.dependencies import CurrentStore
from ncclt_api.pages.response import CurrentPage, PageQuery, page_router
from ncclt_api.pages.results import REGRESSION, Result, build_result, is_for_other_version
from ncclt_api.sign_in import OwnForm

router = page_router()

PREFLIGHTS, REPORTS = 12, 10
"""Rows of the tables of preflights and attestations."""


@router.get("/clusters/{name:path}", dependencies=needs(Role.READ))
def show_cluster(name: str, query: Annotated[PageQuery, Query()], store: CurrentStore, page: CurrentPage) -> Response:
    """Show one cluster: what jobs get there, its releases of NCCL, the health of its fabric."""
    pairs = store.recommendations.pairs(cluster=name)
    cluster, in_catalogue = find_cluster(store, name)
    shown = [pair.recommendation for pair in pairs if pair.recommendation]
    ids = [revision.id for revision in shown]
    installed = str(cluster.version) if in_catalogue else ""
    newest, described = store.recommendations.newest_each(cluster=name), cluster.fingerprint()
    # The catalogue does not know the variables of the site, which measurements add.
    current = next((row.fingerprint for row in newest if not described.mismatches(row.fingerprint)), described)
    eras = store.recommendations.fingerprint_periods(name)
    if current.digest() not in {era.fingerprint for era in eras}:
        eras = (FingerprintPeriod(fingerprint=current.digest(), revisions=0, first="", last=""), *eras)
    versions, by_release = compare_releases(newest)
    values = {
        "cluster": cluster,
        "in_catalogue": in_catalogue,
        "pairs": pairs,
        "effects": store.records.effects(ids),
        "versions": versions,
        "by_release": by_release,
        "eras": eras,
        "current": current.digest(),
        "fingerprints": {place.digest(): place for place in (current, *(row.fingerprint for row in newest))},
        "preflights": store.records.preflights(cluster=name, limit=PREFLIGHTS),
        "attestations": store.records.attestations(ids, limit=REPORTS),
        "rules": store.revisions.rules(name),
        "other_version": [row.model for row in shown if is_for_other_version(row, installed)],
        "open_rollouts": len(store.revisions.rollouts(cluster=name, state=OPEN_STATES)),
    }
    return page.write("cluster.html", query, values, is_recorded=name in recorded_tables())


@router.post("/clusters/{name:path}/delivery", dependencies=[*needs(Role.ADMIN), OwnForm])
def switch_delivery(
    name: str,
    on: Annotated[bool, Form()],
    store: CurrentStore,
    request: Request,
    why: Annotated[str, Form(max_length=MOST_WHY)] = "",
) -> Response:
    """Switch the delivery of a cluster on or off, and show the cluster again."""
    find_cluster(store, name)  # refused before anything is stored
    rules = replace(store.revisions.rules(name), delivery=on)
    store.revisions.set_rules(rules, Actor(who=who(request), why=why.strip()))
    return RedirectResponse(f"/clusters/{quote(name, safe='')}", 303)


def find_cluster(store: Store, name: str) -> tuple[Cluster, bool]:
    """Return a cluster, and whether it is in the catalogue; one that left it is known from its newest study."""
    try:
        return store.clusters.get(name), True
    except NotFoundError:
        if items := store.studies.page(limit=1, cluster=name).items:
            return items[0].study.cluster, False
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One workload under one NCCL version.

    Attributes:
        result: of the newest revision under it.
        slowdown: of the NCCL default against the version before, as a share; None = it is the first with a time, or
            the workload changed.
        is_changed: the workload changed since the version before.
    """

    result: Result
    slowdown: float | None
    is_changed: bool

    @property
    def tone(self) -> str:
        """Return `loss`, `gain`, or nothing within the noise."""
        if self.slowdown is None or abs(self.slowdown) < REGRESSION:
            return ""
        return "loss" if self.slowdown > 0 else "gain"


def compare_releases(
    newest: Iterable[Recommendation],
) -> tuple[tuple[str, ...], dict[str, tuple[Release | None, ...]]]:
    """Return the NCCL versions, oldest first, and each workload over them; None where it was not tuned.

    Times of different jobs cannot be compared: of each workload the shape with most versions is taken, and a change of
    the workload ends the comparison.
    """
    by_model: dict[str, dict[str, dict[str, Recommendation]]] = {}
    for revision in newest:
        place = revision.fingerprint
        shape = f"{place.nodes}x{place.gpus_per_node} {place.gpu} {place.fabric} {revision.origin.value}"
        by_model.setdefault(revision.model, {}).setdefault(shape, {}).setdefault(place.nccl_version, revision)
    chosen = {model: max(shapes.values(), key=len) for model, shapes in sorted(by_model.items())}
    versions = sorted({version for revisions in chosen.values() for version in revisions}, key=NcclVersion.parse)
    return tuple(versions), {model: _follow(revisions, versions) for model, revisions in chosen.items()}


def _follow(revisions: dict[str, Recommendation], versions: Iterable[str]) -> tuple[Release | None, ...]:
    """Return one workload over the versions."""
    releases: list[Release | None] = []
    before_us: float | None = None
    digest = ""
    for version in versions:
        if version not in revisions:
            releases.append(None)
            continue
        result = build_result(revisions[version])
        is_changed = digest not in ("", result.recommendation.workload_digest)
        if is_changed:
            before_us = None
        slowdown = result.default_us / before_us - 1 if before_us and result.default_us else None
        releases.append(Release(result=result, slowdown=slowdown, is_changed=is_changed))
        before_us, digest = result.default_us or before_us, result.recommendation.workload_digest
    return tuple(releases)
