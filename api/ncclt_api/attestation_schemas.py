"""The JSON of attestations: the only input that this service stores, so all of its parts are bounded."""

from __future__ import annotations

from datetime import UTC
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_serializer

from ncclt.core.attestation import MOST_ROWS, Effect, Form, RowState
from ncclt.core.message import Collective
from ncclt.core.ticket import TICKET_PATTERN
from ncclt_api.text import AnswerModel

_STRICT = ConfigDict(extra="forbid")

_MOST = 2**53
"""Largest count that is accepted; beyond it JSON's numbers lose their last digits."""


class AttestationRow(AnswerModel):
    """One kind of message; size_bytes and group_size 0 = not known, or any."""

    collective: Collective
    size_bytes: int
    group_size: int
    wanted: str
    used: str
    calls: int
    state: RowState
    reason: str


class LogEvidenceDocument(AnswerModel):
    """Reports of the plugin or logs of NCCL with the same facts."""

    kind: str
    nccl_version: str
    table: str
    checksum: str
    not_in_use: str
    ranks: int
    nodes: int
    count: int


class NewAttestationRow(BaseModel):
    """One row of the attestation."""

    model_config = _STRICT

    collective: Collective
    size_bytes: int = Field(ge=0, le=_MOST)
    group_size: int = Field(ge=0, le=_MOST)
    wanted: str = Field(max_length=200)
    used: str = Field(max_length=200)
    calls: int = Field(ge=0, le=_MOST)
    state: RowState
    reason: str = Field(max_length=4000)


class NewLogEvidence(BaseModel):
    """One source of facts about a job."""

    model_config = _STRICT

    kind: Literal["plugin-report", "nccl-log"]
    nccl_version: str = Field(max_length=100)
    table: str = Field(max_length=100)
    checksum: str = Field(max_length=100)
    not_in_use: str = Field(max_length=1000)
    ranks: int = Field(ge=0, le=_MOST)
    nodes: int = Field(ge=0, le=_MOST)
    count: int = Field(ge=1, le=_MOST)


class NewAttestation(BaseModel):
    """Whether a recommendation took effect in one job."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    schema_version: Literal[1] = Field(alias="schema")
    id: str = Field(pattern="^[0-9a-f]{32}$", description="hash of the content")
    recommendation: str = Field(min_length=1, max_length=200)
    cluster: str = Field(max_length=200)
    model: str = Field(max_length=200)
    form: Form
    effect: Effect
    reason: str = Field(max_length=4000)
    calls_as_wanted: int = Field(ge=0, le=_MOST)
    calls_differing: int = Field(ge=0, le=_MOST)
    calls_unruled: int = Field(ge=0, le=_MOST)
    rows: list[NewAttestationRow] = Field(max_length=MOST_ROWS)
    sources: list[NewLogEvidence] = Field(max_length=1000)
    hosts: int = Field(ge=0, le=_MOST)
    notes: list[Annotated[str, Field(max_length=4000)]] = Field(max_length=100)
    evidence: str = Field(max_length=100, description="hash of the files, which distinguishes jobs")
    created: AwareDatetime
    ticket: str = Field(pattern=f"^{TICKET_PATTERN}$", description="of the answer that the job started with")

    @field_serializer("created")
    def _iso(self, value: AwareDatetime) -> str:
        return value.astimezone(UTC).isoformat(timespec="milliseconds")


class AttestationDocument(AnswerModel):
    """Whether a recommendation took effect in one job."""

    model_config = ConfigDict(populate_by_name=True)

    schema_version: int = Field(alias="schema")
    id: str
    recommendation: str
    cluster: str
    model: str
    form: Form
    effect: Effect
    reason: str
    calls_as_wanted: int
    calls_differing: int
    calls_unruled: int
    rows: list[AttestationRow]
    sources: list[LogEvidenceDocument]
    hosts: int
    notes: list[str]
    evidence: str
    created: str


class AttestationList(AnswerModel):
    """Attestations of one recommendation, newest first."""

    items: list[AttestationDocument]


class AttestationSummary(AnswerModel):
    """An attestation in one line."""

    id: str
    effect: Effect
    form: Form
    reason: str
    created: str
