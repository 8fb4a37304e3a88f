"""Tickets: the signed proof that a job asked for its configuration, which its reports carry back.

A ticket is opaque to clients: `PAYLOAD.SIGNATURE`, both base64url, of at most `MOST_TICKET` characters.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import astuple, dataclass

from ncclt.core.duration import format_duration
from ncclt.core.rollout import MOST_JOB_NAME, Variant
from ncclt.errors import InputError

TICKET_LIFE_S = 14 * 86400.0
"""Seconds from the start of a job to its last report: longer than the time limit of most clusters' queues."""

MOST_TICKET = 1000
"""Max characters of a ticket."""

TICKET_PATTERN = rf"[A-Za-z0-9._~-]{{1,{MOST_TICKET}}}"

_MOST_NAME_BYTES = 120
"""Longer names are shortened to this in a ticket, with a hash of the whole name at their end."""

_HINT = "send back the `ticket` of the answer that the job started with"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Content of a ticket.

    Attributes:
        job, cluster, model: names as of `shorten_name`.
        nodes, gpus_per_node, nccl_version: shape of the job.
        recommendation: id of the revision that the job was given; empty = none.
        variant: of the roll-out.
        rollout: id of the roll-out; empty = none.
        running: numbers of its arms that were served then.
        issued_s, expires_s: Unix times.
    """

    job: str
    cluster: str
    model: str
    nodes: int
    gpus_per_node: int
    nccl_version: str
    recommendation: str
    variant: Variant
    rollout: str
    running: tuple[int, ...]
    issued_s: float
    expires_s: float

    @property
    def id(self) -> str:
        """Return a hash of the content."""
        return hashlib.sha256(_payload(self)).hexdigest()[:32]

    def require_job(self, job: str) -> None:
        """Raise InputError unless this is the ticket of a job."""
        if self.job != shorten_name(job):
            raise InputError("the ticket is another job's", hint=_HINT)

    def require_time_for(self, *, steps: int, step_us: float, now_s: float) -> None:
        """Raise InputError unless the steps fit into the time since the ticket was issued."""
        needed_s, passed_s = steps * step_us / 1e6, now_s - self.issued_s
        if needed_s > passed_s:
            raise InputError(
                f"{steps} steps of {format_duration(step_us)} take {needed_s:.3g} s, and the job started "
                f"{max(passed_s, 0.0):.3g} s ago",
                hint="report measured steps, at the end of the job",
            )


def is_job_name(name: str) -> bool:
    """Return True if a text can be the name of a job."""
    return 0 < len(name) <= MOST_JOB_NAME and name.isprintable() and bool(name.strip())


def shorten_name(name: str) -> str:
    """Return a name of bounded length, distinct where names are."""
    encoded = name.encode("utf-8", "surrogatepass")
    if len(encoded) <= _MOST_NAME_BYTES:
        return name
    return f"{encoded[: _MOST_NAME_BYTES - 33].decode(errors='ignore')}~{hashlib.sha256(encoded).hexdigest()[:32]}"


def sign_ticket(ticket: Ticket, secret: str) -> str:
    """Return a ticket as text."""
    payload = _payload(ticket)
    return f"{_encode(payload)}.{_encode(_signature(payload, secret))}"


def read_ticket(text: str, secret: str, *, now_s: float) -> Ticket:
    """Read a ticket.

    Args:
        text: as `sign_ticket` wrote it.
        now_s: Unix time.

    Raises:
        InputError: no ticket, another store's, or expired.
    """
    if not text:
        raise InputError("a report needs the ticket of its job", hint=_HINT)
    try:
        payload, signature = (
            base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True) for part in text.split(".")
        )
    except ValueError as error:
        raise InputError("this is not a ticket of ncclt", hint=_HINT) from error
    if not hmac.compare_digest(signature, _signature(payload, secret)):
        raise InputError("the ticket was not issued by this store", hint=_HINT)
    names = Ticket.__slots__
    values = dict(zip(names, json.loads(payload), strict=True))
    ticket = Ticket(**{**values, "variant": Variant(values["variant"]), "running": tuple(values["running"])})
    if now_s > ticket.expires_s:
        raise InputError(
            f"the ticket expired {(now_s - ticket.expires_s) / 3600:.3g} hours ago",
            hint=f"a job reports within {TICKET_LIFE_S / 86400:g} days of its start",
        )
    return ticket


def _payload(ticket: Ticket) -> bytes:
    return json.dumps(astuple(ticket), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _signature(payload: bytes, secret: str) -> bytes:
    return hmac.new(secret.encode(), payload, hashlib.sha256).digest()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
