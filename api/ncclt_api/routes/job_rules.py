"""Rules by which workloads are tuned again; `ncclt worker` looks at those of its cluster."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ncclt.core.tuning_job import FIRST_PRIORITY, LAST_PRIORITY, JobRule, TuningJob
from ncclt.errors import NotFoundError
from ncclt.store.store import Store, utc_now
from ncclt_api.access import require_cluster
from ncclt_api.dependencies import CurrentStore, StrictQuery, normal_version
from ncclt_api.routes import PROBLEMS
from ncclt_api.text import AnswerModel

router = APIRouter(prefix="/v1/rules", tags=["jobs"], responses=PROBLEMS)

_USUAL = TuningJob(id="", cluster="", model="")
_LONGEST_NAME = 200
_MOST = 10**6

RuleId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,40}$", description="chosen by the client")]


class NewJobRule(BaseModel):
    """When a workload is tuned again by itself; at least one of the three reasons."""

    model_config = ConfigDict(extra="forbid")

    cluster: str = Field(min_length=1, max_length=_LONGEST_NAME, description="name, see GET /v1/clusters")
    model: str = Field(min_length=1, max_length=_LONGEST_NAME, description="name, see GET /v1/workloads")
    nodes: int | None = Field(None, ge=1, le=_MOST, description="nodes of the training; null = the cluster's")
    gpus_per_node: int | None = Field(None, ge=1, le=_MOST)
    nccl_version: str | None = Field(None, max_length=40)
    trials: int = Field(_USUAL.trials, ge=1, le=_MOST, description="launches of the search at most")
    priority: int = Field(_USUAL.priority, ge=FIRST_PRIORITY, le=LAST_PRIORITY, description="1 is taken first")
    fingerprint_changed: bool = Field(False, description="when the cluster is no longer what was measured")
    stale: bool = Field(False, description="when the newest recommendation is stale")
    every_days: int | None = Field(None, ge=1, le=3650, description="so often")


class JobRuleDocument(AnswerModel):
    """A rule by which a workload is tuned again."""

    id: str
    cluster: str
    model: str
    nodes: int | None
    gpus_per_node: int | None
    nccl_version: str | None
    trials: int
    priority: int
    fingerprint_changed: bool
    stale: bool
    every_days: int | None
    created: str


class JobRuleList(AnswerModel):
    """Rules by id."""

    items: list[JobRuleDocument]


class JobRulesQuery(StrictQuery):
    """Which rules."""

    cluster: str | None = Field(None, description="only rules of this cluster")


@router.get("", operation_id="listJobRules", summary="Rules by which workloads are tuned again")
def list_job_rules(query: Annotated[JobRulesQuery, Query()], store: CurrentStore, request: Request) -> JobRuleList:
    """List the rules of one cluster, or all."""
    require_cluster(request, query.cluster or "")
    return JobRuleList(items=[_document(one) for one in store.job_rules(cluster=query.cluster)])


@router.put(
    "/{id}",
    operation_id="putJobRule",
    summary="Tune a workload again by itself",
    status_code=201,
    responses={200: {"model": JobRuleDocument, "description": "the rule of this id was replaced"}},
)
def put_job_rule(
    id: RuleId, body: NewJobRule, store: CurrentStore, request: Request, response: Response
) -> JobRuleDocument:
    """Store a rule, in place of the one of its id."""
    require_cluster(request, body.cluster)
    before = _found(store, id)
    if before is not None:
        require_cluster(request, before.job.cluster)
        response.status_code = 200
    reasons = {"fingerprint_changed", "stale", "every_days"}
    asked = body.model_dump(exclude={*reasons, "nccl_version"})
    job = TuningJob(**asked, id="", nccl_version=normal_version(body.nccl_version))
    store.checked_job(job)  # refused now rather than by a worker
    created = before.created if before else utc_now()
    rule = JobRule(id=id, job=job, created=created, **body.model_dump(include=reasons))
    store.add_job_rule(rule)
    return _document(rule)


@router.delete("/{id}", operation_id="deleteJobRule", summary="Remove a rule", status_code=204)
def delete_job_rule(id: RuleId, store: CurrentStore, request: Request) -> None:
    """Remove a rule; what it has queued stays."""
    found = _found(store, id)
    if found is None:
        raise NotFoundError(f"there is no rule {id!r}", hint="GET /v1/rules shows all")
    require_cluster(request, found.job.cluster)
    store.remove_job_rule(id)


def _found(store: Store, id: str) -> JobRule | None:
    return next((one for one in store.job_rules() if one.id == id), None)


def _document(rule: JobRule) -> JobRuleDocument:
    document = rule.to_document()
    return JobRuleDocument.model_validate({**document.pop("job"), **document})
