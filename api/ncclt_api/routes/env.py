"""The result itself: the settings of a job, as text."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field, field_validator
from starlette.responses import Response

from ncclt.core.recommendation import Decision, Recommendation, select
from ncclt.deliver.render.formats import FORMATS, SHELLS, TABLE_FORMATS, render
from ncclt_api.dependencies import CurrentStore
from ncclt_api.routes import PROBLEMS
from ncclt_api.routes.recommendations import JobQuery, explain_absence

CACHE_CONTROL = "max-age=60, stale-if-error=604800"
"""Fresh for a minute; usable for a week while the service is down: an outage of the tuner must not stop training."""


def etag_of(body: str) -> str:
    """Return the strong entity tag of a body, quoted (RFC 9110, section 8.8.3)."""
    return f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'


router = APIRouter(prefix="/v1/clusters", tags=["recommendations"], responses=PROBLEMS)


class EnvQuery(JobQuery):
    """Which job, and the output format; without the job's whole shape the answer only lists the published shapes."""

    model: str = Field(description="name of the workload")
    format: str = Field("export", description="output format", json_schema_extra={"enum": list(FORMATS)})
    shell: str = Field("bash", description="`export` only: the shell", json_schema_extra={"enum": list(SHELLS)})
    unset: bool = Field(False, description="`export` only: remove what the same request without it sets")
    channels: int | None = Field(None, ge=1, description="`nvidia-csv` only: if the policy leaves them to NCCL")

    @field_validator("format")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in FORMATS:
            raise ValueError(f"unknown format {value!r}; the formats are {', '.join(FORMATS)}")
        return value


@router.get(
    "/{cluster}/env",
    operation_id="getEnvironment",
    summary="The environment of a job of this shape, ready for `eval`",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}, "application/json": {}}, "description": "as `format` says"},
        404: PROBLEMS[404] | {"description": "not known here, or nothing was published for it"},
        409: PROBLEMS[404] | {"description": "only published for the shapes in `available`"},
        410: PROBLEMS[404] | {"description": "what fits is out of date"},
        304: {"description": "the client has it already"},
    },
)
def get_environment(cluster: str, query: Annotated[EnvQuery, Query()], store: CurrentStore) -> Response:
    """Write the newest recommendation that fits the job exactly; never the nearest one."""
    # If-None-Match is for AnswersMiddleware, which keeps what is returned here.
    published = store.newest(cluster=cluster, model=query.model)
    if not published:
        explain_absence(store, cluster=cluster, model=query.model)
    chosen = select(published, query.request(cluster=cluster, model=query.model))
    body = render(chosen, format=query.format, shell=query.shell, unset=query.unset, channels=query.channels)
    return Response(
        body,
        media_type="application/json" if query.format == "json" else "text/plain; charset=utf-8",
        headers={
            "ETag": etag_of(body),
            "Cache-Control": CACHE_CONTROL,
            "X-Ncclt-Recommendation": chosen.id,
            "X-Ncclt-Simulated": "true" if chosen.simulated else "false",
            "X-Ncclt-Recorded": "true" if chosen.launcher == "replay" else "false",
            "X-Ncclt-Decision": _decision(chosen, query.format),
        },
    )


def _decision(recommendation: Recommendation, format: str) -> str:
    policy_verdict = recommendation.table if format in TABLE_FORMATS else recommendation.variables
    return (policy_verdict.verdict.decision if policy_verdict else Decision.KEEP_DEFAULT).value
