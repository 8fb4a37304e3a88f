"""A site's options for its pods, as written on a command line: `resource.rdma/hca=8`, `node.pool=h100`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ncclt.errors import UsageError

WORDS = (
    "resource.NAME=AMOUNT",
    "node.LABEL=VALUE",
    "label.NAME=VALUE",
    "service-account=NAME",
    "runtime=NAME",
    "ssh-port=N",
    "pending=S",
)
"""Every option, for help and errors."""

# Qualified names and values of Kubernetes: an optional DNS prefix, then 63 characters at most.
_NAME = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_AMOUNT = re.compile(r"\d{1,9}(?:\.\d{1,3})?(?:m|[kMGTPE]i?)?")
_OBJECT = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")

_TABLES = {"resource": ("resources", _AMOUNT), "node": ("node_selector", _VALUE), "label": ("labels", _VALUE)}
_NAMES = {"service-account": "service_account", "runtime": "runtime"}
_NUMBERS = {"ssh-port": ("ssh_port", 65535), "pending": ("pending_s", 86400)}


def site_options(words: Iterable[str]) -> dict[str, Any]:
    """Return the fields of `Site` for some options, and `pending_s`; a later option overrides an earlier one.

    Raises:
        UsageError: an option is not one of `WORDS`, or Kubernetes would not accept its value.
    """
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        table, dot, name = key.partition(".")
        if not equals:
            raise _unknown(word)
        if dot and table in _TABLES:
            argument, pattern = _TABLES[table]
            if not _NAME.fullmatch(name) or not pattern.fullmatch(value):
                raise _unknown(word)
            options[argument] = tuple(sorted({**dict(options.get(argument, ())), name: value}.items()))
        elif key in _NAMES and _OBJECT.fullmatch(value):
            options[_NAMES[key]] = value
        elif key in _NUMBERS and value.isascii() and value.isdigit() and 1 <= int(value) <= _NUMBERS[key][1]:
            options[_NUMBERS[key][0]] = int(value)
        else:
            raise _unknown(word)
    return options


def _unknown(word: str) -> UsageError:
    return UsageError(f"--kubernetes {word!r} is not a pod option", hint=f"one of {', '.join(WORDS)}")
