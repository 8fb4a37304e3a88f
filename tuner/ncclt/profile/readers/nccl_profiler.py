"""Files of NVIDIA's example profiler plugin (plugins/profiler/example in NCCL 2.23 and later): JSON, a file per rank.

Each collective is a pair of events of category `COLL`, each send or receive one of category `P2P`, with element counts,
dtype, algorithm, protocol and channels (print_event.c there). They name neither the number of ranks nor a training
step. Their durations are those of the enqueued operation on the CPU, not of the transfer, and are not used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclt.core.message import Collective, Message
from ncclt.errors import TraceError
from ncclt.profile.nccl_calls import OPERATIONS, Choices, build_message
from ncclt.profile.numbers import as_mapping, parse_int
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.source import Document, lines, parse_json, strip_mark

_MARK = re.compile(rb'"cat"\s*:\s*"(?:COLL|P2P)"')
_OF_GROUP = re.compile(rb'"CommHash"\s*:')


@dataclass(slots=True, kw_only=True)
class _Events:
    """Content of the files.

    Attributes:
        places: (communicator, rank) -> number of the file that shows it, counted from 1.
        calls: (process, rank in its communicator) -> (communicator, operation, dtype, elements, choice) -> calls.
        left_out: reason -> events.
        cut: files that end before their last event.
    """

    places: dict[tuple[str, int], int] = field(default_factory=dict)
    calls: dict[tuple[str, str, int], Counter[tuple[str, str, int, str]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    cut: int = 0

    def group_size(self, communicator: str) -> int:
        """Return the ranks of a communicator, 0 where not all up to the largest rank were read."""
        ranks = {rank for comm, rank in self.places if comm == communicator}
        return len(ranks) if len(ranks) > 1 and max(ranks) + 1 == len(ranks) else 0


class NcclProfilerReader(Reader):
    """Reader of the files of the example profiler plugin."""

    name = "nccl_profiler"
    empty = "no event is a collective"
    hint = "record with NCCL_PROFILER_PLUGIN set to the example plugin and NCCL_PROFILE_EVENT_MASK=6 or more"

    def begins(self, beginning: bytes) -> bool:
        """Return True for a JSON list with the plugin's events."""
        text = strip_mark(beginning)
        return text.startswith(b"[") and _MARK.search(text) is not None and _OF_GROUP.search(text) is not None

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls of every GPU."""
        events = _Events(left_out=source.left_out)
        for document in source.documents():
            for row in _read_rows(document, events):
                _count_event(row, source.labels, events)
        choices, assumptions = Choices(), dict[str, None]()
        for (process, communicator, rank), counts in events.calls.items():
            # A process with several ranks of one communicator drives several GPUs.
            several_gpus = sum(key[:2] == (process, communicator) for key in events.calls) > 1
            group_size = events.group_size(communicator)
            for (word, dtype, elements, choice), count in counts.items():
                built = _build_message(word, dtype, elements, group_size, assumptions)
                lane, is_receive = (process, rank if several_gpus else -1), word == "Recv"
                for call in source.admit(built, count=count, lane=lane, group=communicator, is_receive=is_receive):
                    message = call.message
                    is_share = not group_size and message.collective.has_rank_parts
                    choices.add(message.collective, message.size_bytes, choice, count, per_rank=is_share)
                    yield call
        source.detail["nccl_choices"] = choices.text()
        source.notes += ["the profiler records no transfer times", *assumptions]
        if events.cut:
            source.notes.append(f"{events.cut} files are cut off: the job ended before the profiler did")


def _read_rows(document: Document, events: _Events) -> Iterator[Mapping[str, Any]]:
    """Yield the events; of a job that was killed the list lacks its end."""
    text = strip_mark(b"".join(lines(document)).rstrip())
    rows = parse_json(text)
    if rows is None and text.startswith(b"[") and _MARK.search(text):
        events.cut += 1
        rows = parse_json(text[: text.rfind(b"}") + 1] + b"]")
    if not isinstance(rows, list):
        raise TraceError(
            f"{document.label} is damaged, or no file of NCCL's example profiler: it is not a JSON list",
            hint="copy the file again; it is written when the job ends",
        )
    yield from (row for row in rows if isinstance(row, Mapping))


def _count_event(row: Mapping[str, Any], labels: Sequence[str], events: _Events) -> None:
    """Count the beginning of a call; where it ends does not matter."""
    if row.get("ph") != "b" or row.get("cat") not in ("COLL", "P2P"):
        return
    args = as_mapping(row.get("args"))
    rank, elements = parse_int(args.get("Rank")), parse_int(args.get("Count"))
    if rank is None or elements is None or "CommHash" not in args:
        events.left_out["event without rank, count or communicator"] += 1
        return
    communicator = str(args["CommHash"])
    number = len(labels)
    first = events.places.setdefault((communicator, rank), number)
    if first != number:
        raise TraceError(
            f"rank {rank} of communicator {communicator} is in {labels[first - 1]} and in {labels[number - 1]}",
            hint="give every file of one job once",
        )
    channels = parse_int(args.get("nChannels", args.get("nMaxChannels")))
    choice = "/".join(str(part)[:24] for part in (args.get("Algorithm"), args.get("Protocol"), channels) if part)
    kind = str(row.get("name"))[:48], str(args.get("Datatype"))[:48], elements, choice
    events.calls.setdefault((str(row.get("pid")), communicator, rank), Counter())[kind] += 1


def _build_message(word: str, dtype: str, elements: int, size: int, assumptions: dict[str, None]) -> Message | str:
    """Return the message of a call, or why there is none."""
    collective = OPERATIONS.get(word)
    parts = max(1, size) if collective is not None and collective.has_rank_parts else 1
    message = build_message(word, collective, elements * parts, dtype, group_size=size)
    if isinstance(message, Message):
        if message.dtype == "int8" and collective in (Collective.ALL_GATHER, Collective.BROADCAST):
            assumptions["NCCL may count all_gather and broadcast in bytes: their int8 can be any dtype"] = None
        if not size:
            assumptions["not all ranks of a communicator were read: assuming a group of the whole job"] = None
            if message.collective.has_rank_parts:
                assumptions[f"{collective} sizes are one rank's share: the number of ranks is unknown"] = None
    return message
