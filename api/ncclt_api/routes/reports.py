"""Reports of jobs: attestations of the effect of recommendations, and step times, which decide how roll-outs end."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from ncclt.core.api_key import Role
from ncclt.core.attestation import Attestation
from ncclt.core.rollout import MOST_JOB_NAME, JobTime
from ncclt.core.ticket import TICKET_PATTERN, read_ticket, shorten_name
from ncclt.errors import InputError
from ncclt.prove.rollout import RollOutVerdict, report_job_time
from ncclt_api.access import needs
from ncclt_api.dependencies import MOST_NUMBER, CurrentList, CurrentStore, PagedQuery
from ncclt_api.json_models import (
    AnswerModel,
    AttestationDocument,
    AttestationList,
    JsonBody,
    NewAttestation,
    answer_model,
)
from ncclt_api.routes import PROBLEMS
from ncclt_api.tickets import sender_of

attestations = APIRouter(prefix="/v1/attestations", tags=["attestations"], responses=PROBLEMS)
step_times = APIRouter(prefix="/v1/step-times", tags=["roll-outs"], responses=PROBLEMS, dependencies=needs(Role.ENV))


class AttestationsQuery(PagedQuery):
    """Filter and page of attestations."""

    recommendation: str = Field(description="id of a published revision")


@attestations.get(
    "",
    operation_id="listAttestations",
    summary="Attestations of a recommendation, newest first",
    dependencies=needs(Role.READ),
)
def list_attestations(
    query: Annotated[AttestationsQuery, Query()], store: CurrentStore, lists: CurrentList
) -> AttestationList:
    """List one page of attestations; an unknown recommendation is an error, not an empty list."""
    rows = store.records.attestations([store.recommendations.get(query.recommendation).id])
    return lists.write_part(AttestationList, query, rows, key=lambda row: row.id, show=Attestation.to_document)


@attestations.post(
    "",
    operation_id="addAttestation",
    summary="Report an attestation",
    status_code=201,
    responses={
        200: {"model": AttestationDocument, "description": "the same finding was reported before: nothing changed"},
        409: PROBLEMS[404] | {"description": "the job was attested before, with another finding"},
        413: PROBLEMS[404] | {"description": "longer than any attestation"},
    },
    dependencies=needs(Role.ENV),
)
def add_attestation(
    body: NewAttestation, store: CurrentStore, request: Request, response: Response
) -> AttestationDocument:
    """Keep one attestation, as `ncclt attest --json` prints it, with the ticket of its job."""
    document = body.model_dump(mode="json", by_alias=True, exclude={"ticket"})
    recommendation = store.recommendations.get(document["recommendation"])
    if (recommendation.cluster, recommendation.model) != (document["cluster"], document["model"]):
        raise InputError(
            f"the recommendation {recommendation.id} is for {recommendation.model} on {recommendation.cluster}",
            hint="send the cluster and model of the recommendation",
        )
    attestation = Attestation.from_document(document)
    ticket = read_ticket(body.ticket, store.ticket_secret(), now_s=time.time())
    if (ticket.recommendation, ticket.cluster) != (recommendation.id, shorten_name(recommendation.cluster)):
        raise InputError(
            f"the job of this ticket was given {ticket.recommendation or 'nothing'}, not {recommendation.id}",
            hint="send back the `ticket` of the answer that the job started with",
        )
    if not store.records.add_attestation(attestation, ticket=ticket, **sender_of(request)):
        response.status_code = 200
    return AttestationDocument.model_validate(document)


class NewStepTime(JsonBody):
    """The step time of one job."""

    ticket: str = Field(pattern=f"^{TICKET_PATTERN}$", description="of the answer that the job started with")
    rollout: str = Field(max_length=64, description="id of the roll-out, from the answer to the job")
    job: str = Field(min_length=1, max_length=MOST_JOB_NAME, description="name of the job, as in its request")
    recommendation: str = Field("", max_length=64, description="revision that the job got; empty = none")
    step_us: float = Field(gt=0, description="mean of the measured steps on the slowest rank, in µs")
    steps: int = Field(ge=1, le=MOST_NUMBER, description="number of measured steps")


@answer_model(RollOutVerdict)
class RollOutProgress(AnswerModel):
    """Progress of a roll-out."""

    rollout: str


@step_times.post(
    "",
    operation_id="addStepTime",
    summary="Report the step time of a job of a roll-out",
    responses={409: PROBLEMS[404] | {"description": "the job got another variant than its roll-out assigns"}},
)
def add_step_time(body: NewStepTime, store: CurrentStore, request: Request) -> RollOutProgress:
    """Keep the first step time of a job: an arm with a certain loss is dropped; a certain win awaits approval."""
    reported = JobTime(**(body.model_dump(exclude={"ticket"}) | sender_of(request)))
    verdict = report_job_time(store, body.ticket, reported)
    return RollOutProgress.model_validate({"rollout": body.rollout, **verdict.to_document()})
