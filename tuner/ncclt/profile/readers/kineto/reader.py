"""PyTorch Kineto traces (torch.profiler): .json, .json.gz or a tar of them, one document per rank.

Proven on public NCCL traces of 2022 to 2026 and on own gloo runs of torch 2.8 and 2.13. Each call is read from exactly
one event family: the `record_param_comms` operators with metadata, else the kernels that carry the same metadata,
else the `c10d::` operators and backend annotations with input shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from ncclt.core.workload import TimedCall, Workload
from ncclt.errors import TraceError
from ncclt.profile.other_libraries import NCCL_INSTEAD
from ncclt.profile.rank_files import (
    RankReading,
    check_ranks,
    group_cycles,
    join_cycles,
    provenance_of,
    rank_documents,
    rank_order,
    roles_of,
)
from ncclt.profile.readers.kineto.calls import (
    CallBook,
    calls_from_metadata,
    calls_from_shapes,
    is_sized_collective,
    torch_version_hint,
)
from ncclt.profile.readers.kineto.exposure import KernelTimeline, RankExposure, least_exposed, mean_exposure
from ncclt.profile.readers.kineto.kernels import KernelTimes, calls_in_steps, kernel_times, step_timeline
from ncclt.profile.readers.kineto.trace import RankTrace, launches, rank_trace
from ncclt.profile.source import Document, any_head, unmarked
from ncclt.profile.unsupported import XLA_TRACE
from ncclt.profile.workload_builder import reasons, without_answered_receives, workload_of_roles

name = "kineto"


def recognises(path: Path) -> bool:
    """Return whether a file, or a member of an archive, begins like a Kineto trace."""
    return any_head(path, _is_kineto)


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the traces of one job, one document per rank.

    Raises:
        TraceError: damaged, no trace, no collectives, several jobs, or a rank twice.
    """
    ranks = [_read_rank(document) for path in paths for document in rank_documents(path, b"{")]
    if not ranks:
        raise TraceError("the archive holds no JSON document", hint="pack the traces of all ranks into it")
    ranks = [_join(cycles) for cycles in group_cycles(ranks, lambda rank: rank.reading)]
    check_ranks([rank.reading for rank in ranks])
    if not any(rank.reading.calls for rank in ranks):
        raise _no_collectives(ranks)
    ranks.sort(key=lambda rank: rank_order(rank.reading))
    readings = [rank.reading for rank in ranks]
    step_times = [time_us for rank in ranks for time_us in rank.step_times_us]
    roles = roles_of(readings)
    slowest = [rank for rank in ranks if roles.slowest.has(rank.reading.view())]
    # The rank that waits least shows best what the transfer itself takes.
    least = min(slowest, key=lambda rank: (rank.exposure.exposed_us is None, rank.exposure.exposed_us))
    exposed_us = least_exposed(rank.exposure for rank in ranks)[0]
    origin = provenance_of(readings, "kineto", word="trace", about=_kernel_notes(ranks))
    workload = replace(
        workload_of_roles(name, roles, origin),
        step_time_us=median(step_times) if step_times else None,
        exposed_us=exposed_us,
        copied_us=least.exposure.copied_us,
        timeline=least.timeline,
    )
    waiting_us = (exposed_us or 0.0) - (workload.exposed_us or 0.0)
    if not waiting_us:
        return workload
    note = (
        f"exposed communication: another {waiting_us / 1e3:.2f} ms in which no computation ran were waiting for other "
        "ranks, or calls without a size"
    )
    origin = workload.provenance
    return replace(workload, provenance=replace(origin, notes=(*origin.notes, note)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankTrace:
    """What remains of one rank's trace once its events are counted."""

    reading: RankReading
    step_times_us: tuple[float, ...]
    times: KernelTimes
    exposure: RankExposure
    timeline: tuple[TimedCall, ...]
    others: Counter[str]
    events_seen: int


def _join(cycles: Sequence[_RankTrace]) -> _RankTrace:
    """Return several profiler cycles of one rank as one recording."""
    if len(cycles) == 1:
        return cycles[0]
    ordered = sorted(cycles, key=lambda cycle: min(cycle.reading.marks))
    return replace(
        ordered[0],
        reading=join_cycles([cycle.reading for cycle in ordered]),
        step_times_us=tuple(time_us for cycle in ordered for time_us in cycle.step_times_us),
        times=replace(
            ordered[0].times,
            without_metadata=sum(cycle.times.without_metadata for cycle in ordered),
            unmatched=sum(cycle.times.unmatched for cycle in ordered),
            total=sum(cycle.times.total for cycle in ordered),
        ),
        exposure=mean_exposure([(cycle.exposure, cycle.reading.steps) for cycle in ordered]),
        others=sum((cycle.others for cycle in ordered), Counter[str]()),
        events_seen=sum(cycle.events_seen for cycle in ordered),
    )


def _is_kineto(beginning: bytes) -> bool:
    text = unmarked(beginning)
    if not text.startswith(b"{") or XLA_TRACE.match(text):
        return False
    # Files cut by hand keep little but the events; the head of a huge job can push the events out of our sight.
    return b'"traceEvents"' in text or (b'"schemaVersion"' in text and b'"deviceProperties"' in text)


def _read_rank(document: Document) -> _RankTrace:
    trace = rank_trace(document)
    book, job = _calls(trace), trace.job
    calls = without_answered_receives(book.calls)
    steps = calls_in_steps(calls, trace.steps, trace.optimizers, on_gpu=book.source == _KERNELS)
    times = kernel_times(trace, calls, find_launches=partial(launches, document))
    exposure = trace.timeline.exposure(steps.ranges)
    return _RankTrace(
        reading=RankReading(
            label=trace.label,
            rank=job.rank,
            world_size=job.world_size,
            calls=Counter((call.group, call.message) for call in steps.calls),
            mean_us=times.mean_us,
            steps=steps.count if steps.marked else 0,
            marks=steps.numbers,
            recorded_on=trace.recorded_on,
            facts={
                "read_from": book.source,
                "torch": torch_version_hint(trace.comms),
                "backend": job.backend,
                "nccl_version": job.nccl_version,
            },
            notes=tuple(filter(None, (*book.notes(), *steps.notes, exposure.note, _others_note(trace.timeline)))),
        ),
        step_times_us=steps.step_times_us,
        times=times,
        exposure=exposure,
        timeline=step_timeline(times, steps),
        others=trace.timeline.libraries,
        events_seen=len(trace.comms) + len(trace.operators) + len(trace.annotations),
    )


_OPERATORS, _KERNELS = "metadata of record_param_comms", "metadata of NCCL kernels"


def _calls(trace: RankTrace) -> CallBook:
    """Read one event family: the first of the three that has sizes."""
    comms = [event for event in trace.comms if not trace.in_barrier(event)]
    if any(is_sized_collective(event) for event in comms):
        return calls_from_metadata(comms, trace.job, source=_OPERATORS, operators=trace.operators)
    if any(is_sized_collective(event) for event in trace.kernels):
        return calls_from_metadata(trace.kernels, trace.job, source=_KERNELS)
    return calls_from_shapes(trace)


def _others_note(timeline: KernelTimeline) -> str:
    """Return the note on libraries that communicate without NCCL, empty where there is none."""
    if not timeline.libraries:
        return ""
    return (
        f"other libraries communicated for {timeline.others_us / 1e3:.2f} ms of the file "
        f"({', '.join(reasons(timeline.libraries))}), and no NCCL setting reaches them"
    )


def _no_collectives(ranks: Sequence[_RankTrace]) -> TraceError:
    """Say that nothing was found, and what the likely reason is."""
    label = ranks[0].reading.label if len(ranks) == 1 else f"the {len(ranks)} traces"
    kernels, events = sum(rank.times.total for rank in ranks), sum(rank.events_seen for rank in ranks)
    left_out = sorted({note for rank in ranks for note in rank.reading.notes if note.startswith("left out")})
    others = sum((rank.others for rank in ranks), Counter[str]())
    if others and not kernels:
        why = f"other libraries did the work ({', '.join(reasons(others))}), and no NCCL setting reaches them"
        hint = NCCL_INSTEAD
    elif kernels or events:
        seen = f"{kernels} NCCL kernels and {events} communication events, but none of them has a size"
        why = f"it shows {seen}" + (f" ({'; '.join(left_out)})" if left_out else "")
        hint = "record again with record_shapes=True, or with torch 2.3 or later, which writes the sizes itself"
    else:
        why = "not one event in it comes from NCCL, gloo or torch.distributed"
        hint = "record steps of the distributed run itself, with both CPU and CUDA activities"
    return TraceError(f"no collectives in {label}: {why}", hint=hint)


def _kernel_notes(ranks: Sequence[_RankTrace]) -> list[str]:
    notes = []
    total = sum(rank.times.total for rank in ranks)
    bare = sum(rank.times.without_metadata for rank in ranks)
    unmatched = sum(rank.times.unmatched for rank in ranks)
    if bare and any(rank.reading.facts["read_from"] in (_OPERATORS, _KERNELS) for rank in ranks):
        notes.append(f"kernels without metadata: {bare} of {total}")
    if unmatched:
        notes.append(f"kernels that belong to no recorded call: {unmatched} of {total}")
    return notes
