"""Calls from Kineto's collective metadata, which torch writes since 2.2 or 2.3.

The same metadata stand on the `record_param_comms` operator and, copied by Kineto, on the kernels it launched; only
one of the two is ever counted. Keys: torch/csrc/profiler/util.h.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ncclt.core.message import Collective
from ncclt.profile.readers.kineto.calls import CallBook
from ncclt.profile.readers.kineto.job import KinetoJob, integer
from ncclt.profile.readers.kineto.names import Operation, classify
from ncclt.profile.readers.kineto.shapes import listed_elements
from ncclt.profile.readers.kineto.trace import Event

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
    """Return whether an event names a collective and its element counts."""
    return isinstance(event.args.get("Collective name"), str) and _elements(event.args, _IN_KEYS) is not None


def is_sized_collective(event: Event) -> bool:
    """Return whether an event's metadata are those of a collective rather than of waiting or a barrier."""
    return has_metadata(event) and classify(event.args["Collective name"]) is not None


def calls_from_metadata(
    events: Iterable[Event], job: KinetoJob, *, source: str, operators: Iterable[Event] = ()
) -> CallBook:
    """Read one call from each event that has metadata, of a coalesced one a call per tensor.

    Args:
        events: operators or kernels.
        job: the head of the trace.
        source: which of them, for the provenance.
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
    seen = tuple(events)
    keys = {key for event in seen for key in event.args}
    return next((f">={version}" for key, version in _SINCE if key in keys), "<=2.2" if seen else "")


def _add(book: CallBook, event: Event, job: KinetoJob, coalesced: Sequence[Event]) -> None:
    args = event.args
    operation = classify(args["Collective name"])
    assert operation is not None, "callers ask is_sized_collective first"
    group = str(args.get("Process Group Name", args.get("Process Group ID", "")))
    if job.bypasses_nccl(group):
        book.left_out[f"{operation.word} in a group that never reaches NCCL"] += 1
        return
    size = integer(args.get("Group size")) or (job.groups[group].size if group in job.groups else 0)
    if not size:
        size = job.assumed_group_size
        book.assume(f"the group of some calls is not named and taken to be {_ranks(size)}")
    into = _elements(args, _IN_KEYS) or 0
    out = _elements(args, _OUT_KEYS) or 0
    if into < 0 or out < 0:
        # torch 2.3 and 2.4 keep the count in a C int; only a single wrap can be recognised.
        into, out = (n + 2**32 if n < 0 else n for n in (into, out))
        book.assume("a count of elements overflowed 32 bits (torch before 2.5) and was taken to have wrapped once")
    parts = [_tuning_elements(operation, into, out)]
    if operation.word.endswith("coalesced"):
        parts = _tensors(operation, event, coalesced, whole=parts[0]) or parts
        if len(parts) == 1:
            book.assume(
                f"{operation.word} is recorded as one message, the sum of its tensors; NCCL gets one call per tensor"
            )
    for elements in parts:
        book.add(
            operation,
            event,
            dtype=str(args.get("dtype", "")),
            elements=elements,
            group_size=size,
            group=group,
            spans_nodes=job.spans_nodes(
                start=integer(args.get("Global rank start")), stride=integer(args.get("Global rank stride")), size=size
            ),
        )


def _tensors(operation: Operation, event: Event, coalesced: Sequence[Event], *, whole: int) -> list[int]:
    """Return the elements of each tensor of a coalesced call, by the operator around it; empty where it has none."""
    at = bisect_right(coalesced, event.start_us, key=lambda operator: operator.start_us) - 1
    around = coalesced[at] if at >= 0 else None
    if around is None or around.end_us < event.start_us or classify(around.name) != operation:
        return []
    lists = listed_elements(around)
    if not lists or len({len(one) for one in lists}) > 1:
        return []
    # Of inputs and outputs the larger side is the full buffer.
    tensors = [max(sizes) for sizes in zip(*lists, strict=True)]
    return tensors if sum(tensors) == whole else []


def _tuning_elements(operation: Operation, into: int, out: int) -> int:
    """Return the count behind `Message.size_bytes`.

    The larger side is the full buffer of all_gather (output) and reduce_scatter (input), and the message itself for
    the others. For all_to_all it is what this rank sends: with uneven splits the output belongs to the other ranks.
    """
    if operation.collective is Collective.ALL_TO_ALL:
        return into
    return max(into, out)


def _elements(args: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((integer(args[key]) for key in keys if key in args), None)


def _ranks(size: int) -> str:
    return f"all {size} ranks" if size else "the whole job"
