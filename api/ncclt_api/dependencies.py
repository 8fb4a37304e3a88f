"""Dependencies of the routes: the store, and query parameters of which none is silently ignored."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, model_validator

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study
from ncclt.store.store import Store
from ncclt_api.access import key_of

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
                raise ValueError(f"unknown query parameter {name!r}{meant}; the parameters are {', '.join(known)}")
        return values


def normal_version(text: str | None) -> str | None:
    """Return an NCCL version in the spelling of a fingerprint: `2.28` and `22800` become `2.28.0`.

    Raises:
        UsageError: the text is not an NCCL version.
    """
    return None if text is None else str(NcclVersion.parse(text))
