"""PyTorch Kineto traces (torch.profiler): .json, .json.gz or a tar of them, one document per rank.

Proven on public NCCL traces of 2022 to 2026 and on own gloo runs of torch 2.8 and 2.13. Each call is read from exactly
one event family: the `record_param_comms` operators with metadata, else the kernels that carry the same metadata,
else the `c10d::` operators and backend annotations with input shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ncclt.core.message import Message
from ncclt.core.workload import WHOLE_FILE, MessageCalls, Provenance, RankMessages, Workload, merge_ranks
from ncclt.errors import TraceError
from ncclt.profile.documents import Document, any_head, documents, unmarked
from ncclt.profile.ranks import RankFile, check_one_job
from ncclt.profile.readers.kineto.calls import CallBook
from ncclt.profile.readers.kineto.exposure import RankExposure, least_exposed
from ncclt.profile.readers.kineto.job import KinetoJob
from ncclt.profile.readers.kineto.kernels import KernelTimes, kernel_times
from ncclt.profile.readers.kineto.metadata import calls_from_metadata, is_sized_collective, torch_version_hint
from ncclt.profile.readers.kineto.shapes import calls_from_shapes
from ncclt.profile.readers.kineto.steps import KinetoSteps, calls_in_steps
from ncclt.profile.readers.kineto.trace import RankTrace, launches, rank_trace

name = "kineto"


def recognises(path: Path) -> bool:
    """Tell whether a file, or a member of an archive, begins like a Kineto trace."""
    return any_head(path, _is_kineto)


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the traces of one job, one document per rank.

    Raises:
        TraceError: damaged, no trace, no collectives, several jobs, or a rank twice.
    """
    ranks = [_read_rank(document) for path in paths for document in documents(path) if _is_object(document)]
    _check_one_job(ranks)
    if not any(rank.steps.calls for rank in ranks):
        raise _no_collectives(ranks)
    return _workload(sorted(ranks, key=_order), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankReading:
    """What remains of one rank's trace once its events are counted."""

    label: str
    job: KinetoJob
    steps: KinetoSteps
    times: KernelTimes
    exposure: RankExposure
    read_from: str
    torch: str
    recorded_on: str
    notes: tuple[str, ...]
    events_seen: int

    @property
    def messages(self) -> RankMessages:
        counts = Counter((call.group, call.message) for call in self.steps.calls)
        return RankMessages(rank=self.job.rank, calls=dict(counts), steps=self.steps.count)


def _is_kineto(beginning: bytes) -> bool:
    text = unmarked(beginning)
    if not text.startswith(b"{"):
        return False
    # Files cut by hand keep little but the events; the head of a huge job can push the events out of our sight.
    return b'"traceEvents"' in text or (b'"schemaVersion"' in text and b'"deviceProperties"' in text)


def _is_object(document: Document) -> bool:
    """Tell whether a document can be a trace; archives also hold notes and file-system debris."""
    beginning = document.stream.peek(512)
    return unmarked(beginning).startswith(b"{") or ":" not in document.label


def _read_rank(document: Document) -> _RankReading:
    trace = rank_trace(document)
    book = _calls(trace)
    calls = book.without_answered_receives()
    steps = calls_in_steps(calls, trace.steps, on_gpu=book.source == _KERNELS)
    return _RankReading(
        label=trace.label,
        job=trace.job,
        steps=steps,
        times=kernel_times(trace, calls, find_launches=partial(launches, document)),
        exposure=trace.timeline.exposure(steps.ranges),
        read_from=book.source,
        torch=torch_version_hint(trace.comms),
        recorded_on=trace.recorded_on,
        notes=(*book.notes(), *steps.notes),
        events_seen=len(trace.comms) + len(trace.operators) + len(trace.annotations),
    )


_OPERATORS, _KERNELS = "metadata of record_param_comms", "metadata of NCCL kernels"


def _calls(trace: RankTrace) -> CallBook:
    """Read one event family: the first of the three that tells sizes."""
    comms = [event for event in trace.comms if not trace.in_barrier(event)]
    if any(is_sized_collective(event) for event in comms):
        return calls_from_metadata(comms, trace.job, source=_OPERATORS)
    if any(is_sized_collective(event) for event in trace.kernels):
        return calls_from_metadata(trace.kernels, trace.job, source=_KERNELS)
    return calls_from_shapes(trace)


def _check_one_job(ranks: Sequence[_RankReading]) -> None:
    if not ranks:
        raise TraceError("the archive holds no JSON document", hint="pack the traces of all ranks into it")
    check_one_job([RankFile(label=r.label, ranks=(r.job.rank,), world_size=r.job.world_size) for r in ranks])


def _no_collectives(ranks: Sequence[_RankReading]) -> TraceError:
    """Say that nothing was found, and what the likely reason is."""
    label = ranks[0].label if len(ranks) == 1 else f"the {len(ranks)} traces"
    kernels, events = sum(rank.times.total for rank in ranks), sum(rank.events_seen for rank in ranks)
    left_out = sorted({note for rank in ranks for note in rank.notes if note.startswith("left out")})
    if kernels or events:
        seen = f"{kernels} NCCL kernels and {events} communication events, but none of them tells a size"
        why = f"it shows {seen}" + (f" ({'; '.join(left_out)})" if left_out else "")
        hint = "record again with record_shapes=True, or with torch 2.3 or later, which writes the sizes itself"
    else:
        why = "not one event in it comes from NCCL, gloo or torch.distributed"
        hint = "record steps of the distributed run itself, with both CPU and CUDA activities"
    return TraceError(f"no collectives in {label}: {why}", hint=hint)


def _order(rank: _RankReading) -> tuple[bool, int, str]:
    return (rank.job.rank is None, rank.job.rank or 0, rank.label)


def _workload(ranks: Sequence[_RankReading], workload_name: str) -> Workload:
    # Calls of a step and calls of a whole file cannot be compared.
    per_step = merge_ranks(rank.messages for rank in _counted(ranks))
    step_times = [time_us for rank in ranks for time_us in rank.steps.step_times_us]
    return Workload(
        name=workload_name,
        messages=tuple(
            MessageCalls(message=message, calls_per_step=count, recorded_us=_recorded_us(ranks, message))
            for message, count in per_step.items()
        ),
        provenance=_provenance(ranks),
        step_time_us=sum(step_times) / len(step_times) if step_times else None,
        exposed_us=least_exposed(rank.exposure for rank in ranks)[0],
    )


def _counted(ranks: Sequence[_RankReading]) -> Sequence[_RankReading]:
    """Return the ranks whose calls count: those that mark steps, or all where none does."""
    return [rank for rank in ranks if rank.steps.marked] or ranks


def _recorded_us(ranks: Iterable[_RankReading], message: Message) -> float | None:
    """Return the smallest of the ranks' means: a rank that comes early waits inside the kernel for the last one."""
    return min((rank.times.mean_us[message] for rank in ranks if message in rank.times.mean_us), default=None)


def _provenance(ranks: Sequence[_RankReading]) -> Provenance:
    facts = {
        "files": ", ".join(rank.label for rank in ranks),
        "read_from": _all_values(rank.read_from for rank in ranks),
        "torch": _all_values(rank.torch for rank in ranks),
        "backend": _all_values(rank.job.backend for rank in ranks),
        "nccl_version": _all_values(rank.job.nccl_version for rank in ranks),
    }
    return Provenance(
        source=name,
        created=min((rank.recorded_on for rank in ranks if rank.recorded_on), default=""),
        detail={key: value for key, value in facts.items() if value},
        world_size=max(rank.job.world_size for rank in ranks),
        ranks_read=tuple(rank.job.rank for rank in ranks if rank.job.rank is not None),
        steps=min(rank.steps.count if rank.steps.marked else 0 for rank in _counted(ranks)),
        notes=_notes(ranks),
        whole_file=not any(rank.steps.marked for rank in ranks),
    )


def _all_values(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _notes(ranks: Sequence[_RankReading]) -> tuple[str, ...]:
    """Return the notes of all ranks, each once, with the ranks it holds for where it does not hold for all."""
    holders: dict[str, list[str]] = {}
    for rank in ranks:
        for note in filter(None, (*rank.notes, rank.exposure.note)):
            holders.setdefault(note, []).append("?" if rank.job.rank is None else str(rank.job.rank))
    notes = [n if len(who) == len(ranks) else f"{n} (rank {', '.join(who)})" for n, who in holders.items()]
    marking = sum(rank.steps.marked for rank in ranks)
    if not marking:
        notes.append(WHOLE_FILE)
    elif marking < len(ranks):
        notes.append(f"{len(ranks) - marking} of {len(ranks)} traces mark no training step: their calls do not count")
    total = sum(rank.times.total for rank in ranks)
    bare = sum(rank.times.without_metadata for rank in ranks)
    unmatched = sum(rank.times.unmatched for rank in ranks)
    if bare and any(rank.read_from in (_OPERATORS, _KERNELS) for rank in ranks):
        notes.append(f"kernels without metadata: {bare} of {total}")
    if unmatched:
        notes.append(f"kernels that belong to no recorded call: {unmatched} of {total}")
    world_size = max(rank.job.world_size for rank in ranks)
    if len(ranks) < world_size:
        notes.append(f"{len(ranks)} of {world_size} ranks read; the busiest of them stands for all")
    if any(rank.job.rank is None for rank in ranks):
        notes.append("a trace does not say which rank it is of")
    return tuple(notes)
