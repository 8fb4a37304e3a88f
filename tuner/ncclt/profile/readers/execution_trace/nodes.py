"""The nodes of an ExecutionTrace, whatever the schema: 1.0.1 is flat, 1.0.2 and later nest values, types and attrs.

Source of the layouts: torch/csrc/profiler/standalone/execution_trace_observer.cpp of torch 1.13 to 2.13. A tensor is
[tensor id, storage id, offset, elements, bytes per element, device] in all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclt.profile.readers.kineto.shapes import Tensor
from ncclt.profile.readers.param_comms.calls import MOST_RANKS, RecordedCall, counted

COMMS = "record_param_comms"

_GROUPS_NODE = "## process_group:init ##"
_TENSOR_FIELDS, _ELEMENTS = 6, 3
_TENSOR_TYPE = re.compile(r"Tensor\(([^()]{1,64})\)")
_DEEPEST_LIST = 4  # GenericList[GenericList[Tensor]] and one to spare


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceGroup:
    """A process group as the trace lists it; `ranks` is empty where it is the whole job."""

    size: int
    ranks: tuple[int, ...]
    backend: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommsNode:
    """One `record_param_comms` node.

    Attributes:
        call: its name is empty where it cannot be found; its position is the node's id. Ids grow in the order in which
            operators start.
        place: rank inside the group; the root of a rooted collective, the peer of a send or receive.
        start: first global rank of the group, None where unknown or not regular.
        stride: distance of its ranks, likewise.
        description: `default_pg` and the like.
    """

    call: RecordedCall
    place: int | None
    start: int | None
    stride: int | None
    description: str


def node_number(node: Mapping[str, Any]) -> int:
    """Return the id of a node, -1 where it has none."""
    number = counted(node.get("id"))
    return -1 if number is None else number


def parent_number(node: Mapping[str, Any]) -> int | None:
    """Return the id of the operator around a node."""
    return counted(node.get("ctrl_deps", node.get("parent")))


def comms_node(node: Mapping[str, Any]) -> CommsNode:
    """Read a `record_param_comms` node.

    Its values are [tensors, sequence, group, place, name, in split, out split, ...]; without tensors (waiting,
    barriers) the list begins at the sequence. Behind the splits stand nothing (1.0.1), the group's size (1.0.2), or
    first rank, stride, size and more.
    """
    values, attributes = _values(node, "inputs"), _attributes(node)
    at = next((place for place, value in enumerate(values) if isinstance(value, str)), len(values))
    name = attributes.get("collective_name", values[at] if at < len(values) else "")
    group, description = _group(values[at - 2] if 2 <= at < len(values) else None)
    tail = [counted(value, MOST_RANKS) for value in values[at + 3 :]]
    start, stride, told = tail[:3] if len(tail) >= 3 else (None, None, tail[0] if tail else None)
    named = attributes.get("pg_name")
    return CommsNode(
        call=RecordedCall(
            name=name if isinstance(name, str) else "",
            group=named if isinstance(named, str) and named else group,
            group_size=_group_size(told, attributes, values[at + 1 : at + 3]),
            inputs=_tensors(node, "inputs", values[: max(0, at - 3)]) or _counted(attributes, "in_msg_nelems"),
            outputs=_tensors(node, "outputs", _values(node, "outputs")) or _counted(attributes, "out_msg_nelems"),
            position=node_number(node),
        ),
        place=counted(values[at - 1], MOST_RANKS) if 1 <= at < len(values) else None,
        start=start,
        stride=stride,
        description=description,
    )


def groups_of(nodes: Iterable[Mapping[str, Any]]) -> dict[str, TraceGroup]:
    """Return the process groups that torch.profiler lists in a trace, by name and by number (schema 1.0.2)."""
    found: dict[str, TraceGroup] = {}
    for node in nodes:
        values = _values(node, "inputs") if node.get("name") == _GROUPS_NODE else []
        for row in _listed(values[0] if values else None):
            ranks = [counted(n, MOST_RANKS) for n in _list(row.get("ranks"))]
            size = counted(row.get("group_size"), MOST_RANKS) or len(ranks)
            group = TraceGroup(
                size=size,
                ranks=tuple(n for n in ranks if n is not None) if None not in ranks else (),
                backend=_text(row.get("backend_config")),
                description=_text(row.get("pg_desc")),
            )
            for key in (row.get("pg_name"), row.get("backend_id"), row.get("uid")):
                if isinstance(key, str) or counted(key, 2**64) is not None:
                    found[str(key)] = group
    return found


def _listed(text: object) -> list[Mapping[str, Any]]:
    """Return the rows of the list that is written as JSON inside the trace; PyTorch may have cut it."""
    if not isinstance(text, str):
        return []
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [row for row in _list(rows) if isinstance(row, Mapping)]


def _values(node: Mapping[str, Any], side: str) -> list[Any]:
    found = node.get(side)
    return _list(found.get("values") if isinstance(found, Mapping) else found)


def _types(node: Mapping[str, Any], side: str) -> list[Any]:
    found = node.get(side)
    return _list(found.get("types") if isinstance(found, Mapping) else node.get(f"{side[:-1]}_types"))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        row["name"]: row.get("value")
        for row in _list(node.get("attrs"))
        if isinstance(row, Mapping) and isinstance(row.get("name"), str)
    }


def _group(value: object) -> tuple[str, str]:
    """Return name and description: a pair of strings since 1.0.3, the address of the group before."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0], _text(value[1]) if len(value) > 1 else ""
    address = counted(value, 2**64)
    return (str(address) if address else ""), ""


def _group_size(told: int | None, attributes: Mapping[str, Any], splits: Sequence[Any]) -> int:
    known = told or counted(attributes.get("pg_size"), MOST_RANKS)
    if known:
        return known
    # An uneven all_to_all lists one number per rank.
    return next((len(split) for split in splits if isinstance(split, list) and split), 0)


def _tensors(node: Mapping[str, Any], side: str, values: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return all tensors of one side, whose dtype is in the type of the first value: `Tensor(float)`."""
    elements: list[int] = []
    waiting: list[tuple[Any, int]] = [(values, 0)]
    while waiting:
        value, depth = waiting.pop()
        if _is_tensor(value):
            elements.append(value[_ELEMENTS])
        elif isinstance(value, list) and depth < _DEEPEST_LIST:
            waiting.extend((inner, depth + 1) for inner in reversed(value))
    if any(counted(count) is None for count in elements):
        return ()
    spelled = next((m[1] for t in _types(node, side) if isinstance(t, str) and (m := _TENSOR_TYPE.search(t))), "")
    return tuple(Tensor(elements=count, dtype=spelled) for count in elements)


def _is_tensor(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == _TENSOR_FIELDS
        and isinstance(value[-1], str)
        and all(isinstance(n, int) for n in value[:-1])
    )


def _counted(attributes: Mapping[str, Any], key: str) -> tuple[Tensor, ...]:
    elements = counted(attributes.get(key))
    return () if elements is None else (Tensor(elements=elements, dtype=_text(attributes.get("dtype"))),)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
