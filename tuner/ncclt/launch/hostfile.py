"""Hosts by name, as people write them in a host file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ncclt.errors import InputError, UsageError, reason

_HOST = re.compile(
    r"(?:(?P<user>\w[\w.-]*)@)?(?:(?P<name>\w[\w.-]*)|\[(?P<ipv6>[\da-fA-F:.]+)\])(?::(?P<port>\d{1,5}))?"
)
"""Nothing that begins with `-`: ssh would take it for an option."""

_SLOTS = re.compile(r"slots=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine.

    Attributes:
        name: as the other machines know it.
        user, port: for ssh; empty and None = as ssh's own configuration says.
        slots: how many processes it takes; None = any number.
    """

    name: str
    user: str = ""
    port: int | None = None
    slots: int | None = None

    @property
    def label(self) -> str:
        """Return the host as `parse_host` reads it."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        user = f"{self.user}@" if self.user else ""
        return f"{user}{name}" + (f":{self.port}" if self.port else "")


def parse_host(text: str) -> Host:
    """Read `[user@]name[:port]`; an IPv6 address stands in brackets.

    Raises:
        UsageError: it is something else.
    """
    match = _HOST.fullmatch(text)
    if match is None or int(match["port"] or 1) not in range(1, 65536):
        raise UsageError(f"{text!r} is no host", hint="write [user@]name[:port], an IPv6 address in brackets")
    return Host(
        name=match["name"] or match["ipv6"],
        user=match["user"] or "",
        port=int(match["port"]) if match["port"] else None,
    )


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Read a file with one host on each line, `slots=N` behind it where somebody has written that, and # comments.

    Raises:
        InputError: it cannot be read, names no host, or one of them twice.
        UsageError: a line is something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the host file {path}: {reason(error)}", hint="one host on each line") from error
    hosts = tuple(_parse_line(words, path) for line in lines if (words := line.partition("#")[0].split()))
    if not hosts:
        raise InputError(f"the host file {path} names no host", hint="one host on each line")
    for index, host in enumerate(hosts):
        if any((host.name, host.port) == (other.name, other.port) for other in hosts[:index]):
            raise InputError(f"{path} names {host.name} twice", hint="one line for each host, and slots=N for its GPUs")
    return hosts


def _parse_line(words: list[str], path: Path) -> Host:
    host = parse_host(words[0])
    for word in words[1:]:
        slots = _SLOTS.fullmatch(word)
        if slots is None or int(slots[1]) < 1:
            raise UsageError(f"{path}: {word!r} is not known behind {words[0]}", hint="only slots=N is")
        host = Host(name=host.name, user=host.user, port=host.port, slots=int(slots[1]))
    return host
