"""What a server or a store offers for a job, as `ncclt run` and the TaskProlog with a table take it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import Request
from ncclt.deliver.handover import Offer, offer_from_documents, with_table_text
from ncclt.errors import InputError, NoRecommendationError, ServerError, StaleRecommendationError, UsageError
from ncclt.user_dirs import user_folder

_LEAST_S = 0.01
"""Shortest time that a server is given; not above 0 is no time limit to a socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferTexts:
    """An offer as it was rendered.

    Attributes:
        env: in the format `json`.
        table: in the format `tuner-csv`; empty = there is none, or it was not asked for.
    """

    env: str
    table: str = ""

    def offer(self) -> Offer:
        """Return what the texts say.

        Raises:
            InputError: they are no such texts, not of one revision, or set what ncclt never sets.
        """
        offer = offer_from_documents(self.env)
        return with_table_text(offer, self.table) if self.table else offer


def ask_for_offer(
    request: Request,
    server: str | None,
    storage: str | None,
    *,
    with_table: bool,
    timeout_s: float,
    from_cache: bool,
    warn: Callable[[str], None],
) -> OfferTexts:
    """Ask the server, or the store where there is none.

    Args:
        request: the job that it is for.
        server, storage: one of them, or none for the default store.
        with_table: the table is wanted as well.
        timeout_s: of all that a server is asked for here, together.
        from_cache: a server that is away may be answered for by the cache.
        warn: takes a line for people, as soon as it is known.

    Raises:
        NoRecommendationError: nothing fitting was published, or it is stale.
        ServerError: the server is away or broken, and nothing is kept of it.
        InputError: what came is no offer.
    """
    render = (
        _fetching(request, server, timeout_s=timeout_s, from_cache=from_cache, warn=warn)
        if server
        else _storing(request, storage)
    )
    env = OfferTexts(env=render("json"))
    offer = env.offer()
    if not (with_table and offer.rules.rules):
        return env
    both = OfferTexts(env=env.env, table=render("tuner-csv"))
    try:
        both.offer()
    except InputError:
        # A revision was published in between, so that the environment is asked for once more.
        both = OfferTexts(env=render("json"), table=both.table)
        both.offer()
    return both


def _fetching(
    request: Request, server: str, *, timeout_s: float, from_cache: bool, warn: Callable[[str], None]
) -> Callable[[str], str]:
    from ncclt.client.fetch import ClientError, fetch_env

    deadline_s = time.monotonic() + timeout_s

    def fetch(format: str) -> str:
        try:
            fetched = fetch_env(
                server,
                cluster=request.cluster,
                model=request.model,
                nodes=request.nodes,
                gpus_per_node=request.gpus_per_node,
                nccl_version=request.nccl_version,
                format=format,
                # Where nothing is left this is an outage like any other, for which there may be an answer in the cache.
                timeout_s=max(deadline_s - time.monotonic(), _LEAST_S),
                **kept_answers(),
                fallback="cached" if from_cache else "none",
                api_key=os.environ.get("NCCLT_API_KEY"),
            )
        except ClientError as error:
            kind = {404: NoRecommendationError, 410: StaleRecommendationError}.get(error.status or 0, ServerError)
            raise kind(error.message, hint=error.hint) from error
        if fetched.warning:
            warn(f"ncclt: {fetched.warning}")
        return fetched.text

    return fetch


def _storing(request: Request, storage: str | None) -> Callable[[str], str]:
    from ncclt.deliver.render.formats import render
    from ncclt.store import chosen

    found = chosen(storage, request)
    version = NcclVersion.parse(found.fingerprint.nccl_version)
    return lambda format: render(found, format=format, version=version)


def kept_answers() -> dict[str, Any]:
    """Return where answers of servers are kept, and how old one may be: the options `cache_dir` and `max_age_s`.

    Raises:
        UsageError: NCCLT_CACHE_DAYS is no number of days.
    """
    from ncclt.client.fetch import MAX_AGE_S

    days = os.environ.get("NCCLT_CACHE_DAYS", "")
    if days and not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,5})?", days, re.ASCII):
        raise UsageError(f"NCCLT_CACHE_DAYS is {days!r}, which is not a number of days", hint="for example 7")
    return {"cache_dir": cache_folder() / "env", "max_age_s": float(days) * 86400 if days else MAX_AGE_S}


def cache_folder() -> Path:
    """Return where this user's copies of answers and tables lie."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "ncclt"
