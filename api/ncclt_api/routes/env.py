"""The result itself: what a job sets, as text."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field, field_validator
from starlette.responses import Response

from ncclt.core.recommendation import Decision, Recommendation, select
from ncclt.core.render import FORMATS, render
from ncclt.core.version import NcclVersion
from ncclt_api.caching import conditional_response
from ncclt_api.dependencies import CurrentStore
from ncclt_api.routes import PROBLEMS
from ncclt_api.routes.recommendations import JobQuery, explain_absence

router = APIRouter(prefix="/v1/clusters", tags=["recommendations"], responses=PROBLEMS)

TABLE_FORMAT = "tuner-csv"
"""The one format that delivers the per-size policy; all others deliver plain variables."""


class EnvQuery(JobQuery):
    """Which job, and how to write it."""

    model: str = Field(description="name of the workload")
    format: str = Field("export", description="how to write it", json_schema_extra={"enum": list(FORMATS)})

    @field_validator("format")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in FORMATS:
            raise ValueError(f"unknown format {value!r}; the formats are {', '.join(FORMATS)}")
        return value


@router.get(
    "/{cluster}/env",
    operation_id="getEnvironment",
    summary="The environment of a job, ready for `eval`",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}, "application/json": {}}, "description": "as `format` says"},
        304: {"description": "the client has it already"},
    },
)
def get_environment(
    cluster: str, query: Annotated[EnvQuery, Query()], store: CurrentStore, request: Request
) -> Response:
    """Write the newest recommendation that fits the job exactly; never the nearest one."""
    published = store.recommendations(cluster=cluster, model=query.model)
    if not published:
        explain_absence(store, cluster=cluster, model=query.model)
    chosen = select(published, query.request(cluster=cluster, model=query.model))
    version = NcclVersion.parse(chosen.fingerprint.nccl_version)
    return conditional_response(
        request,
        render(chosen, format=query.format, version=version),
        media_type="application/json" if query.format == "json" else "text/plain; charset=utf-8",
        headers={
            "X-Ncclt-Recommendation": chosen.id,
            "X-Ncclt-Simulated": "true" if chosen.simulated else "false",
            "X-Ncclt-Decision": _decision(chosen, query.format),
        },
    )


def _decision(recommendation: Recommendation, format: str) -> Literal["tuned", "keep-default"]:
    delivery = recommendation.table if format == TABLE_FORMAT else recommendation.variables
    if delivery is None or delivery.verdict.decision is not Decision.TUNED:
        return "keep-default"
    return "tuned"
