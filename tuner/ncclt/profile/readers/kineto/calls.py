"""The calls of one rank's trace, from collective metadata or, for older traces and gloo, from recorded shapes.

Metadata: torch writes them since 2.2 or 2.3 (keys: torch/csrc/profiler/util.h). They stand on the `record_param_comms`
operator and, copied by Kineto, on the kernels it launched; only one of the two is ever counted.

Shapes: neither family is enough alone. A `c10d::` operator shows output and input and so the true group size, but lists
of tensors without their dtype, and in torch 2.0 to 2.2 without their shapes. The `nccl:` or `gloo:` annotation shows
the input alone, and gloo builds a reduce_scatter out of all_reduces and annotates those. So each operator that tells
all is counted and takes its annotations with it; the annotations that remain are counted for the others. The collective
that the program called wins over those by which its backend emulates it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclt.core.message import Collective, Message, parse_dtype
from ncclt.errors import InputError
from ncclt.profile.c10d import Operation, Tensor, classify
from ncclt.profile.numbers import as_list, parse_int
from ncclt.profile.readers.kineto.trace import Event, KinetoJob, RankTrace
from ncclt.profile.workload_builder import left_out_notes

OPERATORS = "metadata of record_param_comms"
KERNELS = "metadata of NCCL kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """One call of a collective by one rank.

    Attributes:
        message: what was sent.
        group: name of the process group, empty where the trace does not say.
        is_receive: the receiving half of a send_recv.
        event: the event that showed it.
    """

    message: Message
    group: str = ""
    is_receive: bool = False
    event: Event


@dataclass(slots=True, kw_only=True)
class CallBook:
    """Collects calls while a trace is read; a call that makes no message is counted by its reason instead.

    Attributes:
        source: which event family is read, for the provenance.
        calls: what was found.
        left_out: reason -> calls left out for it.
        assumptions: what was taken for granted, one sentence each.
    """

    source: str
    calls: list[TracedCall] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    assumptions: dict[str, None] = field(default_factory=dict)

    def add(self, operation: Operation, event: Event, message: Message | str, group: str = "") -> None:
        """Add a call, or the reason why it makes no message."""
        if isinstance(message, str):
            self.left_out[message] += 1
        else:
            self.calls.append(TracedCall(message=message, group=group, is_receive=operation.is_receive, event=event))

    def assume(self, sentence: str) -> None:
        """Note something taken for granted, once."""
        self.assumptions[sentence] = None

    def notes(self) -> tuple[str, ...]:
        """Return one sentence per assumption and per reason of leaving calls out."""
        return (*self.assumptions, *left_out_notes(self.left_out))


# Both key spellings count elements, not bytes: the older one is of torch 2.2 alone.
_IN_KEYS = ("In msg nelems", "In msg size")
_OUT_KEYS = ("Out msg nelems", "Out msg size")

# First torch release that writes a key, newest first (torch/csrc/profiler/util.h of the releases).
_SINCE = (
    ("Comms Id", "2.13"),
    ("Seq", "2.12"),
    ("Input Tensors start", "2.6"),
    ("Rank", "2.5"),
    ("Process Group Name", "2.4"),
    ("In msg nelems", "2.3"),
    ("In msg size", "2.2"),
)


def has_metadata(event: Event) -> bool:
    """Return True if an event names a collective and its element counts."""
    return isinstance(event.args.get("Collective name"), str) and _elements(event.args, _IN_KEYS) is not None


def is_sized_collective(event: Event) -> bool:
    """Return True if an event's metadata are those of a collective rather than of waiting or a barrier."""
    return has_metadata(event) and classify(event.args["Collective name"]) is not None


def read_calls(trace: RankTrace) -> CallBook:
    """Read the calls of one event family: the first of the three that has sizes."""
    comms = [event for event in trace.comms if not trace.in_barrier(event)]
    if any(is_sized_collective(event) for event in comms):
        return calls_from_metadata(comms, trace.job, source=OPERATORS, operators=trace.operators)
    if any(is_sized_collective(event) for event in trace.kernels):
        return calls_from_metadata(trace.kernels, trace.job, source=KERNELS)
    return calls_from_shapes(trace)


def calls_from_metadata(
    events: Iterable[Event], job: KinetoJob, *, source: str, operators: Iterable[Event] = ()
) -> CallBook:
    """Read one call from each event that has metadata, of a coalesced one a call per tensor.

    Args:
        operators: `c10d::` operators, in order of time; those around coalesced calls show the sizes of their tensors.
    """
    book = CallBook(source=source)
    coalesced: dict[str, list[Event]] = {}
    for operator in operators:
        if operator.name.rstrip("_").endswith("coalesced"):
            coalesced.setdefault(operator.thread, []).append(operator)
    for event in events:
        if is_sized_collective(event):
            _add(book, event, job, coalesced.get(event.thread, ()))
        elif (operation := classify(str(event.args.get("Collective name", "wait")))) is not None:
            book.left_out[f"{operation.word} without a size"] += 1
    return book


def torch_version_hint(events: Iterable[Event]) -> str:
    """Return the oldest torch that writes such metadata, like `>=2.5`; empty where there is nothing to judge by.

    A trace itself names no version.
    """
    comms = tuple(events)
    keys = {key for event in comms for key in event.args}
    return next((f">={version}" for key, version in _SINCE if key in keys), "<=2.2" if comms else "")


def _add(book: CallBook, event: Event, job: KinetoJob, coalesced: Sequence[Event]) -> None:
    args = event.args
    operation = classify(args["Collective name"])
    assert operation is not None, "callers ask is_sized_collective first"
    group = str(args.get("Process Group Name", args.get("Process Group ID", "")))
    if job.bypasses_nccl(group):
        book.left_out[f"{operation.word} in a group that bypasses NCCL"] += 1
        return
    size = parse_int(args.get("Group size")) or (job.groups[group].size if group in job.groups else 0)
    if not size:
        size = job.assumed_group_size
        book.assume(f"some calls do not name their group: assuming {f'all {size} ranks' if size else 'the whole job'}")
    into = _elements(args, _IN_KEYS) or 0
    out = _elements(args, _OUT_KEYS) or 0
    if into < 0 or out < 0:
        # torch 2.3 and 2.4 keep the count in a C int; only a single wrap can be recognised.
        into, out = (n + 2**32 if n < 0 else n for n in (into, out))
        book.assume("a count of elements overflowed 32 bits (torch before 2.5): assuming that it wrapped once")
    # The larger side is the full buffer of all_gather (output) and reduce_scatter (input), and the message itself for
    # the others; for all_to_all, whose uneven outputs belong to the other ranks, it is what this rank sends.
    parts = [into if operation.collective is Collective.ALL_TO_ALL else max(into, out)]
    if operation.word.endswith("coalesced"):
        parts = _split_coalesced(operation, event, coalesced, total=parts[0]) or parts
        if len(parts) == 1:
            book.assume(
                f"{operation.word} is recorded as one message, the sum of its tensors; NCCL gets one call per tensor"
            )
    start, stride = parse_int(args.get("Global rank start")), parse_int(args.get("Global rank stride"))
    spans_nodes = job.spans_nodes(start=start, stride=stride, size=size)
    for elements in parts:
        dtype = str(args.get("dtype", ""))
        book.add(operation, event, operation.message(dtype, elements, group_size=size, spans_nodes=spans_nodes), group)


def _split_coalesced(operation: Operation, event: Event, coalesced: Sequence[Event], *, total: int) -> list[int]:
    """Return the elements of each tensor of a coalesced call, by the operator around it; empty where it has none."""
    at = bisect_right(coalesced, event.start_us, key=lambda operator: operator.start_us) - 1
    around = coalesced[at] if at >= 0 else None
    if around is None or around.end_us < event.start_us or classify(around.name) != operation:
        return []
    lists = listed_elements(around)
    if not lists or len(set(map(len, lists))) > 1:
        return []
    # Of inputs and outputs the larger side is the full buffer.
    tensors = [max(sizes) for sizes in zip(*lists, strict=True)]
    return tensors if sum(tensors) == total else []


def _elements(args: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((parse_int(args[key], least=-(2**63)) for key in keys if key in args), None)


_Key = tuple[Collective | None, Tensor]
"""Collective and input, which an operator and its annotation have in common."""

# Where each operator with plain tensors keeps output and input (torch/csrc/distributed/c10d/Ops.cpp).
_OUTPUT, _INPUT = 0, 1
_PLAIN_OPERATORS = frozenset({"allgatherbase", "reducescatterbase", "alltoallbase"})


def calls_from_shapes(trace: RankTrace) -> CallBook:
    """Read the calls of a trace without metadata; needs a recording with `record_shapes=True`."""
    book = CallBook(source="operators and annotations with input shapes")
    annotations = [e for e in trace.annotations if classify(e.name) is not None and not trace.in_barrier(e)]
    nccl = [event for event in annotations if event.name.startswith("nccl:")]
    others = [event for event in annotations if not event.name.startswith("nccl:")]
    backends = ", ".join(sorted({event.name.split(":", 1)[0] for event in others}))
    if nccl and others:
        book.left_out[f"collective over {backends}, which bypasses NCCL"] += len(others)
    elif others:
        book.assume(f"recorded over {backends}: NCCL would get the same messages")
    pool = _Pool(nccl or others)
    elsewhere = _Pool(others if nccl else [])
    emulated = elsewhere if nccl else pool
    is_native = emulated.holds(Collective.REDUCE_SCATTER)
    operators = [
        event
        for event in trace.operators
        if is_native or not _count_emulated(book, event, trace, emulated, is_counted=not nccl)
    ]
    for event in operators:
        _count_operator(book, event, trace, pool, elsewhere)
    for event in pool.remaining():
        _count_annotation(book, event, trace)
    annotated = {operation.collective for event in annotations if (operation := classify(event.name))}
    for event in operators:
        # Operators without shapes of their own that no annotation shows either.
        operation = classify(event.name)
        if operation is None or operation.collective in annotated or trace.in_barrier(event):
            continue
        if operation.word not in _PLAIN_OPERATORS or len(recorded_tensors(event)) != 2:
            book.left_out[_without_shapes(operation)] += 1
    return book


def _without_shapes(operation: Operation) -> str:
    return f"{operation.word} without shapes (record with record_shapes=True)"


class _Pool:
    """Annotations not yet explained by an operator."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._waiting: dict[_Key, deque[Event]] = defaultdict(deque)
        self._alone: list[Event] = []
        for event in events:
            operation, tensors = classify(event.name), recorded_tensors(event)
            if operation is not None and len(tensors) == 1:
                self._waiting[operation.collective, tensors[0]].append(event)
            else:
                self._alone.append(event)

    def take(self, key: _Key) -> bool:
        """Remove the first annotation of this kind; return False if there was none."""
        annotations = self._waiting.get(key)
        return bool(annotations and annotations.popleft())

    def take_closest(self, event: Event, collective: Collective, elements: int) -> str:
        """Remove the annotation of so many elements that began closest to an event; return its dtype, empty if none."""
        keys = [key for key, waiting in self._waiting.items() if waiting and key[0] is collective]
        keys = [key for key in keys if key[1].elements == elements]
        closest = min(keys, key=lambda key: abs(self._waiting[key][0].start_us - event.start_us), default=None)
        return closest[1].dtype if closest is not None and self.take(closest) else ""

    def holds(self, collective: Collective) -> bool:
        """Return True if annotations of a collective wait."""
        return any(waiting and key[0] is collective for key, waiting in self._waiting.items())

    def remaining(self) -> list[Event]:
        """Return the remaining annotations, in order of time."""
        annotations = [*self._alone, *(event for waiting in self._waiting.values() for event in waiting)]
        return sorted(annotations, key=lambda event: event.start_us)


def _count_operator(book: CallBook, event: Event, trace: RankTrace, pool: _Pool, elsewhere: _Pool) -> None:
    operation, tensors = classify(event.name), recorded_tensors(event)
    if operation is None or operation.word not in _PLAIN_OPERATORS or len(tensors) != 2 or trace.in_barrier(event):
        return
    keys = [(operation.collective, tensors[_INPUT])]
    if operation.collective is Collective.REDUCE_SCATTER:
        # ProcessGroupGloo emulates reduce_scatter by an all_reduce of the whole input.
        keys.append((Collective.ALL_REDUCE, tensors[_INPUT]))
    annotated_here = any(pool.take(key) for key in keys)
    if not annotated_here and any(elsewhere.take(key) for key in keys):
        return
    out, into = tensors[_OUTPUT].elements, tensors[_INPUT].elements
    elements, size = max(out, into), max(out, into) // max(1, min(out, into))
    if operation.collective is Collective.ALL_TO_ALL:
        elements, size = into, _assumed_size(book, trace)
    book.add(operation, event, operation.message(tensors[_INPUT].dtype, elements, group_size=size))


def _count_emulated(book: CallBook, event: Event, trace: RankTrace, pool: _Pool, *, is_counted: bool) -> bool:
    """Count a reduce_scatter of lists, which gloo makes of one all_reduce per tensor; return whether those are there.

    Lists have no dtype: the all_reduces tell it.
    """
    operation = classify(event.name)
    lists = listed_elements(event)
    if operation is None or operation.collective is not Collective.REDUCE_SCATTER or not lists:
        return False
    if operation.word == "reducescatter":
        # A list of outputs, one per call, from as many inputs as there are ranks.
        size = _assumed_size(book, trace)
        parts = [(elements, size, max(1, size)) for elements in lists[0]]
    elif len(lists) == 2 and len(lists[0]) == len(lists[1]):
        parts = [(into, into // max(1, out), 1) for out, into in zip(*lists, strict=True)]
    else:
        return False
    is_emulated = False
    for elements, size, pieces in parts:
        dtypes = [pool.take_closest(event, Collective.ALL_REDUCE, elements) for _ in range(pieces)]
        is_emulated = is_emulated or bool(dtypes[0])
        if is_counted and dtypes[0]:
            book.add(operation, event, operation.message(dtypes[0], elements * pieces, group_size=size))
    return is_emulated


def _count_annotation(book: CallBook, event: Event, trace: RankTrace) -> None:
    operation, tensors = classify(event.name), recorded_tensors(event)
    assert operation is not None, "the pool holds no waiting or barriers"
    if not tensors:
        book.left_out[_without_shapes(operation)] += 1
        return
    size = _assumed_size(book, trace)
    if operation.collective is Collective.ALL_TO_ALL:
        # A list of tensors, one per receiver: together they are this rank's send buffer.
        tensors = (Tensor(elements=sum(t.elements for t in tensors), dtype=tensors[0].dtype),)
    is_share = operation.collective is Collective.ALL_GATHER
    if is_share and not size:
        book.assume("all_gather sizes are one rank's share: the number of ranks is unknown")
    for tensor in tensors:
        elements = tensor.elements * (max(1, size) if is_share else 1)
        book.add(operation, event, operation.message(tensor.dtype, elements, group_size=size))


def _assumed_size(book: CallBook, trace: RankTrace) -> int:
    size = trace.job.assumed_group_size
    if not size:
        book.assume("the trace has no world size: assuming groups of the whole job")
    elif len({group.size for group in trace.job.groups.values()}) != 1:
        book.assume(f"the trace does not name the group of most calls: assuming all {size} ranks")
    return size


def recorded_tensors(event: Event) -> tuple[Tensor, ...]:
    """Return the tensors among an event's recorded inputs whose shape and dtype are both there.

    A list of tensors has no dtype of its own and is not returned; an empty shape with a dtype is a scalar tensor.
    """
    shapes, dtypes = as_list(event.args.get("Input Dims")), as_list(event.args.get("Input type"))
    return tuple(
        Tensor(elements=math.prod(shape), dtype=dtype)
        for shape, dtype in zip(shapes, dtypes, strict=False)
        if _is_shape(shape) and isinstance(dtype, str) and _is_dtype(dtype)
    )


def listed_elements(event: Event) -> list[list[int]]:
    """Return the elements of each list of tensors among an event's recorded inputs, without lists of lists."""
    lists = filter(None, map(as_list, as_list(event.args.get("Input Dims"))))
    return [[math.prod(shape) for shape in item] for item in lists if all(map(_is_shape, item))]


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)


def _is_dtype(text: str) -> bool:
    """Return True if a recorded input type is a tensor's; "Scalar", "ScalarList", "TensorList" and "" are not."""
    if text.startswith("c10::"):
        return True
    try:
        parse_dtype(text)
    except InputError:
        return False
    return True
