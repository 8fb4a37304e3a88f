"""Studies and their trials."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from ncclt.core.api_key import Role
from ncclt.errors import NotFoundError
from ncclt.prove.proof import evidence_document
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentList, CurrentStore, CurrentStudy, PagedQuery
from ncclt_api.json_models import (
    EvidenceDocument,
    StudyDetail,
    StudyList,
    TrialList,
    study_detail,
    study_summary_document,
    trial_document,
)
from ncclt_api.routes import PROBLEMS

router = APIRouter(prefix="/v1/studies", tags=["studies"], responses=PROBLEMS, dependencies=needs(Role.READ))


class StudiesQuery(PagedQuery):
    """Filter and page of studies."""

    cluster: str | None = Field(None, description="only studies of this cluster")
    model: str | None = Field(None, description="only studies of this workload")


@router.get("", operation_id="listStudies", summary="Studies, newest first")
def list_studies(query: Annotated[StudiesQuery, Query()], store: CurrentStore, lists: CurrentList) -> StudyList:
    """List one page of studies; the Link header leads to the next."""
    page = store.studies.page(limit=query.limit, cursor=query.cursor, cluster=query.cluster, model=query.model)
    return lists.write(StudyList, query, [study_summary_document(entry) for entry in page.items], page.next_cursor)


@router.get("/{id}", operation_id="getStudy", summary="One study")
def get_study(study: CurrentStudy, store: CurrentStore) -> StudyDetail:
    """Return one study by id or name, with its workload and its recommendations."""
    return study_detail(store, study, store.recommendations.find(study=study.id))


@router.get("/{id}/trials", operation_id="listTrials", summary="The trials of a study")
def list_trials(
    study: CurrentStudy, query: Annotated[PagedQuery, Query()], store: CurrentStore, lists: CurrentList
) -> TrialList:
    """List one page of trials with their measurements, by number; the Link header leads to the next."""
    after = -1 if query.number is None else query.number
    return lists.write_rows(
        TrialList,
        query,
        store.trials.page(study.id, after=after, limit=query.limit + 1),
        key=lambda trial: str(trial.number),
        show=lambda trial: trial_document(trial, study.cluster),
        study=study.id,
        simulated=study.simulated,
    )


@router.get("/{id}/evidence", operation_id="getEvidence", summary="Evidence of a study's newest verdict")
def get_evidence(study: CurrentStudy, store: CurrentStore) -> EvidenceDocument:
    """Judge the newest verdict again from the stored trials, block by block."""
    published = store.recommendations.find(study=study.id)
    if not published:
        raise NotFoundError(
            f"study {study.name} has no verdict yet", hint="POST /v1/jobs with its cluster and model tunes it again"
        )
    trials = store.trials.with_proof(study.id)
    return EvidenceDocument.model_validate(evidence_document(published[0], trials, study.workload))
