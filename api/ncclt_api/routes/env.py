"""The result itself: the settings of a job, as text."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query
from fastapi import Request as HttpRequest
from pydantic import Field, field_validator
from starlette.responses import Response

from ncclt.core.api_key import Role
from ncclt.core.recommendation import ORIGIN_WORDS, Decision, Recommendation, Request
from ncclt.core.rollout import MOST_JOB_NAME, RollOut
from ncclt.core.ticket import is_job_name
from ncclt.deliver.render.formats import FORMATS, SHELLS, TABLE_FORMATS, render
from ncclt.deliver.variant import ServedRevision, build_job_start, choose_variant, select_fitting
from ncclt.errors import NoRecommendationError, NotFoundError, UsageError
from ncclt_api.access import needs
from ncclt_api.answers import MADE, KeptReply, finish_answer
from ncclt_api.dependencies import CurrentStore
from ncclt_api.routes import PROBLEMS
from ncclt_api.routes.recommendations import JobQuery, explain_absence
from ncclt_api.tickets import Tickets

CACHE_CONTROL = "max-age=60, stale-if-error=604800"
"""Fresh for a minute; usable for a week while the service is down: an outage of the tuner must not stop training."""


_MEDIA_TYPES = {"text/x-shellscript": "export", "application/json": "json", "text/csv": "tuner-csv"}
"""Media types of `Accept`, which stand in for `format`."""


def etag_of(body: str) -> str:
    """Return the strong entity tag of a body, quoted (RFC 9110, section 8.8.3)."""
    return f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'


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
    recorded: Literal["allow"] | None = Field(None, description="also a result that was recorded elsewhere")
    simulated: Literal["allow"] | None = Field(None, description="also a simulated result")
    driver: str | None = Field(None, description="only recommendations measured with this NVIDIA driver")
    topology: str | None = Field(None, description="only recommendations measured on this topology (hash)")

    @field_validator("format")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in FORMATS:
            raise ValueError(f"unknown format {value!r}; the formats are {', '.join(FORMATS)}")
        return value

    def request(self, *, cluster: str, model: str) -> Request:
        """Return it as the core's request, with what the job allows and insists on."""
        return replace(
            super().request(cluster=cluster, model=model),
            driver=self.driver,
            topology_hash=self.topology,
            allowed=frozenset(origin for origin in ORIGIN_WORDS if getattr(self, origin)),
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
    # If-None-Match is for AnswersMiddleware, which keeps the answers of the shape.
    media_type, format = next(
        (
            (media, _MEDIA_TYPES[media])
            for word in accept.split(",")
            if (media := word.partition(";")[0].strip()) in _MEDIA_TYPES
        ),
        ("text/plain", "export"),
    )
    if query.format is not None:
        format, media_type = query.format, "application/json" if query.format == "json" else "text/plain"
    if query.kept:
        return _decide_once(store, http.app.state.tickets, cluster=cluster, query=query)
    written = {"format": format, "media_type": media_type}
    answers = _read_answers(store, http.app.state.tickets, cluster=cluster, query=query, **written)
    reply = answers.reply(query.job)
    http.scope.get(MADE, []).append(answers)
    response = Response(finish_answer(reply, query.job))
    response.raw_headers += reply.headers
    return response


def _read_answers(
    store: CurrentStore, tickets: Tickets, *, cluster: str, query: EnvQuery, format: str, media_type: str
) -> EnvAnswers:
    published = store.recommendations.newest(cluster=cluster, model=query.model)
    if not published:
        explain_absence(store, cluster=cluster, model=query.model)
    return EnvAnswers(
        pair=(cluster, query.model),
        chosen=select_fitting(published, query.request(cluster=cluster, model=query.model)),
        rollouts=store.recommendations.rolled_out(cluster=cluster, model=query.model),
        delivery=store.revisions.rules(cluster).delivery,
        write=partial(render, format=format, shell=query.shell, unset=query.unset, channels=query.channels),
        format=format,
        media_type=media_type,
        tickets=tickets,
    )


def _decide_once(store: CurrentStore, tickets: Tickets, *, cluster: str, query: EnvQuery) -> Response:
    """Return the answer that the store keeps for a job: this one, or that to the first node which asked.

    Raises:
        UsageError: the job has no name, or another node asked something else.
        NoRecommendationError: the job gets nothing.
        StoreError: the store is away, and with it the answer of the other nodes.
    """
    job = query.job
    if not is_job_name(job):
        raise UsageError("an answer can only be kept for a job with a name", hint="add job=NAME to the request")
    answer, refusal, issued_s = None, None, time.time()
    try:
        written = {"format": "json", "media_type": "application/json"}
        answers = _read_answers(store, tickets, cluster=cluster, query=query, **written)
        answer = answers.give(job)
        document = json.loads(answers.write(answer.recommendation, said=answer.to_document()))
        document |= {"job": job, **tickets.sign(answer, job, issued_s=issued_s)}
    except NotFoundError as error:
        refusal, document = error, {"nothing": error.message}
    question = ", ".join(f"{name} {value}" for name in _ASKED if (value := getattr(query, name)) is not None)
    mine = json.dumps(document, indent=2) + "\n"
    first_question, kept = store.revisions.keep_job_decision(cluster, job, question=question, document=mine)
    if first_question != question:
        raise UsageError(
            f"another node of the job {job} asked for {first_question}, and this one for {question}",
            hint="all nodes of a job must ask for the same; two jobs need two names (--job)",
        )
    if kept == mine and answer is not None and answer.rollout:
        store.revisions.add_job_starts([build_job_start(answer, job, issued_s=issued_s)])
    if "nothing" in (told := json.loads(kept)):
        raise (
            refusal
            if refusal is not None and kept == mine
            else NoRecommendationError(
                told["nothing"], hint=f"that was decided for the job {job}; a new start needs a new name"
            )
        )
    return Response(kept, media_type="application/json", headers={"Cache-Control": "no-store"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvAnswers:
    """The answers to the jobs of one shape in one format: what a roll-out gives a job is a function of its name.

    Attributes:
        pair: cluster and workload.
        chosen: what fits the jobs.
        rollouts: the running ones of the pair, each with its revision.
        delivery: as the rules of the cluster say.
        write: renders a recommendation, given what the answer says of it.
        format, media_type: what it writes.
        tickets: which are issued to jobs.
    """

    pair: tuple[str, str]
    chosen: Recommendation
    rollouts: tuple[tuple[RollOut, Recommendation], ...]
    delivery: bool
    write: Callable[..., str]
    format: str
    media_type: str
    tickets: Tickets
    _replies: dict[tuple[str, ...], KeptReply] = field(default_factory=dict)

    def reply(self, job: str) -> KeptReply:
        """Return the reply to a job.

        Raises:
            NccltError: nothing can be given in this format.
        """
        if not self.rollouts and self._replies:  # the same for every job
            return next(iter(self._replies.values()))
        answer = self.give(job)
        key = (answer.recommendation.id, answer.variant, answer.reason, answer.rollout)
        if key not in self._replies:
            self._replies[key] = self._reply(answer)
        return self._replies[key]

    def give(self, job: str) -> ServedRevision:
        """Return the revision for a job, not yet rendered."""
        return choose_variant(self.chosen, self.rollouts, job, delivery=self.delivery)

    def _reply(self, answer: ServedRevision) -> KeptReply:
        chosen = answer.recommendation
        body = self.write(chosen, said=answer.to_document())
        etag = etag_of(body)
        form = chosen.table if self.format in TABLE_FORMATS else chosen.variables
        headers = {
            "Content-Type": self.media_type + ("; charset=utf-8" if self.media_type.startswith("text/") else ""),
            "ETag": etag,
            "Vary": "Accept",
            # What one job gets in a roll-out is for no other one, and never for an outage.
            "Cache-Control": "no-store" if answer.rollout else CACHE_CONTROL,
            "X-Ncclt-Variant": answer.variant.value,
            "X-Ncclt-Reason": answer.reason.value,
            "X-Ncclt-Recommendation": chosen.id,
            **{f"X-Ncclt-{o.title()}": "true" if chosen.origin is o else "false" for o in reversed(ORIGIN_WORDS)},
            "X-Ncclt-Decision": (form.verdict.decision if form else Decision.KEEP_DEFAULT).value,
        }
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        own = partial(self.tickets.issue, answer) if self.format == "json" else None
        return KeptReply(headers=raw, etag=etag, body=body.encode(), own=own)
