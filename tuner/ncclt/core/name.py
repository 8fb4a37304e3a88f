"""The names of new workloads and clusters."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from ncclt.errors import UsageError

NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
"""They are part of URLs and of commands to be copied. Earlier versions took any text."""

_EXAMPLES = {"workload": "bert-fsdp", "cluster": "hall-2.h100"}


def checked_name(
    name: str, option: str, *, kind: Literal["workload", "cluster"] = "workload", known: Collection[str] = ()
) -> str:
    """Return the name of a new workload or cluster.

    Args:
        name: as given.
        option: which gave it.
        kind: of what.
        known: names that are there already and may be kept, whatever they are.

    Raises:
        UsageError: it cannot be one.
    """
    if name not in known and not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(
            f"{option} {name[:250]!r} cannot name a {kind}",
            hint=f"up to 200 letters, digits, '.', '_' and '-', a letter or digit first; for example {_EXAMPLES[kind]}",
        )
    return name
