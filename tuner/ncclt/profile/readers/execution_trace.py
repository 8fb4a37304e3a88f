"""PyTorch ExecutionTrace (Chakra host trace) JSON, schema 1.0.1 to 1.1.1, one document per rank.

Only `record_param_comms` nodes are read: the `c10d::` and `nccl:` nodes beside them show the same calls again. They
hold tensors with their element counts in every schema. A trace over gloo has none of them and is refused, and so is
Chakra's `workload_graph` JSON, whose communication nodes have no sizes.

Layouts: torch/csrc/profiler/standalone/execution_trace_observer.cpp of torch 1.13 to 2.13. Schema 1.0.1 is flat, 1.0.2
and later nest values, types and attrs. A tensor is [tensor id, storage id, offset, elements, bytes per element, device]
in all of them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from ncclt.errors import TraceError
from ncclt.profile.c10d import (
    MOST_ELEMENTS,
    ProcessGroup,
    RecordedCall,
    SentCall,
    Tensor,
    classify,
    convert_calls,
    count_messages,
    is_barrier,
    parse_ranks,
    shown,
)
from ncclt.profile.numbers import MOST_RANKS, as_list, as_mapping, as_text, parse_int
from ncclt.profile.rank_files import RankFileReader, RankReading
from ncclt.profile.source import Document, load_json, parse_json, strip_mark
from ncclt.profile.steps import MARK, OPTIMIZER, Step, TimeRange, divide_into_steps
from ncclt.profile.workload_builder import drop_answered_receives, newer_notes, parse_day

NEWEST = "1.1.1"
"""Schema of torch 2.5 and later, the newest that is known here."""

_GRAPH = "workload_graph"
_COMMUNICATION_NODE = 7  # COMM_COLL_NODE of Chakra's et_def.proto

# Of these the recorded place is the root or the peer, not the rank's own.
_ROOTED = frozenset({"broadcast", "broadcastoop", "reduce", "reduceoop", "send", "recv", "gather", "scatter"})


class ExecutionTraceReader(RankFileReader):
    """Reader of PyTorch ExecutionTraces."""

    name = "execution_trace"
    starts = b"{"

    def begins(self, beginning: bytes) -> bool:
        """Return True for an ExecutionTrace or a Chakra workload graph."""
        text = strip_mark(beginning)
        if not text.startswith(b"{"):
            return False
        if b'"workload_graph"' in text and b'"NodeType"' in text:
            return True
        return b'"schema"' in text and b'"nodes"' in text and (b'"rf_id"' in text or b'"start_ts"' in text)

    def read_rank(self, document: Document) -> RankReading:
        """Read the trace of one rank.

        Raises:
            TraceError: damaged, no trace, or without collectives that have a size.
        """
        trace, label = load_json(document), document.label
        if not isinstance(as_mapping(trace).get("nodes"), list):
            raise _no_trace(trace, label)
        rows = [node for node in trace["nodes"] if isinstance(node, Mapping)]
        comms = _sized(rows)
        if not comms:
            raise _no_calls(rows, label)
        groups = read_groups(rows)
        is_over_nccl = any("nccl" in group.backend for group in groups.values())
        bypassing = {name for name, g in groups.items() if is_over_nccl and g.backend and "nccl" not in g.backend}
        recorded = [
            replace(c, group_size=c.group_size or groups[c.group].size) if c.group in groups else c
            for c in (node.call for node in comms)
            if c.group not in bypassing
        ]
        sent, call_notes, group_sizes = convert_calls(recorded)
        calls = drop_answered_receives(sent)
        steps, notes = _divide(calls, rows)
        if elsewhere := len(comms) - len(recorded):
            notes.insert(0, f"left out: {elsewhere} x call in a group that bypasses NCCL")
        newer = newer_notes([str(trace.get("schema", ""))[:40]], NEWEST)
        return RankReading(
            label=label,
            rank=_find_rank(comms, groups),
            world_size=_world_size(comms, groups, group_sizes),
            calls=count_messages([call for step in steps for call in step.calls] if steps else calls),
            steps=len(steps),
            marks=frozenset(number for step in steps for number in step.marks),
            recorded_on=parse_day(trace.get("time")),
            facts={"schema": shown(as_text(trace.get("schema")))},
            notes=(*newer, "an ExecutionTrace has no durations", *notes, *call_notes),
        )


def _sized(rows: Sequence[Mapping[str, Any]]) -> list[CommsNode]:
    """Return the calls in the order of their start, without waiting, set-up, and barriers with what is inside them."""
    comms = [read_node(row) for row in rows if row.get("name") == COMMS]
    barriers = {node.call.position for node in comms if is_barrier(node.call.name)}
    within = _find_below(rows, barriers)  # an older barrier is an all-reduce
    return sorted(
        (n for n in comms if n.call.position not in within and n.call.name and classify(n.call.name) is not None),
        key=lambda n: n.call.position,
    )


def _find_rank(comms: Sequence[CommsNode], groups: Mapping[str, ProcessGroup]) -> int | None:
    """Return the global rank, from the places inside the groups; None where they do not show it or disagree."""
    only_group = len({node.call.group for node in comms}) == 1
    ranks: set[int] = set()
    for node in comms:
        place, group, operation = node.place, groups.get(node.call.group), classify(node.call.name)
        if place is None or operation is None or operation.word in _ROOTED:
            continue
        if group is not None and group.ranks:
            ranks.update(group.ranks[place : place + 1])
        elif group is not None:
            ranks.add(place)  # a listed group without ranks is the whole job
        elif node.start is not None and node.stride:
            ranks.add(node.start + node.stride * place)
        elif only_group:
            ranks.add(place)  # the one group of a training job is the whole job
    return ranks.pop() if len(ranks) == 1 else None


def _world_size(comms: Sequence[CommsNode], groups: Mapping[str, ProcessGroup], sizes: Mapping[str, int]) -> int:
    """Return the size of the default group, or of the only one; 0 if the whole job's is not known."""
    listed = [g.size for name, g in groups.items() if not g.ranks or g.description == "default_pg" or name == "0"]
    if listed:
        return max(listed)
    default = {sizes.get(node.call.group, 0) for node in comms if node.description == "default_pg"}
    names = {node.call.group for node in comms}
    return max(default or ({sizes.get(names.pop(), 0)} if len(names) == 1 else {0}))


def _no_trace(trace: object, label: str) -> TraceError:
    graph = as_mapping(trace).get(_GRAPH)
    if isinstance(graph, list):
        count = sum(isinstance(row, Mapping) and row.get("NodeType") == _COMMUNICATION_NODE for row in graph)
        what = f"a Chakra workload graph in JSON has {count} communication nodes here, and none of them has a size"
        hint = "import the PyTorch ExecutionTrace that the graph was converted from"
        return TraceError(f"no message sizes in {label}: {what}", hint=hint)
    hint = "record one with torch.profiler's ExecutionTraceObserver"
    return TraceError(f"{label} is not an ExecutionTrace: it has no list `nodes`", hint=hint)


def _no_calls(rows: Sequence[Mapping[str, Any]], label: str) -> TraceError:
    """Say that nothing was found, and what the likely reason is."""
    gloo = sum(isinstance(row.get("name"), str) and row["name"].startswith("gloo:") for row in rows)
    if gloo:
        lacks = "for which an ExecutionTrace has no record_param_comms nodes and so no process groups"
        hint = "record over NCCL, or import the Kineto trace of the same run"
        return TraceError(f"no collectives in {label}: it was recorded over gloo ({gloo} calls), {lacks}", hint=hint)
    return TraceError(
        f"no collectives in {label}: none of its {len(rows)} nodes is a record_param_comms with a collective",
        hint="record steps of the distributed run itself",
    )


def _divide(calls: Sequence[SentCall], nodes: Sequence[Mapping[str, Any]]) -> tuple[list[Step[SentCall]], list[str]]:
    """Find the optimizer steps and the calls in them; calls between two marks belong to the first.

    Nodes have no times. Their ids grow in the order in which operators start, on all threads together, and a node is
    written when its operator ends: so a `ProfilerStep#N` in the file was recorded from start to end.
    """
    starts = sorted((node_number(node), int(m[1])) for node in nodes if (m := MARK.match(str(node.get("name")))))
    ends = [*(start for start, _number in starts[1:]), *(_end(start, nodes) for start, _number in starts[-1:])]
    marks = [TimeRange(start=s, end=end - 1, number=n) for (s, n), end in zip(starts, ends, strict=True)]
    if len(marks) > 1 and not any(marks[-1].start < call.record.position <= marks[-1].end for call in calls):
        # `prof.step()` opens the next step at once; a loop that ends there leaves an empty one.
        marks.pop()
    optimizers = {node_number(node): str(node["name"]) for node in nodes if OPTIMIZER.match(str(node.get("name")))}
    inside = sorted([*_find_below(nodes, set(optimizers)), *optimizers])
    begins = sorted(optimizers)
    runs = [
        # Half an id behind the last one: what the optimizer itself sends is of the step that it ends.
        TimeRange(start=begin, end=inside[bisect_left(inside, following) - 1] + 0.5, name=optimizers[begin])
        for begin, following in zip(begins, [*begins[1:], inf], strict=False)
    ]
    return divide_into_steps(calls, lambda call: call.record.position, marks, runs)


def _find_below(nodes: Sequence[Mapping[str, Any]], tops: set[int]) -> set[int]:
    """Return the ids of the nodes below one of `tops`; each is climbed from once, however the parents are linked."""
    parents = {node_number(node): parent_number(node) for node in nodes} if tops else {}
    below: dict[int, bool] = {}
    for number in parents:
        path: list[int] = []
        at: int | None = number
        while at is not None and at not in below:
            below[at] = False  # a circle of parents ends here
            path.append(at)
            at = parents.get(at)
            if at in tops:
                break
        below.update(dict.fromkeys(path, at is not None and (at in tops or below[at])))
    return {number for number, is_below in below.items() if is_below}


def _end(last_step: int, nodes: Sequence[Mapping[str, Any]]) -> float:
    """Return the end of the last complete step: the first operator behind it that never ended itself.

    Only its children show such an operator, by a parent that is not in the file; it is the step that was cut off.
    """
    numbers = {node_number(node) for node in nodes}
    cut = (parent for node in nodes if (parent := parent_number(node)) is not None and parent not in numbers)
    return min((number for number in cut if number > last_step), default=inf)


COMMS = "record_param_comms"

_GROUPS_NODE = "## process_group:init ##"
_TENSOR_FIELDS, _ELEMENTS = 6, 3
_TENSOR_TYPE = re.compile(r"Tensor\(([^()]{1,64})\)")
_DEEPEST_LIST = 4  # GenericList[GenericList[Tensor]] and one to spare


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
    number = parse_int(node.get("id"))
    return -1 if number is None else number


def parent_number(node: Mapping[str, Any]) -> int | None:
    """Return the id of the operator around a node."""
    return parse_int(node.get("ctrl_deps", node.get("parent")))


def read_node(node: Mapping[str, Any]) -> CommsNode:
    """Read a `record_param_comms` node.

    Its values are [tensors, sequence, group, place, name, in split, out split, ...]; without tensors (waiting,
    barriers) the list begins at the sequence. Behind the splits stand nothing (1.0.1), the group's size (1.0.2), or
    first rank, stride, size and more.
    """
    values = _values(node, "inputs")
    attributes = {as_text(row.get("name")): row.get("value") for row in map(as_mapping, as_list(node.get("attrs")))}
    at = next((place for place, value in enumerate(values) if isinstance(value, str)), len(values))
    name = attributes.get("collective_name", values[at] if at < len(values) else "")
    group, description = _group(values[at - 2] if 2 <= at < len(values) else None)
    tail = [parse_int(value, most=MOST_RANKS) for value in values[at + 3 :]]
    start, stride, size = tail[:3] if len(tail) >= 3 else (None, None, tail[0] if tail else None)
    named = attributes.get("pg_name")
    # An uneven all_to_all lists one number per rank.
    split_sizes = (len(split) for split in values[at + 1 : at + 3] if isinstance(split, list) and split)
    return CommsNode(
        call=RecordedCall(
            name=name if isinstance(name, str) else "",
            group=named if isinstance(named, str) and named else group,
            group_size=size or parse_int(attributes.get("pg_size"), most=MOST_RANKS) or next(split_sizes, 0),
            inputs=_tensors(node, "inputs", values[: max(0, at - 3)]) or _counted(attributes, "in_msg_nelems"),
            outputs=_tensors(node, "outputs", _values(node, "outputs")) or _counted(attributes, "out_msg_nelems"),
            position=node_number(node),
        ),
        place=parse_int(values[at - 1], most=MOST_RANKS) if 1 <= at < len(values) else None,
        start=start,
        stride=stride,
        description=description,
    )


def read_groups(nodes: Iterable[Mapping[str, Any]]) -> dict[str, ProcessGroup]:
    """Return the process groups that torch.profiler lists in a trace, by name and by number (schema 1.0.2)."""
    groups: dict[str, ProcessGroup] = {}
    for node in nodes:
        values = _values(node, "inputs") if node.get("name") == _GROUPS_NODE else []
        # PyTorch writes the list as JSON inside the trace, and may have cut it.
        rows = parse_json(values[0]) if values and isinstance(values[0], str) else []
        for row in (row for row in as_list(rows) if isinstance(row, Mapping)):
            group = ProcessGroup(
                size=parse_int(row.get("group_size"), most=MOST_RANKS) or len(as_list(row.get("ranks"))),
                ranks=parse_ranks(row.get("ranks")),
                backend=as_text(row.get("backend_config")),
                description=as_text(row.get("pg_desc")),
            )
            for key in (row.get("pg_name"), row.get("backend_id"), row.get("uid")):
                if isinstance(key, str) or parse_int(key, most=2**64) is not None:
                    groups[str(key)] = group
    return groups


def _values(node: Mapping[str, Any], side: str) -> list[Any]:
    return as_list(as_mapping(node.get(side)).get("values", node.get(side)))


def _types(node: Mapping[str, Any], side: str) -> list[Any]:
    return as_list(as_mapping(node.get(side)).get("types", node.get(f"{side[:-1]}_types")))


def _group(value: object) -> tuple[str, str]:
    """Return name and description: a pair of strings since 1.0.3, the address of the group before."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0], as_text(value[1]) if len(value) > 1 else ""
    address = parse_int(value, most=2**64)
    return (str(address) if address else ""), ""


def _tensors(node: Mapping[str, Any], side: str, values: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return all tensors of one side, whose dtype is in the type of the first value: `Tensor(float)`."""
    elements: list[int] = []
    pending: list[tuple[Any, int]] = [(values, 0)]
    while pending:
        value, depth = pending.pop()
        if _is_tensor(value):
            elements.append(value[_ELEMENTS])
        elif isinstance(value, list) and depth < _DEEPEST_LIST:
            pending.extend((inner, depth + 1) for inner in reversed(value))
    if any(parse_int(count, most=MOST_ELEMENTS) is None for count in elements):
        return ()
    dtype = next((m[1] for t in _types(node, side) if isinstance(t, str) and (m := _TENSOR_TYPE.search(t))), "")
    return tuple(Tensor(elements=count, dtype=dtype) for count in elements)


def _is_tensor(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == _TENSOR_FIELDS
        and isinstance(value[-1], str)
        and all(isinstance(n, int) for n in value[:-1])
    )


def _counted(attributes: Mapping[str, Any], key: str) -> tuple[Tensor, ...]:
    elements = parse_int(attributes.get(key), most=MOST_ELEMENTS)
    return () if elements is None else (Tensor(elements=elements, dtype=as_text(attributes.get("dtype"))),)
