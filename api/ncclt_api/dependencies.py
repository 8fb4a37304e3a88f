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

_Item = TypeVar("_Item")

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
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name in values:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                meant = f", did you mean {close[0]!r}?" if close else ""
                raise ValueError(f"unknown parameter {name!r}{meant}; the parameters are {', '.join(known)}")
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

    def cut(self, items: Sequence[_Item], key: Callable[[_Item], str]) -> tuple[Sequence[_Item], str | None]:
        """Return the items of the page, and the cursor of the next one.

        Args:
            items: the whole list, in its order.
            key: the unique name of an item, which is its cursor.

        Raises:
            UsageError: no item has the cursor.
        """
        start = 0
        if self.cursor is not None:
            start = next((place for place, item in enumerate(items, 1) if key(item) == self.cursor), -1)
            if start < 0:
                raise wrong_cursor(self.cursor)
        shown = items[start : start + self.limit]
        return shown, key(shown[-1]) if shown and start + self.limit < len(items) else None

    def link(self, next_cursor: str | None, request: Request, response: Response) -> None:
        """Add the Link header that leads to the next page, if there is one."""
        if next_cursor is not None:
            following = self.model_dump(exclude_none=True) | {"cursor": next_cursor}
            response.headers["Link"] = f'<{request.url.path}?{urlencode(following)}>; rel="next"'


def wrong_cursor(cursor: str) -> UsageError:
    """Return the error for a cursor that no page had."""
    return UsageError(f"{cursor!r} is not a cursor", hint="pass the next_cursor of the previous page")


def normal_version(text: str | None) -> str | None:
    """Return an NCCL version in the spelling of a fingerprint: `2.28` and `22800` become `2.28.0`.

    Raises:
        UsageError: the text is not an NCCL version.
    """
    return None if text is None else str(NcclVersion.parse(text))
