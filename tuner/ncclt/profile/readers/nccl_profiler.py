"""Files of NVIDIA's example profiler plugin (plugins/profiler/example in NCCL 2.23 and later): JSON, a file per rank.

Each collective is a pair of events of category `COLL`, each send or receive one of category `P2P`, with element counts,
dtype, algorithm, protocol and channels (print_event.c there). They name neither the number of ranks nor a training
step. Their durations are those of the enqueued operation on the CPU, not of the transfer, and are not used.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message, parse_dtype
from ncclt.errors import InputError, TraceError
from ncclt.profile.nccl_calls import OPERATIONS, Choices
from ncclt.profile.numbers import parse_int
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.source import Document, lines, strip_mark

_MARK = re.compile(rb'"cat"\s*:\s*"(?:COLL|P2P)"')
_OF_GROUP = re.compile(rb'"CommHash"\s*:')


@dataclass(slots=True, kw_only=True)
class _Findings:
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
        found = _Findings(left_out=source.left_out)
        for document in source.documents():
            for row in _rows(document, found):
                _count(row, source.labels, found)
        choices, noted = Choices(), dict[str, None]()
        for (process, communicator, rank), counted in found.calls.items():
            # A process with several ranks of one communicator drives several GPUs.
            several = sum(key[:2] == (process, communicator) for key in found.calls) > 1
            for (word, dtype, elements, choice), count in counted.items():
                message = _message(word, dtype, elements, found.group_size(communicator), noted)
                if isinstance(message, str):
                    source.left_out[message] += count
                    continue
                is_share = not message.group_size and message.collective.has_rank_parts
                choices.add(message.collective, message.size_bytes, choice, count, per_rank=is_share)
                yield Call(
                    message=message,
                    lane=(process, rank if several else -1),
                    group=communicator,
                    count=count,
                    is_receive=word == "Recv",
                )
        source.detail["nccl_choices"] = choices.text()
        source.notes += ["the profiler records no transfer times", *noted]
        if found.cut:
            source.notes.append(f"{found.cut} files are cut off: the job ended before the profiler did")


def _rows(document: Document, found: _Findings) -> Iterator[Mapping[str, Any]]:
    """Yield the events; of a job that was killed the list lacks its end."""
    text = strip_mark(b"".join(lines(document)).rstrip())
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        rows = None
        if text.startswith(b"[") and _MARK.search(text):
            found.cut += 1
            try:
                rows = json.loads(text[: text.rindex(b"}") + 1] + b"]")
            except (ValueError, RecursionError):
                rows = None
    if not isinstance(rows, list):
        raise TraceError(
            f"{document.label} is damaged, or no file of NCCL's example profiler: it is not a JSON list",
            hint="copy the file again; it is written when the job ends",
        )
    yield from (row for row in rows if isinstance(row, Mapping))


def _count(row: Mapping[str, Any], labels: Sequence[str], found: _Findings) -> None:
    """Count the beginning of a call; where it ends does not matter."""
    if row.get("ph") != "b" or row.get("cat") not in ("COLL", "P2P"):
        return
    args = row.get("args")
    args = args if isinstance(args, Mapping) else {}
    rank, elements = parse_int(args.get("Rank")), parse_int(args.get("Count"))
    if rank is None or elements is None or "CommHash" not in args:
        found.left_out["event without rank, count or communicator"] += 1
        return
    communicator = str(args["CommHash"])
    number = len(labels)
    first = found.places.setdefault((communicator, rank), number)
    if first != number:
        raise TraceError(
            f"rank {rank} of communicator {communicator} is in {labels[first - 1]} and in {labels[number - 1]}",
            hint="give every file of one job once",
        )
    channels = parse_int(args.get("nChannels", args.get("nMaxChannels")))
    choice = "/".join(str(part)[:24] for part in (args.get("Algorithm"), args.get("Protocol"), channels) if part)
    kind = str(row.get("name"))[:48], str(args.get("Datatype"))[:48], elements, choice
    found.calls.setdefault((str(row.get("pid")), communicator, rank), Counter())[kind] += 1


def _message(word: str, spelled: str, elements: int, size: int, noted: dict[str, None]) -> Message | str:
    """Return the message of a call, or why there is none."""
    collective = OPERATIONS.get(word)
    if collective is None:
        return f"{word}, which ncclt does not support"
    try:
        dtype = parse_dtype(spelled)
    except InputError:
        return f"{word} of dtype {spelled!r}, of unknown size"
    if dtype == "int8" and collective in (Collective.ALL_GATHER, Collective.BROADCAST):
        noted["NCCL may count all_gather and broadcast in bytes: their int8 can be any dtype"] = None
    if not size:
        noted["not all ranks of a communicator were read: assuming a group of the whole job"] = None
        if collective.has_rank_parts:
            noted[f"{collective} sizes are one rank's share: the number of ranks is unknown"] = None
    size_bytes = elements * DTYPE_SIZES[dtype] * (max(1, size) if collective.has_rank_parts else 1)
    if not 0 < size_bytes <= MOST_BYTES:
        return f"{word} of {'0 bytes' if elements <= 0 else 'an impossible size'}"
    return Message(collective=collective, dtype=dtype, size_bytes=size_bytes, group_size=size)
