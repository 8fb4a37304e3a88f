"""Nsight Systems: SQLite exports of `nsys profile -t cuda,nvtx`, one file per node or rank, or all ranks in one.

Sizes are in the NVTX payloads of NCCL 2.16 and later, and only in an export made with `--include-blobs=true`. Kernel
names give the collective and, of reductions, the dtype; never the size, nor the algorithm or protocol that was used.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from ncclt.core.workload import WHOLE_FILE, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.other_libraries import NCCL_INSTEAD
from ncclt.profile.readers.nccl_log.lines import check_distinct
from ncclt.profile.readers.nsys.calls import NsysExport, Process, recording_of
from ncclt.profile.readers.nsys.file import is_export, opened
from ncclt.profile.readers.nsys.kernels import shown
from ncclt.profile.readers.nsys.messages import FUNCTIONS, Sizing, messages_of
from ncclt.profile.reading import joined, known, left_out_notes, partial_note, reasons, workload_of_roles
from ncclt.profile.roles import find_roles

name = "nsys"

_RECORD = "nsys profile --trace=cuda,nvtx --output=REPORT COMMAND"


def recognises(path: Path) -> bool:
    """Return whether a file is a SQLite export of Nsight Systems."""
    return is_export(path)


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the exports of one job.

    Raises:
        TraceError: damaged, no export, no NCCL in it, no sizes in it (the hint is the command that exports them), or
            a rank that is there twice.
    """
    check_distinct(paths)
    places = sorted((path.resolve() for path in paths), key=lambda place: (place.name, str(place)))
    recordings = [_recording(place) for place in places]
    _check_ranks(recordings)
    sizing = messages_of(recordings)
    if not any(view.calls for view in sizing.views):
        raise _refusal(recordings, sizing.left_out)
    return workload_of_roles(name, find_roles(sizing.views), _provenance(recordings, sizing))


def _recording(path: Path) -> NsysExport:
    with opened(path) as export:
        return recording_of(export)


def _check_ranks(recordings: Sequence[NsysExport]) -> None:
    """Refuse a rank of a communicator that two processes claim: its calls would count once for each."""
    seen: dict[tuple[int, int], Process] = {}
    for recording in recordings:
        for (process, communicator), member in recording.members.items():
            if communicator is None:
                continue
            for rank in member.mine:
                other = seen.setdefault((communicator, rank), process)
                if other != process:
                    raise TraceError(
                        f"rank {rank} of communicator {communicator:#x} is in {other[0]} and in {process[0]}",
                        hint="give one export per process, all of the same recording",
                    )


def _provenance(recordings: Sequence[NsysExport], sizing: Sizing) -> Provenance:
    world_size = max((member.ranks for recording in recordings for member in recording.members.values()), default=0)
    ranks = {
        rank
        for recording in recordings
        for member in recording.members.values()
        if member.ranks == world_size
        for rank in member.mine
    }
    facts = {
        "files": ", ".join(recording.label for recording in recordings),
        "nsys": joined(r.facts.get("EXPORT_PRODUCT_VERSION", "")[:40] for r in recordings),
        "kernels": shown(_kernel_words(recordings)),
    }
    return Provenance(
        source=name,
        created=min((recording.recorded_on for recording in recordings if recording.recorded_on), default=""),
        detail=known(facts),
        world_size=world_size,
        ranks_read=tuple(sorted(ranks)),
        notes=tuple(_notes(recordings, sizing, read=len(ranks), world_size=world_size)),
        whole_file=True,
    )


def _notes(recordings: Sequence[NsysExport], sizing: Sizing, *, read: int, world_size: int) -> list[str]:
    notes = [WHOLE_FILE, *sizing.assumed, *left_out_notes(sizing.left_out)]
    bare = sum(
        count for recording in recordings for function, count in recording.functions.items() if function in FUNCTIONS
    ) - sum(
        count for recording in recordings for (_p, kind), count in recording.sized.items() if kind.function in FUNCTIONS
    )
    if bare:
        notes.append(f"{bare} calls have no payload that could be read: the profile is partial")
    graphed = sum(recording.graphed for recording in recordings)
    if graphed:
        notes.append(f"{graphed} NCCL kernels were launched by CUDA graphs, whose calls show once, when captured")
    return notes + (partial_note(read, world_size) if read else [])


def _refusal(recordings: Sequence[NsysExport], left_out: Mapping[str, int]) -> TraceError:
    """Return the error for exports without a message: what was seen, and what to do."""
    labels = ", ".join(recording.label for recording in recordings)
    functions = sum((recording.functions for recording in recordings), Counter[str]())
    kernels = _kernel_words(recordings)
    seen = f"NCCL kernels: {shown(kernels) or 'none'}; NCCL calls: {shown(functions) or 'none'}"
    libraries = sum((recording.libraries for recording in recordings), Counter[str]())
    if libraries and not functions and not kernels:
        did = ", ".join(reasons(libraries))
        return TraceError(
            f"no NCCL in {labels}: other libraries did the work ({did}), and no NCCL setting reaches them",
            hint=NCCL_INSTEAD,
        )
    if not functions and not kernels:
        others = sum(recording.other_kernels for recording in recordings)
        return TraceError(
            f"no NCCL in {labels}: not one NCCL kernel or call among {others} kernel launches",
            hint=f"record a run on more than one GPU: {_RECORD}",
        )
    if not functions:
        return TraceError(
            f"no message sizes in {labels}: recorded without NVTX, and kernels carry no size ({seen})",
            hint=f"record NVTX as well: {_RECORD}; then export with --include-blobs=true",
        )
    if left_out:
        why = "; ".join(reasons(left_out))
        return TraceError(f"no message in {labels}: {why}", hint=f"record from the start of the job: {_RECORD}")
    if any(recording.undecoded for recording in recordings):
        return TraceError(
            f"no message sizes in {labels}: the export has payloads but not the schemas that explain them ({seen})",
            hint=f"export again, whole: {_export_command(recordings[0])}",
        )
    if any(recording.payloads for recording in recordings) or not _may_have_lost_payloads(recordings):
        return TraceError(
            f"no message sizes in {labels}: NCCL wrote none; it does since 2.16 ({seen})",
            hint="update NCCL, or import its own log: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL",
        )
    return TraceError(
        f"no message sizes in {labels}: it was exported without NVTX payloads ({_switches(recordings[0])}; {seen})",
        hint=f"export the report again: {_export_command(recordings[0])}",
    )


def _kernel_words(recordings: Sequence[NsysExport]) -> Counter[str]:
    """Count the launches of NCCL's kernels by operation and dtype."""
    words: Counter[str] = Counter()
    for recording in recordings:
        for kernel, count in recording.kernels.items():
            words[f"{kernel.word} {kernel.dtype}" if kernel.dtype else kernel.word] += count
    return words


def _export_command(recording: NsysExport) -> str:
    """Return the command that exports a report with its payloads, beside the file that lacks them."""
    stem = PurePath(recording.label).stem
    report = PurePath(recording.facts.get("EXPORT_PARAM_INPUT_FILE", "")).name or f"{stem}.nsys-rep"
    words = (
        "nsys",
        "export",
        "--type",
        "sqlite",
        "--include-blobs=true",
        "--force-overwrite=true",
        "--output",
        f"{stem}-payloads.sqlite",
        report[:200],
    )
    return shlex.join(words)


def _may_have_lost_payloads(recordings: Sequence[NsysExport]) -> bool:
    """Return whether a switch was off; older exports do not say, and may have lost them."""
    return any(recording.facts.get("EXPORT_PARAM_INCLUDE_BLOBS", "false") != "true" for recording in recordings)


def _switches(recording: NsysExport) -> str:
    return ", ".join(
        f"{key}={recording.facts.get(f'EXPORT_PARAM_{key}', 'not told')[:10]}"
        for key in ("INCLUDE_BLOBS", "INCLUDE_JSON")
    )
