"""Web hooks: what happens to recommendations and tuning jobs, posted to addresses that the operator names.

The history of the store is the queue: a publication writes nothing else and waits for no receiver. Each address
gets its events one at a time and in order, at least once, with the headers of Standard Webhooks
(standardwebhooks.com). Replicas share the position of each address in the store.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import ipaddress
import json
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ncclt.core.life import Action
from ncclt.errors import StoreError, UsageError, hide_passwords, reason
from ncclt.store.hooks import MOST_WAIT_S, DueEvent
from ncclt.store.store import Store
from ncclt_api.text import readable

EVENTS = {
    Action.PUBLISHED: "recommendation.published",
    Action.STALE: "recommendation.stale",
    Action.ROLLED_BACK: "recommendation.rolled_back",
    Action.ROLL_OUT_LOST: "recommendation.rolled_back",
    Action.JOB_FAILED: "job.failed",
}
"""What is posted, by the entry of the history that it is made from."""

FIRST_WAIT_S = 5.0
"""Before the second attempt; doubled each time, up to an hour."""

GIVE_UP_S = 3 * 86400.0
"""After which an event is given up, and the next one is posted."""

DELIVERED, FAILED, GIVEN_UP = "delivered", "failed", "given_up"
"""How an attempt ended; after `GIVEN_UP` the event is lost to the receiver."""

_POLL_S = 1.0
_MOST_BUGS = 100
_MOST_REST_S = 300.0
"""Longest rest of an address after an error of ours."""
_TIMEOUT_S = 10.0
_HELD_S = 60.0
"""Longer than an attempt takes: meanwhile no other replica posts the event."""

_PREFIX = "whsec_"
_LEAST_KEY, _MOST_KEY = 24, 64
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPlan:
    """Where events are posted.

    Attributes:
        urls: of the receivers; may hold a secret, so only their hosts are shown.
        key: that signs, 24 to 64 bytes.
        allowed: networks beside the public Internet in which a receiver may be.
    """

    urls: tuple[str, ...]
    key: bytes = field(repr=False)
    allowed: tuple[_Network, ...] = ()


def hook_plan(urls: Sequence[str], *, secret_file: str, allow: Sequence[str] = ()) -> HookPlan | None:
    """Return the plan that options describe; None without a URL.

    Raises:
        UsageError: an address is invalid or in a network that is not allowed, or the secret cannot be used.
    """
    if not urls:
        return None
    if not secret_file:
        raise UsageError("web hooks need --hook-secret-file", hint=_MAKE_SECRET)
    try:
        allowed = tuple(ipaddress.ip_network(one) for one in allow)
    except ValueError as error:
        raise UsageError(f"--hook-allow: {error}", hint="write a network as 10.1.0.0/16") from error
    plan = HookPlan(urls=tuple(dict.fromkeys(urls)), key=_read_key(Path(secret_file)), allowed=allowed)
    for url in plan.urls:
        _check(url, plan)
    return plan


_MAKE_SECRET = "`echo whsec_$(openssl rand -base64 32) > FILE` makes one; the receiver needs it too"  # noqa: S105


def _read_key(path: Path) -> bytes:
    try:
        text = path.read_text(encoding="ascii").strip()
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except OSError as error:
        raise UsageError(f"the secret of the web hooks cannot be read: {reason(error)}", hint=_MAKE_SECRET) from error
    except (UnicodeDecodeError, binascii.Error):  # its text is in these errors
        raise UsageError(f"{path} holds no secret for web hooks", hint=_MAKE_SECRET) from None
    if not text.startswith(_PREFIX) or not _LEAST_KEY <= len(key) <= _MOST_KEY:
        raise UsageError(
            f"{path} must hold {_PREFIX} and {_LEAST_KEY} to {_MOST_KEY} bytes in base64", hint=_MAKE_SECRET
        )
    return key


def _check(url: str, plan: HookPlan) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, valid = None, False
    if parts is None or not valid or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError("--hook needs an http or https address", hint="write it as https://host/path")
    if "@" in parts.netloc or parts.fragment:
        raise UsageError(f"--hook takes no user name and no fragment: {parts.hostname}")
    try:
        literal = ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return  # a name, which is looked up before each attempt
    if not _is_allowed(literal, plan.allowed):
        raise UsageError(
            f"--hook may not post to {literal}, which is not on the public Internet",
            hint=f"--hook-allow {literal} permits it",
        )


def _is_allowed(address: _Address, allowed: Sequence[_Network]) -> bool:
    """Return whether an address may be posted to: of the public Internet, or in a network that was named."""
    if any(address in network for network in allowed):
        return True
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return _is_allowed(inner, allowed)
        if address in _NAT64:
            return _is_allowed(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF), allowed)
    return address.is_global and not address.is_multicast


def signature(key: bytes, id: str, time_s: int, body: bytes) -> str:
    """Return `webhook-signature` of Standard Webhooks: HMAC-SHA256 of `id.time.body`, in base64 behind `v1,`."""
    made = hmac.new(key, f"{id}.{time_s}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(made).decode()}"


class WebHooks:
    """Posts what the history gains, from a thread of its own; `stop` ends it.

    Args:
        plan: where to.
        store: returns the store.
        log: structlog's; None = nothing is logged.
        count: receives host and result of each attempt; None = nothing is counted.
        public_url: address of the service, for links; empty = none.
        poll_s: how often the history is looked at.
        first_wait_s: before the second attempt.
    """

    def __init__(
        self,
        plan: HookPlan,
        *,
        store: Callable[[], Store],
        log: Any = None,
        count: Callable[[str, str], None] | None = None,
        public_url: str = "",
        poll_s: float = _POLL_S,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._plan = plan
        self._store = store
        self._log = log
        self._count = count or (lambda _host, _result: None)
        self._public_url = public_url
        self._poll_s = poll_s
        self._first_wait_s = first_wait_s
        self._stopped = threading.Event()
        self._failing = ""
        self._bugs: set[str] = set()
        self._rests: dict[str, tuple[float, float]] = {}
        self._thread = threading.Thread(target=self._run, name="ncclt-hooks", daemon=True)

    def start(self) -> None:
        """Begin to post."""
        self._thread.start()

    def stop(self) -> None:
        """End after the attempt that runs."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            received = [self._look(url) for url in self._plan.urls]
            if not any(received):
                self._stopped.wait(self._poll_s)

    def _look(self, url: str) -> bool:
        """Post the next event of an address, whatever fails; return whether it was received."""
        rest_s, until_s = self._rests.get(url, (0.0, 0.0))
        if time.monotonic() < until_s:
            return False
        try:
            posted = self._post_next(url)
        except StoreError as error:  # the next look may succeed
            if error.message != self._failing:
                self._tell("warning", "web hooks wait for the store", cause=error.message)
            self._failing = error.message
            return False
        except Exception as error:  # noqa: BLE001 - no error may end the deliveries
            rest_s = min(max(2 * rest_s, self._first_wait_s), _MOST_REST_S)
            self._rests[url] = (rest_s, time.monotonic() + rest_s)
            self._tell_bug(url, error)
            self._count(host_of(url), FAILED)
            return False
        self._failing = ""
        self._rests.pop(url, None)
        return posted

    def _post_next(self, url: str) -> bool:
        """Post the next event of an address, if one is due; return whether it was received."""
        hook, host = hook_id(url), host_of(url)
        due = self._store().take_hook_event(hook, tuple(EVENTS), held_s=_HELD_S)
        if due is None:
            return False
        kind = EVENTS[due.event.action]
        said = {"host": host, "type": kind, "number": due.event.number, "attempt": due.attempts + 1}
        failure = self._attempt(url, kind, due)
        if not failure:
            self._count(host, DELIVERED)
            self._store().end_hook_event(hook, due.event.number)
            self._tell("info", "web hook", **said)
            return True
        self._count(host, FAILED)
        if due.since_s and time.time() - due.since_s >= GIVE_UP_S:
            self._store().end_hook_event(hook, due.event.number)
            self._count(host, GIVEN_UP)
            self._tell("error", "web hook given up", cause=failure, **said)
            return False
        wait_s = min(self._first_wait_s * 2.0 ** min(due.attempts, 20), MOST_WAIT_S)
        self._store().delay_hook_event(hook, due, wait_s=wait_s)
        self._tell("warning", "web hook failed", cause=failure, again_in_s=wait_s, **said)
        return False

    def _attempt(self, url: str, kind: str, due: DueEvent) -> str:
        """Post an event; return why that failed, empty where the receiver has it."""
        try:
            body = json.dumps(self._message(kind, due)).encode()
            id, time_s = _id_of(due), int(time.time())
            headers = {
                "Host": urlsplit(url).netloc, "Content-Type": "application/json", "User-Agent": "ncclt",
                "webhook-id": id, "webhook-timestamp": str(time_s),
                "webhook-signature": signature(self._plan.key, id, time_s, body),
            }  # fmt: skip
            status = _post(url, headers, body, self._plan.allowed)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return f"{type(error).__name__}: {reason(error)}"[:200]
        except Exception as error:  # noqa: BLE001 - a failure like others: the event is given up some day
            self._tell_bug(url, error)
            return f"{type(error).__name__}: {error}"[:200]
        return "" if 200 <= status < 300 else f"answered {status}"  # a redirect is not followed

    def _message(self, kind: str, due: DueEvent) -> Any:
        event = due.event
        data = {
            "cluster": event.cluster, "model": event.model, "recommendation": event.recommendation,
            "action": event.action.value, "who": event.who, "why": event.why, "number": event.number,
        }  # fmt: skip
        if self._public_url and event.recommendation:
            data["url"] = f"{self._public_url}/recommendations/{event.recommendation}"
        return readable({"type": kind, "timestamp": event.created, "data": data})

    def _tell_bug(self, url: str, error: Exception) -> None:
        """Log an unexpected error, with its traceback the first time."""
        cause = hide_passwords(f"{type(error).__name__}: {error}")[:200]
        if cause not in self._bugs and len(self._bugs) < _MOST_BUGS:
            self._bugs.add(cause)
            trace = hide_passwords("".join(traceback.format_exception(error)))
            self._tell("error", "web hooks met a bug of ncclt; they go on", host=host_of(url), cause=cause, trace=trace)

    def _tell(self, level: str, event: str, **facts: Any) -> None:
        if self._log is not None:
            getattr(self._log, level)(event, **facts)


def hook_id(url: str) -> str:
    """Return under which id the store keeps how far an address is; the address may hold a secret."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def host_of(url: str) -> str:
    """Return what logs and figures show of an address."""
    return urlsplit(url).hostname or ""


def _id_of(due: DueEvent) -> str:
    """Return an id that is the same in each attempt, whichever replica makes it, and differs between stores."""
    one = due.event
    said = json.dumps([one.number, one.created, one.cluster, one.model, one.recommendation, one.action.value, one.why])
    return f"msg_{hashlib.sha256(said.encode()).hexdigest()[:32]}"


def _post(url: str, headers: dict[str, str], body: bytes, allowed: Sequence[_Network]) -> int:
    """Post to an address and return the status.

    The name is looked up once, and the connection made to an address that was checked: between two look-ups its owner
    could replace it by one of this network.

    Raises:
        OSError: the receiver cannot be reached, or may not be posted to.
        http.client.HTTPException: it does not answer in HTTP.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    connection.sock = _connected(host, port, allowed)
    try:
        if parts.scheme == "https":
            connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=host)
        connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def _connected(host: str, port: int, allowed: Sequence[_Network]) -> socket.socket:
    found = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    for address in sorted(found):
        if not _is_allowed(ipaddress.ip_address(address), allowed):
            raise PermissionError(f"{host} is {address}, which --hook-allow does not name")
    failure: OSError = OSError(f"{host} has no address")
    for address in sorted(found):
        try:
            return socket.create_connection((address, port), timeout=_TIMEOUT_S)
        except OSError as error:
            failure = error
    raise failure
