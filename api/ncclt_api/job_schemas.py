"""The JSON of tuning jobs."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ncclt.core.tuning_job import FIRST_PRIORITY, LAST_PRIORITY, USUAL_PRIORITY, JobState, TuningJob
from ncclt_api.text import AnswerModel

_USUAL = TuningJob(id="", cluster="", model="")
_LONGEST_NAME = 200
_MOST = 10**6


class JobLimits(BaseModel):
    """Limits of a tuning job."""

    model_config = ConfigDict(extra="forbid")

    trials: int = Field(_USUAL.trials, ge=1, le=_MOST, description="launches of the search at most")
    seconds: float | None = Field(None, gt=0, description="seconds of search at most")
    gpu_hours: float | None = Field(None, gt=0, description="GPU hours of the study after which the search stops")
    blocks: int = Field(_USUAL.blocks, ge=1, le=_MOST, description="blocks of the proof at most")
    seed: int = Field(0, ge=0, le=2**31 - 1)
    prove_variables: bool = Field(False, description="prove what variables alone bring too")
    priority: int = Field(USUAL_PRIORITY, ge=FIRST_PRIORITY, le=LAST_PRIORITY, description="1 is taken first")


class NewStaleJobs(JobLimits):
    """Request to renew stale recommendations."""

    cluster: str | None = Field(None, min_length=1, max_length=_LONGEST_NAME, description="only those of this cluster")


class NewJob(JobLimits):
    """A tuning job that is requested."""

    cluster: str = Field(min_length=1, max_length=_LONGEST_NAME, description="name, see GET /v1/clusters")
    model: str | None = Field(
        None, min_length=1, max_length=_LONGEST_NAME, description="name of the workload, see GET /v1/workloads"
    )
    profile: dict[str, Any] | None = Field(
        None, description="a workload instead, as GET /v1/workloads/NAME returns it; it is kept under its name"
    )
    nodes: int | None = Field(None, ge=1, le=_MOST, description="nodes of the training; null = the cluster's")
    gpus_per_node: int | None = Field(None, ge=1, le=_MOST)
    nccl_version: str | None = Field(None, max_length=40)
    again: bool = Field(False, description="measure again what was tuned already")

    @model_validator(mode="after")
    def _one_workload(self) -> NewJob:
        if (self.model is None) == (self.profile is None):
            raise ValueError("give one of model and profile")
        return self


class JobResultDocument(AnswerModel):
    """How a job ended."""

    state: JobState
    reason: str
    study: str = Field(description="id of its study; empty = none was opened")
    trials: int
    recommendation: str = Field(description="id of what it published; empty = nothing")
    decision: str
    simulated: bool
    recorded: str = Field(description="which recording was replayed; empty = none")


class JobDocument(AnswerModel):
    """A tuning job and where it stands."""

    id: str
    cluster: str
    model: str
    nodes: int | None
    gpus_per_node: int | None
    nccl_version: str | None
    trials: int
    seconds: float | None
    gpu_hours: float | None
    blocks: int
    seed: int
    prove_variables: bool
    priority: int
    study: str = Field(description="name of its study; jobs that request the same share one")
    created: str
    by: str = Field(description="key that requested it; empty = no key")
    state: JobState
    cancelling: bool = Field(description="its end was requested while it runs")
    worker: str
    started: str = Field(description="ISO time; empty = not yet")
    ended: str = Field(description="ISO time; empty = not yet")
    taken_over: int = Field(description="how often its worker died and another took it")
    result: JobResultDocument | None


class JobList(AnswerModel):
    """One page of jobs, newest first."""

    items: list[JobDocument]


class StaleJobDocument(AnswerModel):
    """A stale recommendation and the job that renews it."""

    recommendation: str = Field(description="id of the stale revision")
    stale: str = Field(description="why it is stale")
    cluster: str
    model: str
    nodes: int
    gpus_per_node: int
    nccl_version: str
    job: JobDocument | None = Field(description="null = refused")
    is_new: bool = Field(description="false = it was queued or running already")
    refused: str = Field(description="why there is no job; empty = there is one")


class StaleJobList(AnswerModel):
    """Stale recommendations, newest first; those that a newer revision replaces are left out."""

    items: list[StaleJobDocument]
