"""Keys of the service."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from ncclt.core.api_key import MOST_DAYS, MOST_NOTE, USUAL_DAYS, ApiKey, Role, hash_secret, new_key, new_secret
from ncclt.core.revision import Actor
from ncclt.errors import NotFoundError
from ncclt.store.clock import utc_now
from ncclt.store.store import Store
from ncclt_api.access import key_of, needs, who
from ncclt_api.dependencies import CurrentList, CurrentStore, PagedQuery, WholeStore
from ncclt_api.json_models import AnswerModel, JsonBody, Page, answer_model
from ncclt_api.problems import ForbiddenError
from ncclt_api.routes import PROBLEMS

router = APIRouter(prefix="/v1/keys", tags=["keys"], responses=PROBLEMS, dependencies=needs(Role.ADMIN))


class NewKey(JsonBody):
    """New key request."""

    role: Role = Field(description="each role includes those before it")
    clusters: list[str] = Field(default_factory=list, max_length=1000, description="that it is for; empty = all")
    note: str = Field("", max_length=MOST_NOTE, description="such as the owner of the key")
    days: int | None = Field(USUAL_DAYS, ge=1, le=MOST_DAYS, description="until it expires; null = never")


@answer_model(ApiKey)
class KeyDocument(AnswerModel):
    """A key without its secret, which is not stored."""


class CreatedKey(KeyDocument):
    """A new key with its secret, shown only once."""

    secret: str


class KeyList(Page):
    """One page of keys, oldest first."""

    items: list[KeyDocument]


@router.get("", operation_id="listKeys", summary="Keys, oldest first")
def list_keys(
    query: Annotated[PagedQuery, Query()], store: WholeStore, request: Request, lists: CurrentList
) -> KeyList:
    """List one page of keys, including revoked ones; a key limited to clusters sees only keys of these."""
    keys = _find_visible(store, request)
    return lists.write_part(KeyList, query, keys, key=lambda key: key.id, show=ApiKey.to_document)


@router.post("", operation_id="createKey", summary="Create a key", status_code=201)
def create_key(
    body: NewKey, visible: CurrentStore, store: WholeStore, request: Request, response: Response
) -> CreatedKey:
    """Create a key; only this answer has its secret."""
    for name in body.clusters:
        visible.clusters.get(name)
    own = key_of(request)
    if own is None:
        raise ForbiddenError(
            "the first key is made where the service runs, because every request needs a key from then on",
            hint="`ncclt admin keys create --role admin`, or `ncclt serve --first-key FILE`",
        )
    if own.clusters and not body.clusters:
        raise ForbiddenError(
            f"the {own.holder} is for {', '.join(own.clusters)} alone", hint="name `clusters` of the new key"
        )
    secret = new_secret()
    digest = hash_secret(secret)
    key = new_key(digest, body.role, clusters=body.clusters, note=body.note, now=utc_now(), days=body.days)
    store.keys.add(key, digest=digest, by=Actor(who=who(request)))
    response.headers["Cache-Control"] = "no-store"
    return CreatedKey.model_validate(key.to_document() | {"secret": secret})


@router.delete("/{id}", operation_id="revokeKey", summary="Revoke a key")
def revoke_key(id: str, store: WholeStore, request: Request) -> KeyDocument:
    """Revoke a key: every service refuses it within a second."""
    if id not in {key.id for key in _find_visible(store, request)}:
        raise NotFoundError(f"there is no key {id!r}", hint="GET /v1/keys lists all")
    return KeyDocument.model_validate(store.keys.revoke(id, now=utc_now(), by=Actor(who=who(request))).to_document())


def _find_visible(store: Store, request: Request) -> list[ApiKey]:
    own = key_of(request)
    bounds = set(own.clusters) if own is not None else set()
    return [key for key in store.keys.find().values() if not bounds or (key.clusters and bounds >= {*key.clusters})]
