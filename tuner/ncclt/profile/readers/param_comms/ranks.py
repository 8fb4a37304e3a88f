"""The files of several ranks, read one by one and merged into one workload."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ncclt.core.message import Message
from ncclt.core.workload import WHOLE_FILE, MessageCalls, Provenance, RankMessages, Workload, merge_ranks
from ncclt.errors import TraceError
from ncclt.profile.documents import Document, documents
from ncclt.profile.ranks import RankFile, check_one_job
from ncclt.profile.readers.param_comms.calls import SentCall

_UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """What the file of one rank shows.

    Attributes:
        label: the file's name.
        rank: global rank, None where the file does not tell.
        world_size: ranks of the job, 0 where the file does not tell.
        calls: the messages of the complete steps.
        steps: complete training steps, 0 where none is marked.
        recorded_on: ISO date, may be empty.
        facts: for the provenance.
        notes: for the provenance, one sentence each.
    """

    label: str
    rank: int | None
    world_size: int
    calls: tuple[SentCall, ...]
    steps: int = 0
    recorded_on: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def mean_us(self) -> dict[Message, float]:
        """Return the mean duration of every message that has any, µs."""
        times: dict[Message, list[float]] = defaultdict(list)
        for call in self.calls:
            if call.duration_us is not None:
                times[call.message].append(call.duration_us)
        return {message: sum(values) / len(values) for message, values in times.items()}


def read_ranks(
    paths: Iterable[Path], read_one: Callable[[Document], RankReading], *, starts: tuple[bytes, ...]
) -> list[RankReading]:
    """Read every document of the files; archives may also hold notes and file-system debris, which are passed over.

    Args:
        paths: the files.
        read_one: reads one document.
        starts: what a document of this kind begins with, white space aside.

    Raises:
        TraceError: a file was given twice, or cannot be read.
    """
    readings: list[RankReading] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise TraceError(f"{path.name} was given twice", hint="name every file once")
        seen.add(path.resolve())
        found = [read_one(document) for document in _ours(path, starts)]
        if not found:
            raise TraceError(f"{path.name} holds no file of this kind", hint="pack the files of all ranks into it")
        readings += found
    return readings


def merged_workload(readings: Sequence[RankReading], *, source: str, name: str) -> Workload:
    """Merge the ranks of one job.

    Raises:
        TraceError: the files are of different jobs, show one rank twice, or hold no collective.
    """
    check_one_job([RankFile(label=r.label, ranks=(r.rank,), world_size=r.world_size) for r in readings])
    ranks = sorted(readings, key=lambda r: (r.rank is None, r.rank or 0, r.label))
    per_step = merge_ranks(
        RankMessages(
            rank=r.rank, calls=dict(Counter((call.group, call.message) for call in r.calls)), steps=r.steps or 1
        )
        for r in _counted(ranks)
    )
    if not per_step:
        raise _no_collectives(ranks)
    # A rank that comes early waits inside the call for the last one: the smallest mean is closest to the transfer.
    times = [r.mean_us for r in ranks]
    return Workload(
        name=name,
        messages=tuple(
            MessageCalls(
                message=message,
                calls_per_step=count,
                recorded_us=min((mean[message] for mean in times if message in mean), default=None),
            )
            for message, count in per_step.items()
        ),
        provenance=_provenance(ranks, source),
    )


def _counted(ranks: Sequence[RankReading]) -> Sequence[RankReading]:
    """Return the ranks whose calls count: those that mark steps, or all where none does."""
    return [r for r in ranks if r.steps] or ranks


def _ours(path: Path, starts: tuple[bytes, ...]) -> Iterator[Document]:
    for document in documents(path):
        try:
            beginning = document.stream.peek(512).removeprefix(_UTF8_BOM).lstrip()
        except (EOFError, OSError, zlib.error) as error:  # what gzip raises for a damaged member
            raise TraceError(
                f"{document.label} is damaged or cut off: {error}", hint="pack the archive again from whole files"
            ) from error
        if beginning.startswith(starts) or ":" not in document.label:
            yield document


def _no_collectives(ranks: Sequence[RankReading]) -> TraceError:
    label = ranks[0].label if len(ranks) == 1 else f"the {len(ranks)} files"
    reasons = sorted({note for r in ranks for note in r.notes if note.startswith("left out")})
    why = "; ".join(reasons) if reasons else "not one call of a collective is recorded"
    return TraceError(
        f"no collectives in {label}: {why}",
        hint="record steps of the distributed run itself, with a PyTorch that writes sizes and dtypes (2.4 or later)",
    )


def _provenance(ranks: Sequence[RankReading], source: str) -> Provenance:
    facts: dict[str, list[str]] = {"files": [r.label for r in ranks]}
    for r in ranks:
        for key, value in r.facts.items():
            facts.setdefault(key, []).append(value)
    return Provenance(
        source=source,
        created=min((r.recorded_on for r in ranks if r.recorded_on), default=""),
        detail={key: ", ".join(dict.fromkeys(v for v in values if v)) for key, values in facts.items() if any(values)},
        world_size=max(r.world_size for r in ranks),
        ranks_read=tuple(r.rank for r in ranks if r.rank is not None),
        steps=min(r.steps for r in _counted(ranks)),
        notes=_notes(ranks),
        whole_file=not any(r.steps for r in ranks),
    )


def _notes(ranks: Sequence[RankReading]) -> tuple[str, ...]:
    """Return the notes of all ranks, each once, with the ranks it holds for where it does not hold for all."""
    holders: dict[str, list[str]] = {}
    for r in ranks:
        for note in r.notes:
            holders.setdefault(note, []).append("?" if r.rank is None else str(r.rank))
    notes = [n if len(who) == len(ranks) else f"{n} (rank {', '.join(who)})" for n, who in holders.items()]
    marking = sum(r.steps > 0 for r in ranks)
    if not marking:
        notes.append(WHOLE_FILE)
    elif marking < len(ranks):
        notes.append(f"{len(ranks) - marking} of {len(ranks)} files mark no training step: their calls do not count")
    world_size = max(r.world_size for r in ranks)
    if len(ranks) < world_size:
        notes.append(f"{len(ranks)} of {world_size} ranks read; the busiest of them stands for all")
    if any(r.rank is None for r in ranks):
        notes.append("a file does not say which rank it is of")
    if any(1 < call.message.group_size < world_size for r in ranks for call in r.calls):
        notes.append("this source does not say which groups span nodes: none is taken to")
    return tuple(notes)
