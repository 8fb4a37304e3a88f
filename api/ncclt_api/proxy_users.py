"""Users whom a proxy such as oauth2-proxy has signed in: headers name them, and are believed from its address alone."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ncclt.core.api_key import ApiKey, Role
from ncclt.errors import UsageError

NAMES = ("x-forwarded-email", "x-forwarded-user")
"""Headers that name a user, the first one that is there."""

GROUPS = "x-forwarded-groups"

EVERY_USER = "*"
"""Stands for a group that every user is in."""

_PEER = "ncclt.peer"
_NAME = re.compile(r"[!-~]{1,200}")
_MOST_STRANGERS = 64
"""Addresses that are logged; more would let strangers fill the log."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlan:
    """Whose headers are believed, and what users may do.

    Attributes:
        proxies: networks of the proxies.
        roles: by group; `EVERY_USER` = of all users.
    """

    proxies: tuple[_Network, ...]
    roles: Mapping[str, Role]


def proxy_plan(proxies: Sequence[str], roles: Sequence[str]) -> ProxyPlan | None:
    """Return the plan that options describe, `GROUP=ROLE` for each role; None without a proxy.

    Raises:
        UsageError: an address or a role is invalid, or every address would be believed.
    """
    if not proxies:
        if roles:
            raise UsageError("--user-role needs --trust-user-header", hint="name the address of the proxy")
        return None
    try:
        networks = tuple(ipaddress.ip_network(address) for address in proxies)
    except ValueError as error:
        raise UsageError(f"--trust-user-header: {error}", hint="give the address of the proxy") from error
    if any(network.prefixlen == 0 for network in networks):
        raise UsageError("--trust-user-header must not name every address", hint="give that of the proxy alone")
    by_group: dict[str, Role] = {}
    for text in roles:
        group, _, role = text.rpartition("=")
        if not group or role not in tuple(Role):
            hint = f"a role is one of {', '.join(Role)}; * is every user"
            raise UsageError(f"--user-role is GROUP=ROLE, not {text!r}", hint=hint)
        by_group[group] = Role(role)
    if not by_group:
        hint = "'*=read' lets every user of the proxy read"
        raise UsageError("--trust-user-header needs --user-role GROUP=ROLE", hint=hint)
    return ProxyPlan(proxies=networks, roles=by_group)


def note_peer(app: ASGIApp) -> ASGIApp:
    """Note the address of the socket's other end before `X-Forwarded-For` takes its place.

    uvicorn is started with proxy_headers=False, since what it wraps an application in leaves no trace of the peer.
    """
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1")  # as uvicorn has it
    forwarded: Any = ProxyHeadersMiddleware(app, trusted_hosts=trusted)  # type: ignore[arg-type]

    async def noted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[_PEER] = (scope.get("client") or ("",))[0]
        await forwarded(scope, receive, send)

    return noted


class ProxyUsers:
    """Finds the user of a request.

    Args:
        plan: whose headers are believed.
        log: structlog's; None = nothing is logged.
    """

    def __init__(self, plan: ProxyPlan, *, log: Any = None) -> None:
        self._plan = plan
        self._log = log
        self._strangers: set[str] = set()

    def user(self, scope: Scope) -> ApiKey | None:
        """Return the user of a request as a key that is not stored; None without a user or a role.

        The headers of another address than the proxies', or more than one name, are ignored.
        """
        headers = Headers(scope=scope)
        name = next((name for name in NAMES if name in headers), None)
        if name is None:
            return None
        peer = str(scope.get(_PEER, ""))  # empty where `note_peer` never saw the socket: nothing is believed
        if not self._is_proxy(peer):
            if self._log is not None and peer not in self._strangers and len(self._strangers) < _MOST_STRANGERS:
                self._strangers.add(peer)
                self._log.warning("header of a user ignored", peer=peer, hint="--trust-user-header does not name it")
            return None
        values = headers.getlist(name)
        if len(values) != 1 or not _NAME.fullmatch(values[0]):
            return None
        groups = {group.strip() for line in headers.getlist(GROUPS) for group in line.split(",")} - {""}
        roles = [role for group, role in self._plan.roles.items() if group == EVERY_USER or group in groups]
        best = max(roles, key=tuple(Role).index, default=None)
        return ApiKey(id=f"user {values[0]}", role=best) if best else None

    def _is_proxy(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:  # a Unix socket
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self._plan.proxies)
