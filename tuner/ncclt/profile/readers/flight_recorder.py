"""PyTorch Flight Recorder dumps, pickled or JSON, one per rank (torch 2.4 to 2.15).

The recorder keeps the last calls in a ring and writes them when a job hangs or is asked to, so a dump is a part of a
run with its set-up calls, not a number of steps. Dumps of torch 2.3 have sizes without dtypes and are refused.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain, repeat
from statistics import fmean
from typing import Any

from ncclt.core.message import Message
from ncclt.errors import TraceError
from ncclt.profile.c10d import (
    MOST_ELEMENTS,
    ProcessGroup,
    RecordedCall,
    Tensor,
    convert_calls,
    count_messages,
    parse_ranks,
    shown,
)
from ncclt.profile.numbers import MOST_RANKS, as_mapping, as_text, parse_float, parse_int
from ncclt.profile.plain_pickle import load_pickle
from ncclt.profile.rank_files import RankFileReader, RankReading
from ncclt.profile.source import HEAD_BYTES, Document, load_json, read_block, strip_mark
from ncclt.profile.workload_builder import drop_answered_receives, format_day, newer_notes

NEWEST = "2.10"
"""Version of torch 2.9 to 2.15 (FlightRecorder.hpp), the newest that is known here."""

MAX_PICKLE_BYTES = 128 * 1024 * 1024
"""Bytes of the largest pickle that is read; a full default buffer with stack frames takes a few MiB."""

_PICKLE = b"\x80"  # PROTO, the first opcode of every pickle since protocol 2


class FlightRecorderReader(RankFileReader):
    """Reader of Flight Recorder dumps."""

    name = "flight_recorder"
    starts = (b"{", _PICKLE)

    def begins(self, beginning: bytes) -> bool:
        """Return True for a pickle or a JSON object with groups and calls of c10d."""
        if beginning.startswith(_PICKLE):
            return b"pg_config" in beginning or b"profiling_name" in beginning
        text = strip_mark(beginning)
        if not text.startswith(b"{") or b'"traceEvents"' in text or b'"schemaVersion"' in text:
            return False
        # The groups of a huge job come first in some dumps and fill all that we see.
        has_groups = b'"pg_config"' in text and (b'"entries"' in text or b'"pg_status"' in text)
        return b'"profiling_name"' in text or has_groups

    def read_rank(self, document: Document) -> RankReading:
        """Read the dump of one rank."""
        dump = _load(document)
        if not isinstance(dump, Mapping) or not isinstance(dump.get("entries"), list | tuple):
            hint = "dump with TORCH_FR_BUFFER_SIZE set, or ask the watchdog for it with TORCH_NCCL_DUMP_ON_TIMEOUT=1"
            raise TraceError(f"{document.label} is not a Flight Recorder dump: it has no list `entries`", hint=hint)
        named = [e for e in dump["entries"] if isinstance(as_mapping(e).get("profiling_name"), str)]
        entries, notes = _of_one_backend(named)
        if len(named) < len(dump["entries"]):
            notes.append(f"left out: {len(dump['entries']) - len(named)} x entry without an operation's name")
        groups = read_groups(dump)
        sent, call_notes, _ = convert_calls([read_call(entry, groups) for entry in entries])
        calls = drop_answered_receives(sent)
        durations_us: dict[Message, list[float]] = defaultdict(list)
        for call in calls:
            if call.record.duration_us is not None:
                durations_us[call.message].append(call.record.duration_us)
        rank, where = find_rank(entries, groups, document.label)
        version = as_text(dump.get("version"))
        nccl_version = dump.get("nccl_version") or dump.get("comm_lib_version")  # the latter in torch 2.13 and later
        # `time_created_ns` counts from 1970.
        moments_ns = [n for entry in entries if (n := parse_int(entry.get("time_created_ns"), most=2**62)) is not None]
        return RankReading(
            label=document.label,
            rank=rank,
            world_size=find_world_size(groups),
            calls=count_messages(calls),
            mean_us={message: fmean(times_us) for message, times_us in durations_us.items()},
            recorded_on=format_day(min(moments_ns, default=0) / 1e9),
            facts={"version": version, "nccl_version": as_text(nccl_version)},
            notes=(*newer_notes([version], NEWEST), *_ring_notes(entries), *where, *notes, *call_notes),
        )


def _load(document: Document) -> Any:
    if not document.stream.peek(1).startswith(_PICKLE):
        return load_json(document)
    data = bytearray()
    while part := read_block(document, HEAD_BYTES):
        data += part
        if len(data) > MAX_PICKLE_BYTES:
            raise TraceError(
                f"{document.label} is not a Flight Recorder dump: it is larger than {MAX_PICKLE_BYTES:,} bytes",
                hint="dump fewer calls: TORCH_FR_BUFFER_SIZE=2000 holds several steps of most models",
            )
    return load_pickle(bytes(data), document.label)


def _of_one_backend(entries: list[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Keep the calls of NCCL where there are any: the other backends of such a job never reach it."""
    nccl = [entry for entry in entries if entry["profiling_name"].startswith("nccl:")]
    others = [entry for entry in entries if not entry["profiling_name"].startswith("nccl:")]
    if not others:
        return nccl, []
    backends = ", ".join(sorted({shown(entry["profiling_name"].split(":", 1)[0]) for entry in others}))
    if nccl:
        return nccl, [f"left out: {len(others)} x call over {backends}, which bypasses NCCL"]
    notes = [f"recorded over {backends}: NCCL would get the same messages"]
    if backends == "gloo":
        # Seen with torch 2.13: ProcessGroupGloo records what it builds on, and only collectives.
        notes.append("gloo records a reduce_scatter as the all_reduce that it makes of it, and no sends or receives")
    return others, notes


def _ring_notes(entries: list[Mapping[str, Any]]) -> list[str]:
    """Return notes on the part of the run that the dump covers."""
    notes = [
        "a dump holds the last calls of a run, set-up included: it gives the weights of messages, not calls per step"
    ]
    numbers = [n for entry in entries if (n := parse_int(entry.get("record_id"))) is not None]
    if numbers and min(numbers) > 0:
        notes.append(f"partial view: the ring buffer had overwritten the first {min(numbers)} calls")
    pending = sum(not entry.get("retired") and entry.get("state") != "completed" for entry in entries)
    if pending:
        notes.append(f"{pending} of {len(entries)} calls had not completed when the dump was written; they count")
    return notes


_MOST_DIMENSIONS = 64  # at::kDimVectorMaxSize and beyond: no tensor has more
_OWN_RANK = re.compile(r":(?:send|recv) (\d{1,9})(?:->|<-)\d")
_RANK_IN_NAME = re.compile(r"rank_?(\d{1,7})(?!\d)")


def read_groups(dump: Mapping[str, Any]) -> dict[str, ProcessGroup]:
    """Return name -> group; `ranks` is a list written as text, or a list."""
    groups: dict[str, ProcessGroup] = {}
    for key, row in as_mapping(dump.get("pg_config")).items():
        if isinstance(key, str) and isinstance(row, Mapping):
            ranks = parse_ranks(row.get("ranks"))
            groups[key] = ProcessGroup(size=len(ranks), ranks=ranks, description=as_text(row.get("desc")))
    return groups


def find_group(entry: Mapping[str, Any], groups: Mapping[str, ProcessGroup]) -> ProcessGroup | None:
    """Return the group of an entry, by its name; the only group there is where the names do not meet (gloo)."""
    return groups.get(_group_name(entry)) or (next(iter(groups.values())) if len(groups) == 1 else None)


def read_call(entry: Mapping[str, Any], groups: Mapping[str, ProcessGroup]) -> RecordedCall:
    """Return the call that an entry shows."""
    group = find_group(entry, groups)
    place = parse_int(entry.get("pg_id"), most=MOST_RANKS)
    duration_ms = parse_float(entry.get("duration_ms"), least=0, most=1e12)
    return RecordedCall(
        name=entry["profiling_name"],
        # The number distinguishes groups even where the name is empty.
        group=f"{place}/{_group_name(entry)}" if place is not None else _group_name(entry),
        group_size=group.size if group else 0,
        inputs=_tensors(entry.get("input_sizes"), entry.get("input_dtypes")),
        outputs=_tensors(entry.get("output_sizes"), entry.get("output_dtypes")),
        position=parse_int(entry.get("record_id")) or 0,
        duration_us=duration_ms * 1e3 if duration_ms else None,
    )


def find_world_size(groups: Mapping[str, ProcessGroup]) -> int:
    """Return the ranks of the default group, or of the only one; 0 where neither is listed."""
    default = [group for name, group in groups.items() if group.description == "default_pg" or name == "0"]
    chosen = default or (list(groups.values()) if len(groups) == 1 else [])
    return max((group.size for group in chosen), default=0)


def find_rank(
    entries: list[Mapping[str, Any]], groups: Mapping[str, ProcessGroup], label: str
) -> tuple[int | None, list[str]]:
    """Return the rank of a dump, and a note where it is not read from its content.

    The content tells it by point-to-point calls alone (`nccl:send 0->1`, numbers inside the group). PyTorch puts the
    rank into the file's name, from which its own analyser (torch.distributed.flight_recorder) takes it.
    """
    for entry in entries:
        own, group = _OWN_RANK.search(entry["profiling_name"][:200]), find_group(entry, groups)
        if own and group and int(own[1]) < len(group.ranks):
            return group.ranks[int(own[1])], []
    if named := _RANK_IN_NAME.findall(label.rsplit(":", 1)[-1]):
        return int(named[-1]), ["the rank is read from the file's name: the dump does not hold it"]
    return None, []


def _group_name(entry: Mapping[str, Any]) -> str:
    pair = entry.get("process_group")
    return as_text(pair[0]) if isinstance(pair, list | tuple) and pair else ""


def _tensors(sizes: object, dtypes: object) -> tuple[Tensor, ...]:
    """Return the tensors of one side; a dtype is empty where the dump has none (torch 2.3)."""
    shapes = sizes if isinstance(sizes, list | tuple) else ()
    names = chain(dtypes if isinstance(dtypes, list | tuple) else (), repeat(""))
    counts = [_count_elements(shape) for shape in shapes]
    tensors = [Tensor(n, as_text(dtype)) for n, dtype in zip(counts, names, strict=False) if n is not None]
    return tuple(tensors) if len(tensors) == len(counts) else ()


def _count_elements(shape: object) -> int | None:
    if not isinstance(shape, list | tuple) or len(shape) > _MOST_DIMENSIONS:
        return None
    dimensions = [n for length in shape if (n := parse_int(length, most=MOST_ELEMENTS)) is not None]
    elements = math.prod(dimensions)
    return elements if len(dimensions) == len(shape) and elements <= MOST_ELEMENTS else None
