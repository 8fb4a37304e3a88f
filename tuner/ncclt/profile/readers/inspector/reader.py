"""Dumps of NCCL Inspector, the profiler plugin of NCCL 2.28.3 and later: JSON lines, one file per process.

Files are .log, .jsonl or either gzipped. NCCL 2.28 and 2.29 keep the last call of every dump interval; from 2.30 on a
ring keeps them all, but by default none below 8 KiB. No record tells a dtype. The Prometheus form of Inspector puts
sizes in classes and cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ncclt.core.plural import count_noun
from ncclt.core.workload import WHOLE_FILE, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.readers.inspector.counts import Tally, mean_times, rank_views
from ncclt.profile.readers.inspector.records import NEWEST
from ncclt.profile.readers.nccl_log.lines import check_distinct
from ncclt.profile.readers.nccl_log.ranks import UNKNOWN_DTYPE
from ncclt.profile.reading import (
    all_of,
    is_newer,
    joined,
    known,
    largest_group_notes,
    newer_notes,
    reasons,
    workload_of_roles,
)
from ncclt.profile.roles import find_roles
from ncclt.profile.source import any_head, documents

name = "inspector"

SMALLEST_BYTES = 8192
"""Default of NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES, of one rank's part (since NCCL 2.30)."""

_RECORD = "NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1"


def recognises(path: Path) -> bool:
    """Return whether a file begins with records of Inspector."""
    return any_head(path, _has_records)


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the dumps of one job, one file per process.

    Raises:
        TraceError: damaged, no record of a call, or a rank in two files.
    """
    check_distinct(paths)
    tally, files = Tally(), []
    for document in (document for path in sorted(paths, key=str) for document in documents(path)):
        files.append(document.label)
        tally.read(document)
    views = rank_views(tally)
    if not any(view.calls for view in views):
        raise _nothing(tally, files)
    return workload_of_roles(name, find_roles(views, mean_times(tally)), _provenance(tally, files))


def _has_records(beginning: bytes) -> bool:
    kinds = (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"')
    return b'"header"' in beginning and any(kind in beginning for kind in kinds)


def _nothing(tally: Tally, files: Sequence[str]) -> TraceError:
    where = all_of(files)
    if newer := next((version for version in sorted(tally.versions) if is_newer(version, NEWEST)), ""):
        return TraceError(
            f"no collectives in {where}: its format {newer} is newer than {NEWEST}, the newest that ncclt knows",
            hint="update ncclt, or record with the Inspector of NCCL 2.32 or older",
        )
    if tally.slots:
        return TraceError(
            f"no collectives in {where}: {'; '.join(_left_out(tally)) or 'no record is of a call'}",
            hint="record more steps, and set NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 for small messages",
        )
    return TraceError(f"{where} holds no record of NCCL Inspector", hint=f"record with {_RECORD}, without Prometheus")


def _provenance(tally: Tally, files: Sequence[str]) -> Provenance:
    facts = {
        "files": ", ".join(sorted(files)),
        "format": joined(sorted(tally.versions)),
        "nodes": str(tally.worlds.get(tally.world_size, 0) or ""),
        "nccl_choices": tally.choices.text(),
    }
    ranks = {series.header.rank for _gpu, series in tally.views() if series.header.ranks == tally.world_size}
    return Provenance(
        source=name,
        created=min(tally.dates - {""}, default=""),
        detail=known(facts),
        world_size=tally.world_size,
        ranks_read=tuple(sorted(ranks)),
        notes=_notes(tally),
        whole_file=True,
    )


def _notes(tally: Tally) -> tuple[str, ...]:
    """Return notes on what records do not show, and what these lack."""
    notes = [
        WHOLE_FILE,
        f"Inspector has no dtype: messages are given in bytes, as {UNKNOWN_DTYPE}",
    ]
    notes += newer_notes(tally.versions, NEWEST)
    every = list(tally.series.values())
    if all(size >= SMALLEST_BYTES for series in every for size in series.sizes):
        notes.append("no message below 8 KiB: Inspector leaves them out unless NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0")
    collectives = [series for series in every if series.operation not in ("Send", "Recv")]
    sampled = [series for series in collectives if not series.header.keeps_all and series.span > series.seen]
    if sampled:
        seen, made = sum(series.seen for series in sampled), sum(series.span for series in sampled)
        notes.append(f"a sample: {seen} of {made} calls recorded; the sequence numbers show how many there were")
    gaps = sum(series.span - series.seen for series in collectives if series.header.keeps_all)
    if gaps:
        notes.append(f"{gaps} calls between the recorded ones are missing: too small, untimed or dropped")
    if tally.dropped:
        notes.append(f"Inspector reports {tally.dropped} dropped records: its rings were full")
    notes += largest_group_notes(tally.ranks_seen, tally.world_size)
    return (*notes, *(f"left out: {reason}" for reason in _left_out(tally)))


def _left_out(tally: Tally) -> list[str]:
    unread = [f"{count_noun(tally.unread, 'line')} cut off or without a record"] if tally.unread else []
    return reasons(tally.left_out) + unread
