"""PyTorch Kineto traces (torch.profiler): .json, .json.gz or a tar of them, one document per rank.

Proven on public NCCL traces of 2022 to 2026 and on own gloo runs of torch 2.8 and 2.13. Each call is read from exactly
one event family: the `record_param_comms` operators with metadata, else the kernels that carry the same metadata,
else the `c10d::` operators and backend annotations with input shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from ncclt.core.workload import TimedCall, Workload
from ncclt.errors import TraceError
from ncclt.profile.other_libraries import NCCL_INSTEAD
from ncclt.profile.rank_files import RankFileReader, RankReading
from ncclt.profile.reader import Source
from ncclt.profile.readers.kineto.calls import KERNELS, OPERATORS, read_calls, torch_version_hint
from ncclt.profile.readers.kineto.exposure import RankExposure, least_exposed, mean_exposure
from ncclt.profile.readers.kineto.kernels import calls_in_steps, kernel_times, median_step_calls
from ncclt.profile.readers.kineto.trace import find_launches, read_trace
from ncclt.profile.roles import RankRoles
from ncclt.profile.source import Document, strip_mark
from ncclt.profile.unsupported import XLA_TRACE
from ncclt.profile.workload_builder import count_reasons, drop_answered_receives


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoReading(RankReading):
    """Content of one rank's trace once its events are counted.

    Attributes:
        step_times_us: of the complete steps, µs.
        exposure: communication that compute does not hide.
        timeline: calls of the step of median length.
        libraries: library that communicates without NCCL -> its kernels.
        counts: `kernels` of NCCL, those `bare` of metadata and those `unmatched` with a call among them, and `events`
            of communication, with a size or without.
    """

    step_times_us: tuple[float, ...]
    exposure: RankExposure
    timeline: tuple[TimedCall, ...]
    libraries: Counter[str]
    counts: Counter[str]

    def join(self, cycles: Sequence[RankReading]) -> KinetoReading:
        """Return this recording and later profiler cycles of the same rank as one recording."""
        joined = RankReading.join(self, cycles)
        assert isinstance(joined, KinetoReading), "all cycles of a rank are read by this reader"
        if not cycles:
            return joined
        ordered = sorted(_kineto_readings([self, *cycles]), key=lambda cycle: min(cycle.marks))
        return replace(
            joined,
            step_times_us=tuple(time_us for cycle in ordered for time_us in cycle.step_times_us),
            exposure=mean_exposure([(cycle.exposure, cycle.steps) for cycle in ordered]),
            libraries=sum((cycle.libraries for cycle in ordered), Counter[str]()),
            counts=sum((cycle.counts for cycle in ordered), Counter[str]()),
        )


class KinetoReader(RankFileReader):
    """Reader of Kineto traces."""

    name = "kineto"
    starts = b"{"
    word = "trace"

    def begins(self, beginning: bytes) -> bool:
        """Return True for a trace of PyTorch, and not of XLA, which has the same layout."""
        text = strip_mark(beginning)
        if not text.startswith(b"{") or XLA_TRACE.match(text):
            return False
        # Files cut by hand keep little but the events; the head of a huge job can push the events out of our sight.
        return b'"traceEvents"' in text or (b'"schemaVersion"' in text and b'"deviceProperties"' in text)

    def read_rank(self, document: Document) -> KinetoReading:
        """Read the trace of one rank."""
        trace = read_trace(document)
        book, job, libraries = read_calls(trace), trace.job, trace.timeline.libraries
        calls = drop_answered_receives(book.calls)
        steps = calls_in_steps(calls, trace.steps, trace.optimizers, on_gpu=book.source == KERNELS)
        times = kernel_times(trace, calls, find_launches=partial(find_launches, document))
        exposure = trace.timeline.exposure(steps.ranges)
        facts = {"read_from": book.source, "torch": torch_version_hint(trace.comms)}
        facts |= {"backend": job.backend, "nccl_version": job.nccl_version}
        events = len(trace.comms) + len(trace.operators) + len(trace.annotations)
        notes = [*book.notes(), *steps.notes, *filter(None, [exposure.note])]
        if libraries:
            took = f"{trace.timeline.others_us / 1e3:.2f} ms in the file ({', '.join(count_reasons(libraries))})"
            notes.append(f"other libraries communicated for {took}, which NCCL settings do not affect")
        return KinetoReading(
            label=trace.label,
            rank=job.rank,
            world_size=job.world_size,
            calls=Counter((call.group, call.message) for call in steps.calls),
            mean_us=times.mean_us,
            steps=steps.count,
            marks=steps.numbers,
            recorded_on=trace.recorded_on,
            facts=facts,
            notes=tuple(notes),
            step_times_us=steps.step_times_us,
            exposure=exposure,
            timeline=median_step_calls(times, steps),
            libraries=libraries,
            counts=Counter(kernels=times.total, bare=times.without_metadata, unmatched=times.unmatched, events=events),
        )

    def notes(self, ranks: Sequence[RankReading]) -> list[str]:
        """Return notes on kernels without metadata or without a call."""
        notes = []
        counts = sum((rank.counts for rank in _kineto_readings(ranks)), Counter[str]())
        if counts["bare"] and any(rank.facts["read_from"] in (OPERATORS, KERNELS) for rank in ranks):
            notes.append(f"kernels without metadata: {counts['bare']} of {counts['kernels']}")
        if counts["unmatched"]:
            notes.append(f"kernels that belong to no recorded call: {counts['unmatched']} of {counts['kernels']}")
        return notes

    def complete(self, workload: Workload, source: Source, roles: RankRoles) -> Workload:
        """Add the step time, the exposed communication and the timeline of a step."""
        ranks = _kineto_readings(source.readings)
        step_times = [time_us for rank in ranks for time_us in rank.step_times_us]
        slowest = [rank for rank in ranks if roles.slowest.has(rank.per_step())]
        # The rank that waits least shows best what the transfer itself takes.
        least = min(slowest, key=lambda rank: (rank.exposure.exposed_us is None, rank.exposure.exposed_us))
        exposed_us = least_exposed(rank.exposure for rank in ranks)[0]
        workload = replace(
            workload,
            step_time_us=median(step_times) if step_times else None,
            exposed_us=exposed_us,
            copied_us=least.exposure.copied_us,
            timeline=least.timeline,
        )
        waiting_us = (exposed_us or 0.0) - (workload.exposed_us or 0.0)
        if not waiting_us:
            return workload
        note = (
            f"exposed communication: another {waiting_us / 1e3:.2f} ms without computation went into waiting for other "
            "ranks, or into calls without a size"
        )
        origin = workload.provenance
        return replace(workload, provenance=replace(origin, notes=(*origin.notes, note)))

    def refusal(self, source: Source) -> TraceError:
        """Return the error for traces without calls, with the likely reason."""
        ranks = _kineto_readings(source.readings)
        counts = sum((rank.counts for rank in ranks), Counter[str]())
        kernels, events = counts["kernels"], counts["events"]
        left_out = sorted({note for rank in ranks for note in rank.notes if note.startswith("left out")})
        others = sum((rank.libraries for rank in ranks), Counter[str]())
        if others and not kernels:
            did = ", ".join(count_reasons(others))
            why = f"other libraries did the work ({did}), which NCCL settings do not affect"
            hint = NCCL_INSTEAD
        elif kernels or events:
            seen = f"{kernels} NCCL kernels and {events} communication events, but none of them has a size"
            why = f"it shows {seen}" + (f" ({'; '.join(left_out)})" if left_out else "")
            hint = "record again with record_shapes=True, or with torch 2.3 or later, which writes the sizes itself"
        else:
            why = "no event in it comes from NCCL, gloo or torch.distributed"
            hint = "record steps of the distributed run itself, with both CPU and CUDA activities"
        return TraceError(f"no collectives in {source.where}: {why}", hint=hint)


def _kineto_readings(readings: Iterable[object]) -> list[KinetoReading]:
    return [reading for reading in readings if isinstance(reading, KinetoReading)]
