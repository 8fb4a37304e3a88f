"""Changes of another NCCL version: variables, NCCL's defaults, and published policies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy
from ncclt.core.printed_costs import PrintedCosts
from ncclt.errors import MissingDependencyError, SettingError, UsageError
from ncclt.nccl.compile import TUNER_API_SINCE, compile_policy
from ncclt.nccl.cost_model.model import Choice, TableChoice, find_table, nccl_choice, predict_choice
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.nccl.parameters import CATALOGUE

LADDER = tuple(1 << n for n in range(10, 31))
"""Sizes at which NCCL's choices are compared: 1 KiB to 1 GiB."""

MEANINGS: tuple[tuple[str, str, str], ...] = (
    ("NCCL_ALGO", "2.24", "a list per collective; an algorithm that a collective lacks makes its calls fail"),
    ("NCCL_PROTO", "2.24", "a list per collective"),
    ("NCCL_ALGO", "2.31", "collectives that it does not name have no algorithm at all"),
    ("NCCL_PROTO", "2.31", "collectives that it does not name have no protocol at all"),
    ("NCCL_MAX_NCHANNELS", "2.25", "up to 64 channels; before, 32"),
    ("NCCL_MAX_CTAS", "2.25", "up to 64 channels; before, 32"),
    ("NCCL_IB_SPLIT_DATA_ON_QPS", "2.20", "0 by default; before, 1"),
    ("NCCL_DEBUG_SUBSYS", "2.24", "INIT,BOOTSTRAP,ENV by default; before, INIT,ENV"),
)
"""(variable, first version, what is new): NVIDIA/nccl src/graph/tuning.cc (lists), src/include/device.h (MAXCHANNELS),
src/transport/net_ib.cc, src/debug.cc of these releases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableChange:
    """A variable that the two versions treat differently.

    Attributes:
        variable: its name.
        change: `gone`, `new`, `deprecated` or `meaning`.
        note: what to know.
    """

    variable: str
    change: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceChange:
    """Sizes for which NCCL itself would choose otherwise.

    Attributes:
        collective: of the calls.
        min_bytes, max_bytes: first and last size of `LADDER` in a row.
        before, after: `ring/simple` and the like; `none` where it has nothing.
    """

    collective: Collective
    min_bytes: int
    max_bytes: int
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """Change of a policy under the new version.

    Attributes:
        refused: why the new version cannot have it; empty = it can.
        variables_differ: plain variables would be other ones.
        table_lost: the new version cannot load a tuner table.
    """

    refused: str = ""
    variables_differ: bool = False
    table_lost: bool = False


@cache
def known_variables() -> Mapping[str, str]:
    """Return each variable that some release asks for, with the releases read: `2.16.2..2.19.3`, `2.31.2..`.

    Raises:
        MissingDependencyError: the file did not come with this installation.
    """
    return _versions()["variables"]  # type: ignore[no-any-return]


@cache
def _versions() -> dict[str, Any]:
    package = Path(__file__).resolve().parent
    # pyproject.toml force-includes it beside this file; an editable install has only the repository.
    for file in (package / "versions.json", package.parents[2] / "docs" / "reference" / "nccl-versions.json"):
        if file.is_file():
            versions: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return versions
    raise MissingDependencyError("the list of NCCL's variables is missing here", hint="install ncclt from its wheel")


def newest_read() -> NcclVersion:
    """Return the newest release whose variables are known."""
    return max(map(NcclVersion.parse, _versions()["wheels"]))


def variable_changes(old: NcclVersion, new: NcclVersion) -> tuple[VariableChange, ...]:
    """Return the variables that vanish, appear, are replaced or change meaning on the way from one version to another.

    Raises:
        UsageError: one of them is older than every release that was read.
    """
    oldest = min(map(NcclVersion.parse, _versions()["wheels"]))
    if min(old, new) < oldest:
        raise UsageError(f"NCCL {min(old, new)} is unknown", hint=f"supported: {oldest} to {newest_read()}")
    low, high = sorted((old, new))
    changes = [
        *(
            VariableChange(variable=name, change="gone" if _reads(span, old) else "new")
            for name, span in known_variables().items()
            if _reads(span, old) != _reads(span, new)
        ),
        *(
            VariableChange(variable=row.variable, change="deprecated", note=row.note)
            for row in CATALOGUE
            if row.is_deprecated_in(high) and not row.is_deprecated_in(low)
        ),
        *(
            VariableChange(variable=name, change="meaning", note=f"since {since}: {note}")
            for name, since, note in MEANINGS
            if low < NcclVersion.parse(since) <= high
        ),
    ]
    order = ("gone", "meaning", "deprecated", "new")
    return tuple(sorted(changes, key=lambda change: (order.index(change.change), change.variable)))


def _reads(span: str, version: NcclVersion) -> bool:
    """Return True if a version is in `A..B`, `A..` (to the newest) or `A`."""
    first, dots, last = span.partition("..")
    return NcclVersion.parse(first) <= version and (
        bool(dots and not last) or version <= NcclVersion.parse(last or first)
    )


def choice(message: Message, cluster: Cluster, costs: PrintedCosts | None = None) -> str:
    """Return NCCL's choice for a message: `ring/simple`; `none` where it has nothing.

    Args:
        cluster: the whole job, with its NCCL version.
        costs: the tables that this version printed there; None = by the port of the cost model.
    """
    graph = build_topology(cluster, message.group_size, message.spans_nodes)
    table = find_table(costs, message, cluster) if costs is not None else None
    chosen: TableChoice | Choice | None = (
        predict_choice(table, message.collective, message.size_bytes, graph)
        if table is not None
        else nccl_choice(message.collective, message.size_bytes, graph)
    )
    return f"{chosen.algorithm}/{chosen.protocol}" if chosen else "none"


def choice_changes(
    collectives: Iterable[Collective],
    before: Cluster,
    after: Cluster,
    costs: tuple[PrintedCosts | None, PrintedCosts | None] = (None, None),
) -> tuple[ChoiceChange, ...]:
    """Return the sizes of `LADDER` for which NCCL itself would choose otherwise, equal neighbours joined.

    Args:
        costs: tables that the versions printed there; None = by the port of the cost model.
    """
    changes = []
    for collective in collectives:
        messages = [Message(collective=collective, dtype="float32", size_bytes=size_bytes) for size_bytes in LADDER]
        pairs = [(m.size_bytes, choice(m, before, costs[0]), choice(m, after, costs[1])) for m in messages]
        for (old, new), rows in groupby(pairs, key=lambda pair: pair[1:]):
            sizes = [size_bytes for size_bytes, *_ in rows]
            if old != new:
                changes.append(
                    ChoiceChange(collective=collective, min_bytes=sizes[0], max_bytes=sizes[-1], before=old, after=new)
                )
    return tuple(changes)


def policy_change(
    policy: Policy, old: NcclVersion, new: NcclVersion, collectives: Iterable[Collective]
) -> PolicyChange:
    """Return the change of a policy under the new version."""
    collectives = frozenset(collectives)
    try:
        after = compile_policy(policy, version=new, collectives=collectives)
    except SettingError as error:
        return PolicyChange(refused=error.message)
    before = compile_policy(policy, version=old, collectives=collectives)
    return PolicyChange(
        variables_differ=before.variables != after.variables,
        table_lost=bool(policy.rules) and new < TUNER_API_SINCE <= old,
    )
