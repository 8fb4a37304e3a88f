"""The catalogues of clusters and workloads."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ncclt.core.api_key import Role
from ncclt.core.cluster import Cluster
from ncclt.core.workload import Workload
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentStore, PagedQuery
from ncclt_api.routes import PROBLEMS
from ncclt_api.schemas import (
    CatalogueCluster,
    CatalogueWorkload,
    ClusterList,
    WorkloadList,
    cluster_document,
    workload_document,
)

clusters = APIRouter(prefix="/v1/clusters", tags=["clusters"], responses=PROBLEMS, dependencies=needs(Role.READ))
workloads = APIRouter(prefix="/v1/workloads", tags=["workloads"], responses=PROBLEMS, dependencies=needs(Role.READ))


@clusters.get("", operation_id="listClusters", summary="All clusters, by name")
def list_clusters(
    query: Annotated[PagedQuery, Query()], store: CurrentStore, request: Request, response: Response
) -> ClusterList:
    """List one page of the shipped clusters and those that were added."""
    page, following = query.cut(store.clusters.entries(), lambda entry: entry[0].name)
    query.link(following, request, response)
    return ClusterList(items=[cluster_document(*entry) for entry in page], next_cursor=following)


@clusters.get("/{cluster}", operation_id="getCluster", summary="One cluster")
def get_cluster(cluster: str, store: CurrentStore) -> CatalogueCluster:
    """Return one cluster; an unknown name is answered with close ones."""
    found: Cluster = store.clusters.get(cluster)
    return next(cluster_document(*entry) for entry in store.clusters.entries() if entry[0].name == found.name)


@workloads.get("", operation_id="listWorkloads", summary="All workloads, by name")
def list_workloads(
    query: Annotated[PagedQuery, Query()], store: CurrentStore, request: Request, response: Response
) -> WorkloadList:
    """List one page of the shipped workloads and those that were imported."""
    page, following = query.cut(store.workloads.entries(), lambda entry: entry[0].name)
    query.link(following, request, response)
    return WorkloadList(items=[workload_document(*entry) for entry in page], next_cursor=following)


@workloads.get("/{name:path}", operation_id="getWorkload", summary="One workload")
def get_workload(name: str, store: CurrentStore) -> CatalogueWorkload:
    """Return one workload; an unknown name is answered with close ones."""
    found: Workload = store.workloads.get(name)
    return next(workload_document(*entry) for entry in store.workloads.entries() if entry[0].name == found.name)
