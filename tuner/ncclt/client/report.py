"""Report to an ncclt server what a job found: whether its recommendation took effect, and its step time.

Only the standard library, in the syntax of Python 3.8, as all of this folder; and only ClientError is raised.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

from .answer import one_line  # relative: the folder is also copied alone
from .fetch import WRONG_SERVER, ClientError, base_of, client_errors_only, get, host_of


def posting(url: str, document: Mapping[str, Any]) -> urllib.request.Request:
    """Return a request that sends a JSON object to an address of `base_of`."""
    body, headers = json.dumps(dict(document)).encode(), {"Content-Type": "application/json"}
    return urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 -- base_of


def _with_ticket(document: Mapping[str, Any], ticket: str) -> dict[str, Any]:
    """Return a report with the proof that its job started with an answer of this server, if there is one."""
    return {**document, "ticket": ticket} if ticket else dict(document)


@client_errors_only
def post_attestation(
    server: str, document: Mapping[str, Any], *, timeout_s: float = 5.0, api_key: str | None = None, ticket: str = ""
) -> None:
    """Report to a server whether its recommendation took effect in a job; idempotent.

    Raises:
        ClientError: the server did not keep it, with its own message if it sent one.
    """
    url = f"{base_of(server)}/v1/attestations"
    answer = json.loads(
        get(posting(url, _with_ticket(document, ticket)), None, api_key=api_key, timeout_s=timeout_s).text
    )
    # A redirect turns a POST into a GET, whose answer is another object.
    if answer.get("id") != document["id"]:
        raise ClientError(f"{host_of(url)} did not keep the attestation", hint=WRONG_SERVER)


@client_errors_only
def post_step_time(
    server: str, document: Mapping[str, Any], *, timeout_s: float = 5.0, api_key: str | None = None, ticket: str = ""
) -> dict[str, Any]:
    """Report the step time of a job of a roll-out, and return what all of them show so far; idempotent.

    Raises:
        ClientError: the server did not keep it, with its own message if it sent one.
    """
    request = posting(f"{base_of(server)}/v1/step-times", _with_ticket(document, ticket))
    answer = get(request, None, api_key=api_key, timeout_s=timeout_s)
    judged = json.loads(answer.text)
    if judged.get("rollout") != document["rollout"]:
        raise ClientError(f"{host_of(server)} did not keep the step time", hint=WRONG_SERVER)
    return {name: one_line(judged[name]) for name in ("rollout", "state", "reason")}
