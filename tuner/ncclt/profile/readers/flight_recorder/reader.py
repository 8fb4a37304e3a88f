"""PyTorch Flight Recorder dumps, pickled or JSON, one per rank (torch 2.4 to 2.15).

The recorder keeps the last calls in a ring and writes them when a job hangs or is asked to, so a dump is a part of a
run with its set-up calls, not a number of steps. Dumps of torch 2.3 have sizes without dtypes and are refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclt.core.message import Message
from ncclt.core.workload import Workload
from ncclt.errors import TraceError
from ncclt.profile.readers.flight_recorder.dump import call_of, entries_of, groups_of, rank_of, world_size_of
from ncclt.profile.readers.flight_recorder.pickle import load_pickle
from ncclt.profile.readers.param_comms.calls import counted, counts_of, ledger_of, shown
from ncclt.profile.readers.param_comms.ranks import RankReading, read_ranks
from ncclt.profile.reading import day_of, newer_notes, without_answered_receives
from ncclt.profile.source import HEAD_BYTES, Document, any_head, load_json, read_block, unmarked

name = "flight_recorder"

NEWEST = "2.10"
"""Version of torch 2.9 to 2.15 (FlightRecorder.hpp), the newest that is known here."""

MAX_PICKLE_BYTES = 128 * 1024 * 1024
"""Bytes of the largest pickle that is read; a full default buffer with stack frames takes a few MiB."""

_PICKLE = b"\x80"  # PROTO, the first opcode of every pickle since protocol 2


def recognises(path: Path) -> bool:
    """Return whether a file, or a member of an archive, begins like a dump."""
    return any_head(path, _is_dump)


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the dumps of one job, one document per rank.

    Raises:
        TraceError: damaged, no dump, not plain values, no collectives, several jobs, or a rank twice.
    """
    return read_ranks(paths, _read_rank, starts=(b"{", _PICKLE), source="flight_recorder", name=name)


def _is_dump(beginning: bytes) -> bool:
    if beginning.startswith(_PICKLE):
        return b"pg_config" in beginning or b"profiling_name" in beginning
    text = unmarked(beginning)
    if not text.startswith(b"{") or b'"traceEvents"' in text or b'"schemaVersion"' in text:
        return False
    # The groups of a huge job come first in some dumps and fill all that we see.
    return b'"profiling_name"' in text or (b'"pg_config"' in text and (b'"entries"' in text or b'"pg_status"' in text))


def _read_rank(document: Document) -> RankReading:
    dump = _load(document)
    if not isinstance(dump, Mapping) or not isinstance(dump.get("entries"), list | tuple):
        raise TraceError(
            f"{document.label} is not a Flight Recorder dump: it has no list `entries`",
            hint="dump with TORCH_FR_BUFFER_SIZE set, or ask the watchdog for it with TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        )
    named = entries_of(dump)
    entries, notes = _of_one_backend(named)
    if len(named) < len(dump["entries"]):
        notes.append(f"left out: {len(dump['entries']) - len(named)} x entry without an operation's name")
    groups = groups_of(dump)
    ledger = ledger_of([call_of(entry, groups) for entry in entries])
    calls = without_answered_receives(ledger.calls)
    durations_us: dict[Message, list[float]] = defaultdict(list)
    for call in calls:
        if call.duration_us is not None:
            durations_us[call.message].append(call.duration_us)
    rank, where = rank_of(entries, groups, document.label)
    return RankReading(
        label=document.label,
        rank=rank,
        world_size=world_size_of(groups),
        calls=counts_of(calls),
        mean_us={message: sum(found) / len(found) for message, found in durations_us.items()},
        recorded_on=_recorded_on(entries),
        facts={
            "version": _text(dump.get("version")),
            # `comm_lib_version` in torch 2.13 and later.
            "nccl_version": _text(dump.get("nccl_version") or dump.get("comm_lib_version")),
        },
        notes=(
            *newer_notes([_text(dump.get("version"))], NEWEST),
            *_ring_notes(entries),
            *([where] if where else []),
            *notes,
            *ledger.notes(),
        ),
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
        return nccl, [f"left out: {len(others)} x call over {backends}, which never reaches NCCL"]
    notes = [f"recorded over {backends}: these are the messages that NCCL would be given"]
    if backends == "gloo":
        # Seen with torch 2.13: ProcessGroupGloo records what it builds on, and only collectives.
        notes.append("gloo records a reduce_scatter as the all_reduce that it makes of it, and no sends or receives")
    return others, notes


def _ring_notes(entries: list[Mapping[str, Any]]) -> list[str]:
    """Say how much of the run the dump shows."""
    notes = ["a dump is the last part of a run, set-up included: weigh messages by it, do not count steps"]
    numbers = [n for entry in entries if (n := counted(entry.get("record_id"))) is not None]
    if numbers and min(numbers) > 0:
        notes.append(f"partial view: the ring buffer had overwritten the first {min(numbers)} calls")
    pending = sum(not entry.get("retired") and entry.get("state") != "completed" for entry in entries)
    if pending:
        notes.append(f"{pending} of {len(entries)} calls had not completed when the dump was written; they count")
    return notes


def _recorded_on(entries: list[Mapping[str, Any]]) -> str:
    """Return the day of the first call; `time_created_ns` counts from 1970."""
    moments_ns = [n for entry in entries if (n := counted(entry.get("time_created_ns"), 2**62)) is not None]
    return day_of(min(moments_ns, default=0) / 1e9)


def _text(value: object) -> str:
    return shown(value) if isinstance(value, str) else ""
