"""Answers of pages: HTML in the frame of all pages, or the same figures as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.encoders import jsonable_encoder
from starlette.responses import HTMLResponse, JSONResponse, Response

from ncclt.core.preflight import Preflight
from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study
from ncclt.core.verification import Verification
from ncclt_api.dependencies import CurrentStore, StrictQuery
from ncclt_api.json_models import VerificationSummary
from ncclt_api.pages.environment import render_page
from ncclt_api.sign_in import visitor
from ncclt_api.text import readable

WHOLE_PAGE = {"HX-Retarget": "#main", "HX-Reselect": "#main", "HX-Reswap": "outerHTML"}
"""Headers that make htmx replace all of an open page, and not the part that it asked for."""


def page_router(**options: Any) -> APIRouter:
    """Return a router of pages, which are no part of the API's description."""
    return APIRouter(include_in_schema=False, default_response_class=HTMLResponse, **options)


class PageQuery(StrictQuery):
    """Form of the answer; a subclass adds the choices of the reader, of which empty ones mean all."""

    format: Literal["html", "json"] = "html"

    @property
    def chosen(self) -> dict[str, str]:
        """Return the choices that make the list shorter, as text."""
        return {name: str(value) for name, value in self.model_dump(exclude={"format", "page", "cursor"}).items()}

    @property
    def is_filtered(self) -> bool:
        """True where something is chosen."""
        return any(self.chosen.values())

    def address(self, path: str, page: int = 1, **changes: str) -> str:
        """Return an address with the same choices and some changes; `page` from 1."""
        numbered = {"page": str(page)} if page > 1 else {}
        parameters = {name: value for name, value in {**self.chosen, **changes, **numbered}.items() if value}
        return path + ("?" + urlencode(parameters, errors="replace") if parameters else "")


class Filter(PageQuery):
    """Filter by cluster and workload."""

    cluster: str = ""
    model: str = ""

    @property
    def names(self) -> dict[str, Any]:
        """Return the names for a query of the store, where None means all."""
        return {"cluster": self.cluster or None, "model": self.model or None}


class PageWriter:
    """Writes the answer to the request for a page."""

    def __init__(self, request: Request, store: CurrentStore) -> None:
        self._request, self._store = request, store

    def write(self, template: str, query: PageQuery, values: Mapping[str, Any], **html_values: Any) -> Response:
        """Return a page, or its figures as JSON.

        Args:
            template: name of its file.
            query: of the request.
            values: the figures.
            html_values: of the template alone; of two with one name, it gets this one.
        """
        if query.format == "json":
            return json_response(values)
        return self.write_html(template, **{**values, **html_values})

    def write_html(self, template: str, **values: Any) -> HTMLResponse:
        """Return a page in the frame of all pages."""
        state, reader = self._request.app.state, visitor(self._request)
        page = render_page(
            template,
            # It shows the studies of all clusters.
            optuna_dashboard_url=state.optuna_dashboard_url if reader.sees_all else "",
            visitor=reader,
            cluster_names=self._cluster_names,
            workload_names=self._workload_names,
            **values,
        )
        return HTMLResponse(page, headers={"Cache-Control": "private, no-cache"})

    # A study may belong to a cluster or workload that has left the catalogue, so the chosen one is an option too.

    def _cluster_names(self, chosen: str = "") -> list[str]:
        return sorted({*(cluster.name for cluster, _ in self._store.clusters.entries()), chosen} - {""})

    def _workload_names(self, chosen: str = "") -> list[str]:
        return sorted({*(workload.name for workload, _ in self._store.workloads.entries()), chosen} - {""})


CurrentPage = Annotated[PageWriter, Depends()]


def json_response(view: Any) -> JSONResponse:
    """Return the figures of a page as JSON."""
    return JSONResponse(readable(_to_json(view)), headers={"Cache-Control": "private, no-cache"})


def _to_json(value: Any) -> Any:
    """Return a value as JSON: a mapping by message becomes a list of pairs, and infinity null.

    Command lines, environments and output of jobs are left out, as on the page and in the API.
    """
    if isinstance(value, Verification):
        return _to_json(VerificationSummary.model_validate(value.to_document()).model_dump())
    if is_dataclass(value):
        document = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, Recommendation | Study):
            document["label"] = value.label  # demonstrations are marked here too
        if isinstance(value, Preflight):
            document |= {"verdict": value.verdict, "rows": value.rows, "launches": len(document.pop("readings"))}
        return {name: _to_json(item) for name, item in document.items()}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {str(key): _to_json(item) for key, item in value.items()}
        return [[_to_json(key), _to_json(item)] for key, item in value.items()]
    if isinstance(value, list | tuple | set | frozenset | range):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return jsonable_encoder(value)
