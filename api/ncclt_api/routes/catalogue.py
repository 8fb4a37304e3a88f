"""The catalogues of clusters and workloads."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ncclt.core.api_key import Role
from ncclt.core.cluster import Cluster
from ncclt.core.workload import Workload
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentList, CurrentStore, PagedQuery
from ncclt_api.json_models import (
    CatalogueCluster,
    CatalogueWorkload,
    ClusterList,
    WorkloadList,
    cluster_document,
    workload_document,
)
from ncclt_api.routes import PROBLEMS

clusters = APIRouter(prefix="/v1/clusters", tags=["clusters"], responses=PROBLEMS, dependencies=needs(Role.READ))
workloads = APIRouter(prefix="/v1/workloads", tags=["workloads"], responses=PROBLEMS, dependencies=needs(Role.READ))


def _name(entry: tuple[Cluster | Workload, bool]) -> str:
    return entry[0].name


@clusters.get("", operation_id="listClusters", summary="All clusters, by name")
def list_clusters(query: Annotated[PagedQuery, Query()], store: CurrentStore, lists: CurrentList) -> ClusterList:
    """List one page of the shipped clusters and those that were added."""
    entries = store.clusters.entries()
    return lists.write_part(ClusterList, query, entries, key=_name, show=lambda entry: cluster_document(*entry))


@clusters.get("/{cluster}", operation_id="getCluster", summary="One cluster")
def get_cluster(cluster: str, store: CurrentStore) -> CatalogueCluster:
    """Return one cluster; an unknown name is answered with close ones."""
    name = store.clusters.get(cluster).name
    return next(cluster_document(*entry) for entry in store.clusters.entries() if _name(entry) == name)


@workloads.get("", operation_id="listWorkloads", summary="All workloads, by name")
def list_workloads(query: Annotated[PagedQuery, Query()], store: CurrentStore, lists: CurrentList) -> WorkloadList:
    """List one page of the shipped workloads and those that were imported."""
    entries = store.workloads.entries()
    return lists.write_part(WorkloadList, query, entries, key=_name, show=lambda entry: workload_document(*entry))


@workloads.get("/{name:path}", operation_id="getWorkload", summary="One workload")
def get_workload(name: str, store: CurrentStore) -> CatalogueWorkload:
    """Return one workload; an unknown name is answered with close ones."""
    return show_workload(store, store.workloads.get(name))


def show_workload(store: CurrentStore, workload: Workload) -> CatalogueWorkload:
    """Return a workload of the catalogue of a store."""
    entries = store.workloads.entries()
    return next(workload_document(*entry) for entry in entries if _name(entry) == workload.name)
