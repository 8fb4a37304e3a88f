"""Hosts by name: as written in a host file, and as granted by a resource manager."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ncclt.errors import InputError, UsageError, reason
from ncclt.launch.slurm.allocation import read_allocation

_LISTS = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")
"""Variables that name a file whose lines begin with a host; a host with several slots may appear several times."""

_HOST = re.compile(
    r"(?:(?P<user>\w[\w.-]*)@)?(?:(?P<name>\w[\w.-]*)|\[(?P<ipv6>[\da-fA-F:.]+)\])(?::(?P<port>\d{1,5}))?"
)
"""Never begins with `-`: ssh would read that as an option."""

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
    """Read `[user@]name[:port]`; an IPv6 address is in brackets.

    Raises:
        UsageError: the text has another form.
    """
    match = _HOST.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or (port is not None and port not in range(1, 65536)):
        raise UsageError(f"{text!r} is not a host", hint="write [user@]name[:port], an IPv6 address in brackets")
    return Host(name=match["name"] or match["ipv6"], user=match["user"] or "", port=port)


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Read a file with one host per line, each optionally followed by `slots=N`, and # comments.

    Raises:
        InputError: it cannot be read, names no host, or names one twice.
        UsageError: a line has another form.
    """
    hosts: list[Host] = []
    lines = _read_lines(path, f"the host file {path}", hint="one host on each line")
    for words in filter(None, (line.partition("#")[0].split() for line in lines)):
        host = parse_host(words[0])
        for word in words[1:]:
            slots = _SLOTS.fullmatch(word)
            if slots is None or int(slots[1]) < 1:
                raise UsageError(f"{path}: unknown word {word!r} after {words[0]}", hint="only slots=N is known")
            host = replace(host, slots=int(slots[1]))
        hosts.append(host)
    if not hosts:
        raise InputError(f"the host file {path} names no host", hint="one host on each line")
    for index, host in enumerate(hosts):
        if any((host.name, host.port) == (earlier.name, earlier.port) for earlier in hosts[:index]):
            raise InputError(f"{path} names {host.name} twice", hint="one line for each host, and slots=N for its GPUs")
    return tuple(hosts)


def granted_hosts(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the granted nodes, each once, in the manager's order; empty = none were granted.

    Sources: Altair PBS Professional and OpenPBS users' guide (PBS_NODEFILE), IBM Spectrum LSF reference
    (LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS), Grid Engine `submit(1)` (PE_HOSTFILE). Not tested under these managers.

    Args:
        environment: of this program, as in the job's script.

    Raises:
        InputError: the manager's list cannot be read.
        UsageError: Slurm's variables contradict each other.
    """
    if (allocation := read_allocation(environment)) is not None:
        return allocation.hosts
    for variable in _LISTS:
        if not (path := environment.get(variable)):
            continue
        hint = "name the nodes by --hosts, or run this on the first node of the job"
        lines = _read_lines(Path(path), f"{path}, the list of nodes that {variable} names", hint=hint)
        return tuple(dict.fromkeys(line.split()[0] for line in lines if line.split()))
    # Alternately a host and its slots; LSF does not set it where the list would be too long for a variable.
    return tuple(dict.fromkeys(environment.get("LSB_MCPU_HOSTS", "").split()[::2]))


def _read_lines(path: Path, label: str, *, hint: str) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {label}: {reason(error)}", hint=hint) from error
