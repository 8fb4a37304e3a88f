"""Dumps of NCCL Inspector, the profiler plugin of NCCL 2.28.3 and later: JSON lines, one file per process.

Files are .log, .jsonl or either gzipped. NCCL 2.28 and 2.29 keep the last call of every dump interval; from 2.30 on a
ring keeps them all, but by default none below 8 KiB. No record tells a dtype. The Prometheus form of Inspector puts
sizes in classes and cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ncclt.core.workload import WHOLE_FILE, MessageCalls, Provenance, Workload, merge_ranks
from ncclt.errors import TraceError
from ncclt.profile.documents import documents, heads
from ncclt.profile.readers.inspector.counts import Tally, mean_times, rank_views
from ncclt.profile.readers.nccl_log.lines import check_distinct
from ncclt.profile.readers.nccl_log.ranks import UNKNOWN_DTYPE

name = "inspector"

SMALLEST_BYTES = 8192
"""NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES when nobody sets it, of one rank's part (since NCCL 2.30)."""

_RECORD = "NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1"


def recognises(path: Path) -> bool:
    """Tell whether a file begins with records of Inspector."""
    try:
        return any(_has_records(one) for one in heads(path))
    except TraceError:
        return False


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
    per_step, times = merge_ranks(rank_views(tally)), mean_times(tally)
    if not per_step:
        raise _nothing(tally, files)
    return Workload(
        name=name,
        messages=tuple(
            MessageCalls(message=message, calls_per_step=calls, recorded_us=times.get(message))
            for message, calls in per_step.items()
        ),
        provenance=_provenance(tally, files),
    )


def _has_records(beginning: bytes) -> bool:
    kinds = (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"')
    return b'"header"' in beginning and any(kind in beginning for kind in kinds)


def _nothing(tally: Tally, files: Sequence[str]) -> TraceError:
    where = files[0] if len(files) == 1 else f"the {len(files)} files"
    reasons = _left_out(tally)
    if tally.slots:
        return TraceError(
            f"no collectives in {where}: {'; '.join(reasons) or 'no record is of a call'}",
            hint="record more steps, and set NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 for small messages",
        )
    return TraceError(f"{where} holds no record of NCCL Inspector", hint=f"record with {_RECORD}, without Prometheus")


def _provenance(tally: Tally, files: Sequence[str]) -> Provenance:
    facts = {
        "files": ", ".join(sorted(files)),
        "format": ", ".join(sorted(tally.versions - {""})),
        "nodes": str(tally.worlds.get(tally.world_size, 0) or ""),
        "nccl_choices": tally.choices.text(),
    }
    ranks = {series.header.rank for _gpu, series in tally.views() if series.header.ranks == tally.world_size}
    return Provenance(
        source=name,
        created=min(tally.dates - {""}, default=""),
        detail={key: value for key, value in facts.items() if value},
        world_size=tally.world_size,
        ranks_read=tuple(sorted(ranks)),
        notes=_notes(tally),
        whole_file=True,
    )


def _notes(tally: Tally) -> tuple[str, ...]:
    """Return what the records cannot tell, and what these lack."""
    notes = [
        WHOLE_FILE,
        f"Inspector tells no dtype: messages are given in bytes, as {UNKNOWN_DTYPE}",
    ]
    every = list(tally.series.values())
    if all(size >= SMALLEST_BYTES for series in every for size in series.sizes):
        notes.append("no message below 8 KiB: Inspector leaves them out unless NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0")
    collectives = [series for series in every if series.operation not in ("Send", "Recv")]
    sampled = [series for series in collectives if not series.header.keeps_all and series.span > series.seen]
    if sampled:
        seen, made = sum(series.seen for series in sampled), sum(series.span for series in sampled)
        notes.append(f"a sample: {seen} of {made} calls recorded; the sequence numbers tell how many there were")
    gaps = sum(series.span - series.seen for series in collectives if series.header.keeps_all)
    if gaps:
        notes.append(f"{gaps} calls between the recorded ones are missing: too small, untimed or dropped")
    if tally.dropped:
        notes.append(f"Inspector reports {tally.dropped} dropped records: its rings were full")
    world_size = tally.world_size
    if world_size:
        notes.append(f"the largest communicator, of {world_size} ranks, is taken for the whole job")
        if tally.ranks_seen < world_size:
            notes.append(f"{tally.ranks_seen} of {world_size} ranks read; the busiest of them stands for all")
    else:
        notes.append(f"{tally.ranks_seen} ranks read and no communicator of all of them: the job's size is not known")
    return (*notes, *(f"left out: {reason}" for reason in _left_out(tally)))


def _left_out(tally: Tally) -> list[str]:
    reasons = [f"{count} x {reason}" for reason, count in sorted(tally.left_out.items())]
    return reasons + ([f"{tally.unread} lines that are cut off or no record"] if tally.unread else [])
