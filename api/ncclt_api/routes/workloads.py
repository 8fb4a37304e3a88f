"""The catalogue of workloads."""

from __future__ import annotations

from fastapi import APIRouter

from ncclt.core.workload import Workload
from ncclt_api.dependencies import CurrentStore
from ncclt_api.documents import workload_document
from ncclt_api.routes import PROBLEMS
from ncclt_api.schemas import CatalogueWorkload, WorkloadList

router = APIRouter(prefix="/v1/workloads", tags=["workloads"], responses=PROBLEMS)


@router.get("", operation_id="listWorkloads", summary="All workloads, by name")
def list_workloads(store: CurrentStore) -> WorkloadList:
    """List the shipped workloads and those that were imported."""
    return WorkloadList(items=[workload_document(entry) for entry in store.workloads()])


@router.get("/{name}", operation_id="getWorkload", summary="One workload")
def get_workload(name: str, store: CurrentStore) -> CatalogueWorkload:
    """Return one workload; an unknown name is answered with close ones."""
    found: Workload = store.workload(name)
    return workload_document(next(entry for entry in store.workloads() if entry.item.name == found.name))
