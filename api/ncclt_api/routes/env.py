"""The result itself: the settings of a job, as text."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from fastapi import Request as HttpRequest
from pydantic import BaseModel, Field, field_validator
from starlette.responses import Response

from ncclt.client.answer import MEGATRON_GROUPS
from ncclt.core.api_key import Role
from ncclt.core.recommendation import Request
from ncclt.core.rollout import MOST_JOB_NAME
from ncclt.core.ticket import is_job_name
from ncclt.core.trial import TimesOrigin
from ncclt.deliver.render.formats import FORMATS, SHELLS, render
from ncclt.deliver.variant import select_fitting
from ncclt.errors import NoRecommendationError, NotFoundError, UsageError
from ncclt.store.store import Store
from ncclt_api.access import needs
from ncclt_api.answers import MADE, ShapeAnswers, finish_answer
from ncclt_api.dependencies import CurrentStore
from ncclt_api.json_models import JsonBody, ProblemDocument
from ncclt_api.problems import problem_document, problem_of
from ncclt_api.routes import PROBLEMS
from ncclt_api.routes.recommendations import JobQuery, explain_absence
from ncclt_api.tickets import Tickets

MOST_ASKED = 100
"""Max jobs of one request for answers."""

_MEDIA_TYPES = {"text/x-shellscript": "export", "application/json": "json", "text/csv": "tuner-csv"}
"""Media types of `Accept`, which stand in for `format`."""

_ASKED = ("model", "nodes", "gpus_per_node", "nccl_version", "driver", "topology", "recorded", "simulated")
"""Fields of a query that all nodes of a job must send with the same values."""

router = APIRouter(prefix="/v1/clusters", tags=["recommendations"], responses=PROBLEMS, dependencies=needs(Role.ENV))


class EnvQuery(JobQuery):
    """The job and the output format; without the job's whole shape the answer only lists the published shapes."""

    model: str = Field(description="name of the workload")
    format: str | None = Field(
        None,
        description="output format; default: as `Accept` says, else export",
        json_schema_extra={"enum": list(FORMATS)},
    )
    shell: str = Field("bash", description="`export` only: the shell", json_schema_extra={"enum": list(SHELLS)})
    unset: bool = Field(False, description="`export` only: remove what the same request without it sets")
    job: str = Field("", max_length=MOST_JOB_NAME, description="name of the job; decides its variant in a roll-out")
    kept: bool = Field(
        False,
        description="all requests with this `job` get the answer to the first one, in `json`, whatever is published or "
        "rolled out meanwhile; 503 while the store is away",
    )
    channels: int | None = Field(None, ge=1, description="`nvidia-csv` only: if the policy leaves them to NCCL")
    group: str = Field(
        "",
        description="`megatron-yaml` only: name of the process group",
        json_schema_extra={"enum": ["", *MEGATRON_GROUPS]},
    )
    recorded: Literal["allow"] | None = Field(None, description="also a result that was recorded elsewhere")
    simulated: Literal["allow"] | None = Field(None, description="also a simulated result")
    driver: str | None = Field(None, description="only recommendations measured with this NVIDIA driver")
    topology: str | None = Field(None, description="only recommendations measured on this topology (hash)")
    site: str | None = Field(
        None,
        description="hash of the job's site variables, as sent by `ncclt run`; recommendations measured with the same "
        "variables take precedence",
    )

    @field_validator("format")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in FORMATS:
            raise ValueError(f"unknown format {value!r}; the formats are {', '.join(FORMATS)}")
        return value

    def request(self, *, cluster: str, model: str) -> Request:
        """Return it as the core's request, with what the job allows and insists on."""
        wishes = {TimesOrigin.RECORDED: self.recorded, TimesOrigin.SIMULATED: self.simulated}
        return replace(
            super().request(cluster=cluster, model=model),
            driver=self.driver,
            topology_hash=self.topology,
            site=self.site,
            allowed=frozenset(origin for origin, allow in wishes.items() if allow),
        )


@router.get(
    "/{cluster}/env",
    operation_id="getEnvironment",
    summary="The environment of a job of this shape, ready for `eval`",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}, "application/json": {}}, "description": "as `format` says"},
        404: PROBLEMS[404] | {"description": "unknown name, or nothing published for it"},
        409: PROBLEMS[404] | {"description": "only published for the shapes in `available`"},
        410: PROBLEMS[404] | {"description": "the matching recommendation is stale"},
        304: {"description": "the client has it already"},
    },
)
def get_environment(
    cluster: str,
    query: Annotated[EnvQuery, Query()],
    store: CurrentStore,
    http: HttpRequest,
    accept: Annotated[str, Header(description="of the media types, the first that a format has")] = "*/*",
) -> Response:
    """Write the active recommendation that fits the job exactly."""
    # If-None-Match is for `give_answers`, which keeps the answers of the shape.
    asked_types = [word.partition(";")[0].strip() for word in accept.split(",")]
    media_type = next((name for name in asked_types if name in _MEDIA_TYPES), "text/plain")
    format = _MEDIA_TYPES.get(media_type, "export")
    if query.format is not None:
        format, media_type = query.format, "application/json" if query.format == "json" else "text/plain"
    if query.kept:
        return _decide_once(store, http.app.state.tickets, cluster, query)
    answers = _read_answers(store, http.app.state.tickets, cluster, query, format=format, media_type=media_type)
    reply = answers.reply(query.job)
    http.scope.get(MADE, []).append(answers)
    response = Response(finish_answer(reply, query.job))
    response.raw_headers += reply.headers
    return response


bulk = APIRouter(prefix="/v1/answers", tags=["recommendations"], responses=PROBLEMS, dependencies=needs(Role.ENV))


class AskedJob(JsonBody, JobQuery):
    """Job of a request for answers."""

    cluster: str = Field(description="name of the cluster")
    model: str = Field(description="name of the workload")
    job: str = Field("", max_length=MOST_JOB_NAME, description="name of the job; decides its variant in a roll-out")
    recorded: Literal["allow"] | None = Field(None, description="also a result that was recorded elsewhere")
    simulated: Literal["allow"] | None = Field(None, description="also a simulated result")


class AskedJobs(JsonBody):
    """Request for answers to several jobs."""

    jobs: list[AskedJob] = Field(min_length=1, max_length=MOST_ASKED)


class JobAnswer(BaseModel):
    """Answer or error of one job, in the order of the request; the other one is null."""

    answer: dict[str, Any] | None = Field(description="as `GET /v1/clusters/{cluster}/env?format=json` gives it")
    problem: ProblemDocument | None = Field(description="why the job gets none, with its status")


class JobAnswers(BaseModel):
    """Answers to several jobs."""

    items: list[JobAnswer]


@bulk.post("", operation_id="getAnswers", summary="Answers to several jobs, in `json`")
def get_answers(body: AskedJobs, store: CurrentStore, http: HttpRequest, response: Response) -> JobAnswers:
    """Answer each job as `GET /v1/clusters/{cluster}/env` does; a failed answer does not affect the others."""
    response.headers["Cache-Control"] = "no-store"
    items = []
    for job in body.jobs:
        query = EnvQuery(**job.model_dump(exclude={"cluster"}))
        try:
            answers = _read_answers(store, http.app.state.tickets, job.cluster, query)
            answer = json.loads(finish_answer(answers.reply(job.job), job.job))
            items.append(JobAnswer(answer=answer, problem=None))
        except (UsageError, NotFoundError) as error:
            problem = problem_document(problem_of(error), http)
            items.append(JobAnswer(answer=None, problem=ProblemDocument.model_validate(problem)))
    return JobAnswers(items=items)


def _read_answers(
    store: Store,
    tickets: Tickets,
    cluster: str,
    query: EnvQuery,
    *,
    format: str = "json",
    media_type: str = "application/json",
) -> ShapeAnswers:
    published = store.recommendations.newest(cluster=cluster, model=query.model)
    if not published:
        explain_absence(store, cluster=cluster, model=query.model)
    return ShapeAnswers(
        pair=(cluster, query.model),
        chosen=select_fitting(published, query.request(cluster=cluster, model=query.model)),
        rollouts=store.recommendations.rolled_out(cluster=cluster, model=query.model),
        delivery=store.revisions.rules(cluster).delivery,
        write=partial(
            render, format=format, shell=query.shell, unset=query.unset, channels=query.channels, group=query.group
        ),
        format=format,
        media_type=media_type,
        tickets=tickets,
    )


def _decide_once(store: Store, tickets: Tickets, cluster: str, query: EnvQuery) -> Response:
    """Return the answer that the store keeps for a job: this one, or that to the first node which asked.

    Raises:
        UsageError: the job has no name, or another node asked something else.
        NoRecommendationError: the job gets nothing.
        StoreError: the store is away, and with it the answer of the other nodes.
    """
    job = query.job
    if not is_job_name(job):
        raise UsageError("an answer can only be kept for a job with a name", hint="add job=NAME to the request")
    asked = query.model_dump()
    question = ", ".join(f"{name} {asked[name]}" for name in _ASKED if asked[name] is not None)
    refusal, document = None, ""
    decision = store.revisions.find_job_decision(cluster, job)
    if decision is None:  # else the job has started: another answer would count as another start
        try:
            answers = _read_answers(store, tickets, cluster, query)
            answer = answers.give(job)
            values = json.loads(answers.write(answer.recommendation, said=answer.to_document()))
            values |= {"job": job, **tickets.issue(answer, job)}
        except NotFoundError as error:
            refusal, values = error, {"nothing": error.message}
        document = json.dumps(values, indent=2) + "\n"
        decision = store.revisions.keep_job_decision(cluster, job, question=question, document=document)
    first_question, first_document = decision
    if first_question != question:
        raise UsageError(
            f"another node of the job {job} asked for {first_question}, and this one for {question}",
            hint="all nodes of a job must ask for the same; two jobs need two names (--job)",
        )
    if "nothing" in (values := json.loads(first_document)):
        if refusal is not None and first_document == document:
            raise refusal
        hint = f"that was decided for the job {job}; a new start needs a new name"
        raise NoRecommendationError(values["nothing"], hint=hint)
    return Response(first_document, media_type="application/json", headers={"Cache-Control": "no-store"})
