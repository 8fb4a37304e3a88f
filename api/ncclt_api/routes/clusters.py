"""The catalogue of clusters."""

from __future__ import annotations

from fastapi import APIRouter

from ncclt.core.cluster import Cluster
from ncclt_api.dependencies import CurrentStore
from ncclt_api.documents import cluster_document
from ncclt_api.routes import PROBLEMS
from ncclt_api.schemas import CatalogueCluster, ClusterList

router = APIRouter(prefix="/v1/clusters", tags=["clusters"], responses=PROBLEMS)


@router.get("", operation_id="listClusters", summary="All clusters, by name")
def list_clusters(store: CurrentStore) -> ClusterList:
    """List the shipped clusters and those that were added."""
    return ClusterList(items=[cluster_document(entry) for entry in store.clusters()])


@router.get("/{cluster}", operation_id="getCluster", summary="One cluster")
def get_cluster(cluster: str, store: CurrentStore) -> CatalogueCluster:
    """Return one cluster; an unknown name is answered with close ones."""
    found: Cluster = store.cluster(cluster)
    return cluster_document(next(entry for entry in store.clusters() if entry.item.name == found.name))
