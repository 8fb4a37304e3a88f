"""Dependencies of the routes: the store, and query parameters of which none is silently ignored."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study
from ncclt.errors import UsageError
from ncclt.store.store import Store
from ncclt_api.access import key_of

_Row = TypeVar("_Row")
_Page = TypeVar("_Page", bound=BaseModel)

MOST_NUMBER = 2**31 - 2
"""Of a request that is given to a database: a column holds no larger one, also not the next."""


def current_store(request: Request) -> Store:
    """Return the store as the key of the request may see it."""
    key = key_of(request)
    store: Store = request.app.state.store
    return store.within(key.clusters if key else ())


CurrentStore = Annotated[Store, Depends(current_store)]


def whole_store(request: Request) -> Store:
    """Return the store with everything, for public routes: probes and the sign-in."""
    store: Store = request.app.state.store
    return store


WholeStore = Annotated[Store, Depends(whole_store)]


def current_study(id: str, store: CurrentStore) -> Study:
    """Return the study of a path."""
    return store.studies.get(id)


CurrentStudy = Annotated[Study, Depends(current_study)]


def current_recommendation(id: str, store: CurrentStore) -> Recommendation:
    """Return the recommendation of a path."""
    return store.recommendations.get(id)


CurrentRecommendation = Annotated[Recommendation, Depends(current_recommendation)]


class StrictQuery(BaseModel):
    """Query parameters of one route; an unknown one is refused, so that `?node=2` does not select any size."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        parameters = [field.alias or name for name, field in cls.model_fields.items()]
        for name in values:
            if name not in parameters:
                close = difflib.get_close_matches(name, parameters, n=1)
                meant = f", did you mean {close[0]!r}?" if close else ""
                raise ValueError(f"unknown parameter {name!r}{meant}; the parameters are {', '.join(parameters)}")
        return values


class PagedQuery(StrictQuery):
    """Page of a list."""

    limit: int = Field(50, ge=1, le=500, description="max items on one page")
    cursor: str | None = Field(None, max_length=300, description="next_cursor of the previous page")

    @property
    def number(self) -> int | None:
        """Return the cursor of a list that is ordered by numbers; None = from its start.

        Raises:
            UsageError: the cursor is not such a number.
        """
        if self.cursor is None:
            return None
        if not (self.cursor.isascii() and self.cursor.isdecimal() and int(self.cursor) <= MOST_NUMBER):
            raise wrong_cursor(self.cursor)
        return int(self.cursor)


class ListWriter:
    """Writes one page of a list, with a Link header that leads to the next one."""

    def __init__(self, request: Request, response: Response) -> None:
        self._path, self._headers = request.url.path, response.headers

    def write(
        self, page: type[_Page], query: PagedQuery, items: Sequence[object], next_cursor: str | None, **values: object
    ) -> _Page:
        """Return a page of items.

        Args:
            page: its model.
            query: of the request.
            items: of this page, as models or documents.
            next_cursor: of the next page; None = there is none.
            values: of further fields.
        """
        if next_cursor is not None:
            parameters = query.model_dump(exclude_none=True) | {"cursor": next_cursor}
            self._headers["Link"] = f'<{self._path}?{urlencode(parameters)}>; rel="next"'
        return page.model_validate({"items": items, "next_cursor": next_cursor, **values})

    def write_rows(
        self,
        page: type[_Page],
        query: PagedQuery,
        rows: Sequence[_Row],
        *,
        key: Callable[[_Row], str],
        show: Callable[[_Row], object],
        **values: object,
    ) -> _Page:
        """Return the page of the first rows; more than `query.limit` of them mean that there is a next page.

        Args:
            page, query, values: as for `write`.
            rows: those after the cursor of the query.
            key: cursor behind a row.
            show: returns a row as an item.
        """
        shown = rows[: query.limit]
        next_cursor = key(shown[-1]) if len(rows) > query.limit else None
        return self.write(page, query, [show(row) for row in shown], next_cursor, **values)

    def write_part(
        self,
        page: type[_Page],
        query: PagedQuery,
        rows: Sequence[_Row],
        *,
        key: Callable[[_Row], str],
        show: Callable[[_Row], object],
    ) -> _Page:
        """Return the page of a whole list, as `write_rows` does; the cursor is the unique key of a row.

        Raises:
            UsageError: no row has the cursor.
        """
        start = 0
        if query.cursor is not None:
            start = next((place for place, row in enumerate(rows, 1) if key(row) == query.cursor), -1)
            if start < 0:
                raise wrong_cursor(query.cursor)
        return self.write_rows(page, query, rows[start:], key=key, show=show)


CurrentList = Annotated[ListWriter, Depends()]


def wrong_cursor(cursor: str) -> UsageError:
    """Return the error for a cursor that no page had."""
    return UsageError(f"{cursor!r} is not a cursor", hint="pass the next_cursor of the previous page")


def normal_version(text: str | None) -> str | None:
    """Return an NCCL version in the spelling of a fingerprint: `2.28` and `22800` become `2.28.0`.

    Raises:
        UsageError: the text is not an NCCL version.
    """
    return None if text is None else str(NcclVersion.parse(text))
