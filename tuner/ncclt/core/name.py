"""The names of new workloads and clusters."""

from __future__ import annotations

import re
from typing import Literal

from ncclt.errors import UsageError

NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
"""They are part of URLs and of commands to be copied."""

_EXAMPLES = {"workload": "bert-fsdp", "cluster": "hall-2.h100"}


def check_name(name: str, option: str, *, kind: Literal["workload", "cluster"] = "workload") -> str:
    """Return the name of a new workload or cluster.

    Raises:
        UsageError: it cannot be one.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(
            f"{option} {name[:250]!r} cannot name a {kind}",
            hint=f"up to 200 letters, digits, '.', '_' and '-', a letter or digit first; for example {_EXAMPLES[kind]}",
        )
    return name
