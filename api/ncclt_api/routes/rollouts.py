"""Step times of the jobs of roll-outs, which decide how these end."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from ncclt.core.api_key import Role
from ncclt.core.rollout import MOST_JOB_NAME, JobTime, RollOutState
from ncclt.prove.rollout import report_job_time
from ncclt_api.access import needs
from ncclt_api.dependencies import MOST_NUMBER, CurrentStore
from ncclt_api.routes import PROBLEMS

router = APIRouter(prefix="/v1/step-times", tags=["roll-outs"], responses=PROBLEMS, dependencies=needs(Role.ENV))


class NewStepTime(BaseModel):
    """The step time of one job."""

    model_config = ConfigDict(extra="forbid")

    rollout: str = Field(max_length=64, description="id of the roll-out, as the answer for the job said")
    job: str = Field(min_length=1, max_length=MOST_JOB_NAME, description="name of the job, as in its request")
    recommendation: str = Field("", max_length=64, description="what the job was given; empty = NCCL's own choice")
    step_us: float = Field(gt=0, description="median of the measured steps on the slowest rank, in µs")
    steps: int = Field(ge=1, le=MOST_NUMBER, description="how many were measured")


class RollOutProgress(BaseModel):
    """What the jobs of a roll-out show so far."""

    rollout: str
    state: RollOutState
    reason: str
    candidates: int
    controls: int
    pairs: int


@router.post(
    "",
    operation_id="addStepTime",
    summary="Report the step time of a job of a roll-out",
    responses={409: PROBLEMS[404] | {"description": "the job was given something else than the roll-out gives it"}},
)
def add_step_time(body: NewStepTime, store: CurrentStore) -> RollOutProgress:
    """Keep the first step time of a job; a loss that is certain rolls the revision back, a certain win finishes it."""
    shown = report_job_time(store, JobTime(**body.model_dump()))
    return RollOutProgress(
        rollout=body.rollout, state=shown.state, reason=shown.reason, candidates=shown.candidates,
        controls=shown.controls, pairs=shown.pairs,
    )  # fmt: skip
