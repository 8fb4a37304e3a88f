"""The pages of one study and of one trial; what they show is also JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from fastapi.encoders import jsonable_encoder
from pydantic import Field
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from ncclt.core.api_key import Role
from ncclt.core.preflight import Preflight
from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study
from ncclt.core.verification import Verification
from ncclt.store.trials import TrialFilter
from ncclt_api.access import needs
from ncclt_api.dependencies import MOST_NUMBER, CurrentStore, CurrentStudy, StrictQuery
from ncclt_api.pages.environment import render_page
from ncclt_api.pages.trials import (
    MOST_REPEATS,
    TrialChoice,
    build_filter,
    describe_forcing,
    samples_chart,
    trials_as_csv,
    trials_as_json,
)
from ncclt_api.schemas import verification_summary
from ncclt_api.sign_in import visitor
from ncclt_api.text import readable

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=needs(Role.READ))

Form = Literal["html", "json"]


class PageQuery(StrictQuery):
    """Form of the answer."""

    format: Form = "html"


WHOLE_PAGE = {"HX-Retarget": "#main", "HX-Reselect": "#main", "HX-Reswap": "outerHTML"}
"""Headers that make htmx replace all of an open page, and not the part that it asked for."""


class StudyQuery(TrialChoice, PageQuery):
    """Tab, selection of trials, and chosen format of the result."""

    tab: Literal["result", "sizes", "search", "trials", "jobs"] = "result"
    use: str = Field("", max_length=40)


class ExportQuery(TrialChoice, StrictQuery):
    """Selection of trials, and file format."""

    format: Literal["csv", "json"] = "json"


@router.get("/studies/{id}")
def show_study(study: CurrentStudy, query: Annotated[StudyQuery, Query()], request: Request) -> Response:
    """Show one study with its evidence."""
    values = request.app.state.study_pages(
        study, server=request.app.state.public_url, choice=query, now=datetime.now(UTC), tab=query.tab, use=query.use
    )
    if query.format == "json":
        return json_response(values)
    return page_response(request, "study.html", **values)


@router.get("/studies/{id}/trials")
def export_trials(study: CurrentStudy, query: Annotated[ExportQuery, Query()], store: CurrentStore) -> Response:
    """Return all trials that match as a file."""
    write, kind = (trials_as_csv, "text/csv") if query.format == "csv" else (trials_as_json, "application/json")
    headers = {
        "Content-Disposition": f'attachment; filename="trials-{study.id}.{query.format}"',
        "Cache-Control": "private, no-cache",
    }
    return StreamingResponse(write(store, study, build_filter(study, query)), media_type=kind, headers=headers)


@router.get("/studies/{id}/trials/{number}")
def show_trial(
    study: CurrentStudy,
    number: Annotated[int, Path(ge=0, le=MOST_NUMBER)],
    query: Annotated[PageQuery, Query()],
    store: CurrentStore,
    request: Request,
) -> Response:
    """Show one trial."""
    trial = store.trials.get(study.id, number)
    repeats = store.trials.repeats(study.id, trial, limit=MOST_REPEATS) if trial.policy is None else ()
    measured = {one.message: one for one in trial.result.measurements}
    messages = [one.message for one in study.workload.messages if not measured or one.message in measured]
    values: dict[str, Any] = {
        "study": study,
        "trial": trial,
        "messages": messages,
        "repeats": repeats,
        "last": store.trials.select(study.id, TrialFilter(), limit=1).total - 1,
        "forcing": describe_forcing(study, trial),
        "samples": samples_chart(trial),
    }
    if query.format == "json":
        return json_response(values)
    return page_response(request, "trial.html", measured=measured, **values)


def page_response(request: Request, template: str, **values: Any) -> HTMLResponse:
    """Return one page in the frame of all pages."""
    reader = visitor(request)
    # It shows the studies of all clusters.
    optuna_url = request.app.state.optuna_dashboard_url if reader.sees_all else ""
    page = render_page(template, optuna_dashboard_url=optuna_url, visitor=reader, **values)
    return HTMLResponse(page, headers={"Cache-Control": "private, no-cache"})


def build_address(path: str, chosen: Mapping[str, str], page: int) -> str:
    """Return the address of a page of a filtered list, 1 = the first one."""
    given = {name: value for name, value in chosen.items() if value} | ({"page": str(page)} if page > 1 else {})
    return path + ("?" + urlencode(given, errors="replace") if given else "")


def json_response(view: Any) -> JSONResponse:
    """Return the JSON twin of a page."""
    return JSONResponse(readable(_json(view)), headers={"Cache-Control": "private, no-cache"})


def _json(value: Any) -> Any:
    """Return a value as JSON: a mapping by message becomes a list of pairs, and infinity null.

    Command lines, environments and output of jobs are left out, as on the page and in the API.
    """
    if isinstance(value, Verification):
        return _json(verification_summary(value).model_dump())
    if is_dataclass(value):
        found = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, Recommendation | Study):
            found["label"] = value.label  # demonstrations are marked here too
        if isinstance(value, Preflight):
            found |= {"verdict": value.verdict, "rows": value.rows, "launches": len(found.pop("readings"))}
        return {name: _json(item) for name, item in found.items()}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {str(key): _json(item) for key, item in value.items()}
        return [[_json(key), _json(item)] for key, item in value.items()]
    if isinstance(value, list | tuple | set | frozenset | range):
        return [_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return jsonable_encoder(value)
