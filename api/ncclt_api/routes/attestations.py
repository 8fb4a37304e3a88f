"""Attestations, the effect of recommendations in jobs: reported by the jobs, readable by all."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from ncclt.core.api_key import Role
from ncclt.core.attestation import Attestation
from ncclt.core.ticket import read_ticket, shorten_name
from ncclt.errors import InputError
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentStore, StrictQuery
from ncclt_api.routes import PROBLEMS
from ncclt_api.schemas import AttestationDocument, AttestationList, NewAttestation
from ncclt_api.tickets import sender_of

router = APIRouter(prefix="/v1/attestations", tags=["attestations"], responses=PROBLEMS)


class AttestationsQuery(StrictQuery):
    """Attestation filter."""

    recommendation: str = Field(description="id of a published revision")
    limit: int = Field(20, ge=1, le=200, description="max attestations")


@router.get(
    "",
    operation_id="listAttestations",
    summary="Attestations of a recommendation, newest first",
    dependencies=needs(Role.READ),
)
def list_attestations(query: Annotated[AttestationsQuery, Query()], store: CurrentStore) -> AttestationList:
    """List the newest attestations; an unknown recommendation is an error, not an empty list."""
    known = store.recommendations.get(query.recommendation)
    found = store.records.attestations([known.id], limit=query.limit)
    return AttestationList(items=[AttestationDocument.model_validate(one.to_document()) for one in found])


@router.post(
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
    known = store.recommendations.get(body.recommendation)
    if (known.cluster, known.model) != (body.cluster, body.model):
        raise InputError(
            f"the recommendation {known.id} is for {known.model} on {known.cluster}",
            hint="post what `ncclt attest --json` prints",
        )
    attestation = Attestation.from_document(document)
    ticket = read_ticket(body.ticket, store.ticket_secret(), now_s=time.time())
    if (ticket.recommendation, ticket.cluster) != (known.id, shorten_name(known.cluster)):
        raise InputError(
            f"the job of this ticket was given {ticket.recommendation or 'nothing'}, not {known.id}",
            hint="send back the `ticket` of the answer that the job started with",
        )
    if not store.records.add_attestation(attestation, ticket=ticket, **sender_of(request)):
        response.status_code = 200
    return AttestationDocument.model_validate(document)
