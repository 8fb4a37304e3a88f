"""Step times of the jobs of roll-outs, which decide how these end."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from ncclt.core.api_key import Role
from ncclt.core.rollout import MOST_JOB_NAME, JobTime, RollOutState
from ncclt.core.ticket import TICKET_PATTERN
from ncclt.prove.rollout import report_job_time
from ncclt_api.access import needs
from ncclt_api.dependencies import MOST_NUMBER, CurrentStore
from ncclt_api.routes import PROBLEMS
from ncclt_api.tickets import sender_of

router = APIRouter(prefix="/v1/step-times", tags=["roll-outs"], responses=PROBLEMS, dependencies=needs(Role.ENV))


class NewStepTime(BaseModel):
    """The step time of one job."""

    model_config = ConfigDict(extra="forbid")

    ticket: str = Field(pattern=f"^{TICKET_PATTERN}$", description="of the answer that the job started with")
    rollout: str = Field(max_length=64, description="id of the roll-out, from the answer to the job")
    job: str = Field(min_length=1, max_length=MOST_JOB_NAME, description="name of the job, as in its request")
    recommendation: str = Field("", max_length=64, description="revision that the job got; empty = the NCCL default")
    step_us: float = Field(gt=0, description="median of the measured steps on the slowest rank, in µs")
    steps: int = Field(ge=1, le=MOST_NUMBER, description="number of measured steps")


class RollOutProgress(BaseModel):
    """Progress of a roll-out."""

    rollout: str
    state: RollOutState
    reason: str
    candidates: int = Field(description="reports of jobs with the revision")
    controls: int = Field(description="reports of the other jobs")
    missing_candidates: int = Field(description="jobs with the revision that started long ago and have not reported")
    missing_controls: int = Field(description="the same of the other jobs")
    pairs: int


@router.post(
    "",
    operation_id="addStepTime",
    summary="Report the step time of a job of a roll-out",
    responses={409: PROBLEMS[404] | {"description": "the job got another variant than its roll-out assigns"}},
)
def add_step_time(body: NewStepTime, store: CurrentStore, request: Request) -> RollOutProgress:
    """Keep the first step time of a job: a certain loss rolls the revision back; a certain win awaits approval."""
    time = JobTime(**(body.model_dump(exclude={"ticket"}) | sender_of(request)))
    shown = report_job_time(store, body.ticket, time)
    return RollOutProgress(rollout=body.rollout, **asdict(shown))
