"""What a server, a store or a file offers for a job: the input of `ncclt run` and of a TaskProlog with a table."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclt.client.answer import NEEDS, checked, checked_document, one_line
from ncclt.core.attestation import Delivered, Form
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Recommendation, Request
from ncclt.deliver.effect import policy_of_variables
from ncclt.errors import (
    InputError,
    NccltError,
    NoRecommendationError,
    ServerError,
    StaleRecommendationError,
    UsageError,
    reason,
)
from ncclt.nccl.tuner_table import table_checksum
from ncclt.user_dirs import user_folder

if TYPE_CHECKING:
    from ncclt.client.fetch import ClientError, Fetched

_MOST_KEY_BYTES = 1000


_LEAST_S = 0.01
"""Shortest timeout that is passed on: for a socket 0 means no timeout."""

_TABLE_HEAD = re.compile(
    r"# ncclt-table [0-9]{1,3} id=(?P<id>[A-Za-z0-9._-]{1,64}) nccl=(?P<nccl>[0-9]{1,3}(?:\.[0-9]{1,3}){1,2}) "
    r"nodes=(?P<nodes>[0-9]{1,6}) ranks=(?P<ranks>[0-9]{1,9}) rows=(?P<rows>[0-9]{1,6}) fnv1a=(?P<fnv1a>[0-9a-f]{16})\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a server, a store or a file offers for a job, checked by `offer_from_*`.

    Attributes:
        recommendation, cluster, model: id and names; the names are empty for a table from a file.
        nccl_version: with which it was measured; empty = not known.
        nodes, ranks: of the measured job; 0 = not known.
        simulated: the times come from a model.
        recorded: the times were recorded elsewhere and replayed.
        variables: (name, value) proven without the table.
        table: text for the plugin; empty = there is none, or it was not requested.
        rules: of the table.
        table_variables: (name, value) that the table needs.
        document: the whole answer of a server or store, to be passed on; empty for a table from a file.
        rollout: id of the roll-out that the job is part of; empty = none.
        variant: what it is given in it.
        ticket: for the reports of the job; empty = it cannot report.
    """

    recommendation: str
    cluster: str = ""
    model: str = ""
    nccl_version: str = ""
    nodes: int = 0
    ranks: int = 0
    simulated: bool = False
    recorded: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    table: str = ""
    rules: Policy = field(default_factory=Policy)
    table_variables: tuple[tuple[str, str], ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
    rollout: str = ""
    variant: str = ""
    ticket: str = ""

    @property
    def why_nothing(self) -> str:
        """Return the verdict that leaves variables nothing to set, with its reason; empty where they were proven."""
        verdict = self.document.get("table_verdict")
        if self.document.get("decision", "tuned") == "tuned" or not isinstance(verdict, Mapping):
            return ""
        mark = "SIMULATED: " if self.simulated else "recorded: " if self.recorded else ""
        if verdict.get("decision") == "tuned":
            return f"{mark}the gain was proven for the table alone"
        return one_line(f"{mark}{verdict.get('decision')}: {verdict.get('reason')}")


def offer_from_json(text: str) -> Offer:
    """Read an offer from the text of the format `json`.

    Raises:
        InputError: the text is not in this format, or sets what ncclt never sets.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_offer(error) from error
    return offer_from_document(document)


def offer_from_document(document: Any) -> Offer:
    """Read an offer from a document of the format `json`.

    Raises:
        InputError: the document is not in this format, or sets what ncclt never sets.
    """
    try:
        known = checked_document(document, document["nccl_version"])
        rules = Policy.from_document({"rules": known["table"], "parameters": known["table_parameters"]})
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, NccltError) as error:
        raise _no_offer(error) from error
    return Offer(
        recommendation=known["recommendation"],
        cluster=known["cluster"],
        model=known["model"],
        nccl_version=known["nccl_version"],
        nodes=known["nodes"],
        ranks=known["nodes"] * known["gpus_per_node"],
        simulated=known["simulated"],
        recorded=known["launcher"] == "replay",
        variables=tuple(sorted(known["variables"].items())),
        rules=Policy(rules=tuple(rule for rule in rules.rules if rule.algorithm and rule.protocol)),
        table_variables=tuple((f"NCCL_{name}", str(value)) for name, value in rules.parameters),
        document=document,
        rollout=known.get("rollout", ""),
        variant=known.get("variant", ""),
        ticket=known.get("ticket", ""),
    )


def _no_offer(error: Exception) -> InputError:
    return InputError(f"this is not an environment of ncclt: {error}", hint="update ncclt here or on the server")


def with_table_text(offer: Offer, text: str) -> Offer:
    """Return an offer with its table, the text of the format `tuner-csv`.

    Raises:
        InputError: the text is not a table, or is of another revision, published in between.
    """
    head = _TABLE_HEAD.match(text)
    if head is None or head["id"] != offer.recommendation:
        raise InputError(
            "environment and table are not of one revision", hint="a new one was published in between; try again"
        )
    return replace(offer, table=text)


def offer_from_table(path: Path) -> Offer:
    """Read a table as `ncclt env --format tuner-csv` writes it.

    Raises:
        UsageError: it cannot be read, is not a table of ncclt, or is damaged.
        InputError: it needs variables that ncclt never sets.
    """
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the table {path} cannot be read: {reason(error)}", hint="name a file of --format tuner-csv"
        ) from error
    head = _TABLE_HEAD.match(text)
    if head is None:
        raise UsageError(
            f"{path} does not begin like a table of ncclt",
            hint="write it with `ncclt env --format tuner-csv`; for your own table set NCCLT_POLICY yourself",
        )
    lines = [line.strip() for line in text.splitlines()]
    rows = [line for line in lines if line and not line.startswith("#")]
    if (len(rows), f"{table_checksum(rows):016x}") != (int(head["rows"]), head["fnv1a"]):
        raise UsageError(
            f"the table {path} is damaged or was edited: its rows do not fit its first line",
            hint="write it again with `ncclt env`; for your own table set NCCLT_POLICY yourself",
        )
    try:
        needed = checked(dict(NEEDS.findall(text)), head["nccl"])
    except ValueError as error:
        raise InputError(f"the table {path} cannot be used: {error}", hint="write it again with `ncclt env`") from error
    return Offer(
        recommendation=head["id"],
        nccl_version=head["nccl"],
        nodes=int(head["nodes"]),
        ranks=int(head["ranks"]),
        simulated=any(line.startswith("# SIMULATED") for line in lines),
        recorded=any(line.startswith("# recorded") for line in lines),
        table=text if int(head["rows"]) else "",
        table_variables=tuple(sorted(needed.items())),
    )


def ask_for_offer(
    request: Request,
    server: str | None,
    storage: str | None,
    *,
    with_table: bool,
    timeout_s: float,
    from_cache: bool,
    warn: Callable[[str], None],
) -> Offer:
    """Request an offer from the server, or from the store if there is no server.

    Args:
        request: the job that it is for.
        server, storage: one of them, or neither for the default store.
        with_table: request the table too.
        timeout_s: for all requests to the server together.
        from_cache: use the cached answer if the server is unreachable.
        warn: receives a line for the user, at once.

    Raises:
        NoRecommendationError: nothing fitting was published, or it is stale.
        UsageError: the server refuses the request, for example an invalid version.
        ServerError: the server is unreachable or broken, and the cache has no answer.
        InputError: the answer is invalid.
    """
    if not server:
        return _stored(request, storage, with_table=with_table)
    fetch = _fetching(request, server, timeout_s=timeout_s, from_cache=from_cache, warn=warn)
    offer = offer_from_json(fetch("json"))
    if not (with_table and offer.rules.rules):
        return offer
    table = fetch("tuner-csv")
    try:
        return with_table_text(offer, table)
    except InputError:
        # A revision was published in between, so the environment is requested once more.
        return with_table_text(offer_from_json(fetch("json")), table)


def _stored(request: Request, storage: str | None, *, with_table: bool) -> Offer:
    from ncclt.deliver.variant import given_from_store, issue_from_store

    found = given_from_store(storage, request)
    said = found.to_document() | issue_from_store(storage, found, request.job)
    return offer_of(found.recommendation, with_table=with_table, said=said)


def offer_of(recommendation: Recommendation, *, with_table: bool, said: Mapping[str, str] | None = None) -> Offer:
    """Return what a recommendation offers.

    Args:
        recommendation: what is given.
        with_table: its table too.
        said: variant, reason, roll-out and ticket, where they are known.

    Raises:
        NoRecommendationError: the proof ended undecided.
    """
    from ncclt.deliver.render.formats import env_document, render

    offer = offer_from_document(env_document(recommendation) | dict(said or {}))
    if not (with_table and offer.rules.rules):
        return offer
    return with_table_text(offer, render(recommendation, format="tuner-csv"))


def _fetching(
    request: Request, server: str, *, timeout_s: float, from_cache: bool, warn: Callable[[str], None]
) -> Callable[[str], str]:
    deadline_s = time.monotonic() + timeout_s

    def fetch(format: str) -> str:
        # Without time left this is an outage like any other, and the cache may have an answer.
        left_s = max(deadline_s - time.monotonic(), _LEAST_S)
        fallback = "cached" if from_cache else "none"
        fetched = fetched_for(request, server, format=format, timeout_s=left_s, fallback=fallback, **kept_answers())
        if fetched.warning:
            warn(f"ncclt: {fetched.warning}")
        return fetched.text

    return fetch


def fetched_for(request: Request, server: str, **options: Any) -> Fetched:
    """Return what a server answers for a job; `options` as of `fetch_env`.

    Raises:
        NoRecommendationError, StaleRecommendationError, UsageError, ServerError: as `error_of` tells them apart.
    """
    from ncclt.client.fetch import ClientError, fetch_env

    try:
        return fetch_env(
            server,
            cluster=request.cluster,
            model=request.model,
            nodes=request.nodes,
            gpus_per_node=request.gpus_per_node,
            nccl_version=request.nccl_version,
            driver=request.driver,
            topology=request.topology_hash,
            job=request.job,
            allow=request.allowed,
            # A key on the command line would show in the process list.
            api_key=api_key(os.environ),
            **options,
        )
    except ClientError as error:
        raise error_of(error) from error


def error_of(failure: ClientError) -> NccltError:
    """Return what kept a server from answering as an error of ncclt."""
    kinds: dict[int, type[NccltError]] = {
        404: NoRecommendationError, 409: NoRecommendationError, 410: StaleRecommendationError, 422: UsageError,
    }  # fmt: skip
    return kinds.get(failure.status or 0, ServerError)(failure.message, hint=failure.hint)


def kept_answers() -> dict[str, Any]:
    """Return where answers of servers are cached, and how old one may be: the options `cache_dir` and `max_age_s`.

    Raises:
        UsageError: NCCLT_CACHE_DAYS is not a number of days.
    """
    from ncclt.client.fetch import MAX_AGE_S

    days = os.environ.get("NCCLT_CACHE_DAYS", "")
    if days and not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,5})?", days, re.ASCII):
        raise UsageError(f"NCCLT_CACHE_DAYS is {days!r}, which is not a number of days", hint="for example 7")
    return {"cache_dir": cache_folder() / "env", "max_age_s": float(days) * 86400 if days else MAX_AGE_S}


def api_key(environ: Mapping[str, str]) -> str | None:
    """Return the key of NCCLT_API_KEY, else the one in the file that NCCLT_API_KEY_FILE names; None = there is none.

    Raises:
        UsageError: the file cannot be read, or does not hold a key alone.
    """
    if (key := environ.get("NCCLT_API_KEY")) or not (name := environ.get("NCCLT_API_KEY_FILE")):
        return key or None
    try:
        # Opening a FIFO would wait for a writer.
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = file.read(_MOST_KEY_BYTES + 1) or b""
    except (OSError, ValueError) as error:
        raise UsageError(
            f"NCCLT_API_KEY_FILE {name!r} cannot be read: {reason(error)}", hint="name a file that holds the key alone"
        ) from error
    found = text.decode("latin-1").strip()
    if not re.fullmatch(rf"[!-~]{{1,{_MOST_KEY_BYTES}}}", found):
        raise UsageError(f"NCCLT_API_KEY_FILE {name!r} does not hold a key", hint="it holds the key alone, on one line")
    return found


def cache_folder() -> Path:
    """Return the folder of this user's cached answers and tables."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "ncclt"


def delivered_from_offer(offer: Offer, form: Form) -> Delivered:
    """Return what a job was given, for the attestation afterwards."""
    version = NcclVersion.parse(offer.nccl_version)
    variables = offer.table_variables if form is Form.TABLE else offer.variables
    return Delivered(
        recommendation=offer.recommendation,
        cluster=offer.cluster,
        model=offer.model,
        nccl_version=offer.nccl_version,
        nodes=offer.nodes,
        ranks=offer.ranks,
        form=form,
        policy=offer.rules if form is Form.TABLE else policy_of_variables(dict(variables), version),
        variables=variables,
    )
