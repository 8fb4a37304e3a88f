"""Nsight Systems: SQLite exports of `nsys profile -t cuda,nvtx`, one file per node or rank, or all ranks in one.

Sizes stand in the NVTX payloads of NCCL 2.16 and later, and only in an export that was told to keep them. Kernels tell
the collective and, of reductions, the dtype; never the size, and never the algorithm or protocol that was used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ncclt.core.workload import WHOLE_FILE, Provenance, Workload, merge_ranks
from ncclt.errors import TraceError
from ncclt.profile.readers.nccl_log.lines import check_distinct
from ncclt.profile.readers.nsys.calls import NsysExport, Process, recording_of
from ncclt.profile.readers.nsys.file import is_export, opened
from ncclt.profile.readers.nsys.kernels import shown
from ncclt.profile.readers.nsys.messages import FUNCTIONS, Sizing, messages_of
from ncclt.profile.readers.nsys.refusal import kernel_words, refusal
from ncclt.profile.reading import joined, left_out_notes, partial_note, told, workload_of

name = "nsys"


def recognises(path: Path) -> bool:
    """Tell whether a file is a SQLite export of Nsight Systems."""
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
        raise refusal(recordings, sizing.left_out)
    return workload_of(name, merge_ranks(sizing.views), _provenance(recordings, sizing))


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
        "kernels": shown(kernel_words(recordings)),
    }
    return Provenance(
        source=name,
        created=min((recording.recorded_on for recording in recordings if recording.recorded_on), default=""),
        detail=told(facts),
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
