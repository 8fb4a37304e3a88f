"""The training steps that an ExecutionTrace marks, and the calls in them.

Nodes have no times. Their ids grow in the order in which operators start, on all threads together, and a node is
written when its operator ends: a `ProfilerStep#N` that is there was seen from start to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclt.profile.readers.execution_trace.nodes import COMMS, node_number, parent_number
from ncclt.profile.readers.param_comms.calls import SentCall

_STEP = "ProfilerStep#"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSteps:
    """The calls of complete steps; `count` is 0 and all calls are there where no step is marked."""

    calls: tuple[SentCall, ...]
    count: int
    notes: tuple[str, ...] = ()


def calls_in_steps(calls: Sequence[SentCall], nodes: Sequence[Mapping[str, Any]]) -> TraceSteps:
    """Keep the calls inside complete steps; what lies between two of them belongs to the first."""
    everything = tuple(calls)
    starts = sorted(node_number(node) for node in nodes if _is_step(node))
    if not starts:
        return TraceSteps(calls=everything, count=0)
    inside = tuple(c for c in everything if starts[0] < c.position < _end(starts[-1], nodes))
    if not inside:
        return TraceSteps(calls=everything, count=0, notes=("no collective lies inside the marked steps",))
    if len(starts) > 1 and inside[-1].position < starts[-1]:
        # `prof.step()` opens the next step at once; a loop that ends there leaves an empty one.
        starts.pop()
    dropped = len(everything) - len(inside)
    notes = (f"left out: {dropped} of {len(everything)} calls, outside complete steps",) if dropped else ()
    return TraceSteps(calls=inside, count=len(starts), notes=notes)


def inside_barriers(nodes: Sequence[Mapping[str, Any]], barriers: set[int]) -> set[int]:
    """Return the ids of the `record_param_comms` nodes below one of `barriers`: an older barrier is an all-reduce."""
    if not barriers:
        return set()
    parents = {node_number(node): parent_number(node) for node in nodes}
    below: dict[int, bool] = {}
    for node in nodes:
        if node.get("name") == COMMS:
            _climb(node_number(node), parents, barriers, below)
    return {number for number, is_below in below.items() if is_below}


def _climb(number: int, parents: Mapping[int, int | None], barriers: set[int], below: dict[int, bool]) -> None:
    """Find out about a node and all on its way up, each once in the whole file, however the parents are linked."""
    path: list[int] = []
    at: int | None = number
    while at is not None and at not in below:
        below[at] = False  # a circle of parents ends here
        path.append(at)
        at = parents.get(at)
        if at in barriers:
            break
    found = at is not None and (at in barriers or below[at])
    below.update(dict.fromkeys(path, found))


def _end(last_step: int, nodes: Sequence[Mapping[str, Any]]) -> float:
    """Return where the last complete step ends: at the first operator behind it that never ended itself.

    Only its children show such an operator, by a parent that is not in the file; it is the step that was cut off.
    """
    there = {node_number(node) for node in nodes}
    cut = (parent for node in nodes if (parent := parent_number(node)) is not None and parent not in there)
    return min((number for number in cut if number > last_step), default=float("inf"))


def _is_step(node: Mapping[str, Any]) -> bool:
    name = node.get("name")
    return isinstance(name, str) and name.startswith(_STEP)
