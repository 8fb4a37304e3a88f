"""Published recommendations."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from ncclt.core.api_key import Role
from ncclt.core.recommendation import Recommendation, Request
from ncclt_api.access import needs
from ncclt_api.dependencies import (
    CurrentList,
    CurrentRecommendation,
    CurrentStore,
    PagedQuery,
    StrictQuery,
    normal_version,
    wrong_cursor,
)
from ncclt_api.json_models import ProvenRecommendation, RecommendationList, proven_recommendation
from ncclt_api.routes import PROBLEMS

router = APIRouter(
    prefix="/v1/recommendations", tags=["recommendations"], responses=PROBLEMS, dependencies=needs(Role.READ)
)


class JobQuery(StrictQuery):
    """The job that recommendations are requested for."""

    nodes: int | None = Field(None, ge=1, description="nodes of the job")
    gpus_per_node: int | None = Field(None, ge=1, description="GPUs of each node")
    nccl_version: str | None = Field(None, description="NCCL that the job will load, for example 2.28.9")

    def request(self, *, cluster: str, model: str) -> Request:
        """Return it as the core's request.

        Raises:
            UsageError: `nccl_version` is invalid.
        """
        return Request(
            cluster=cluster,
            model=model,
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            nccl_version=normal_version(self.nccl_version),
        )


class RecommendationsQuery(PagedQuery, JobQuery):
    """Filter and page of recommendations."""

    cluster: str | None = Field(None, description="only for this cluster")
    model: str | None = Field(None, description="only for this workload")


@router.get("", operation_id="listRecommendations", summary="Published revisions that fit, newest first")
def list_recommendations(
    query: Annotated[RecommendationsQuery, Query()], store: CurrentStore, lists: CurrentList
) -> RecommendationList:
    """List one page of the revisions that fit; an unknown cluster or workload is an error, not an empty list."""
    request = query.request(cluster=query.cluster or "", model=query.model or "")
    find = partial(store.recommendations.find, cluster=query.cluster, model=query.model)
    after = query.cursor
    if after is not None and not find(id=after):
        raise wrong_cursor(after)
    fitting: list[Recommendation] = []
    count = query.limit + 1
    while True:
        published = find(after=after, limit=count)
        fitting += [revision for revision in published if not request.refusal(revision.fingerprint)]
        if len(fitting) > query.limit or len(published) < count:
            break
        after, count = published[-1].id, 2 * count
    if not published and after is None:
        explain_absence(store, cluster=query.cluster, model=query.model)
    ids = [revision.id for revision in fitting[: query.limit]]
    states = {status.id: status.state for status in store.revisions.statuses(id=ids)}
    return lists.write_rows(
        RecommendationList,
        query,
        fitting,
        key=lambda revision: revision.id,
        show=lambda revision: revision.to_document() | {"state": states[revision.id]},
    )


@router.get("/{id}", operation_id="getRecommendation", summary="One published revision")
def get_recommendation(recommendation: CurrentRecommendation, store: CurrentStore) -> ProvenRecommendation:
    """Return one revision with its last verifications and attestations."""
    return proven_recommendation(store, recommendation)


def explain_absence(store: CurrentStore, *, cluster: str | None, model: str | None) -> None:
    """Raise for an unknown name; do nothing for a known one for which nothing was published.

    Only called if nothing was found: a cluster that has left the catalogue may still have recommendations.

    Raises:
        NotFoundError: the cluster or workload is not in the catalogue; the hint lists close names.
    """
    if cluster is not None:
        store.clusters.get(cluster)
    if model is not None:
        store.workloads.get(model)
