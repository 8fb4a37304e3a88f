"""The files of several ranks, read one by one and merged into one workload."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ncclt.core.message import Message
from ncclt.core.workload import WHOLE_FILE, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.roles import RankMessages, RankRoles, find_roles
from ncclt.profile.source import Document, documents, unmarked
from ncclt.profile.workload_builder import (
    RankFile,
    all_of,
    check_distinct,
    check_one_job,
    joined,
    known,
    partial_note,
    smallest,
    workload_of_roles,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """What the file of one rank shows.

    Attributes:
        label: the file's name.
        rank: global rank, None where the file does not say.
        world_size: ranks of the job, 0 where the file does not say.
        calls: (process group, message) -> calls in the complete steps.
        mean_us: message -> mean duration of a call, µs, where recorded.
        steps: complete training steps, 0 where none is marked.
        marks: numbers of their marks, by which several profiler cycles of one rank are told from copies.
        recorded_on: ISO date, may be empty.
        facts: for the provenance.
        notes: for the provenance, one sentence each.
    """

    label: str
    rank: int | None
    world_size: int
    calls: Mapping[tuple[str, Message], int]
    mean_us: Mapping[Message, float] = field(default_factory=dict)
    steps: int = 0
    marks: frozenset[int] = frozenset()
    recorded_on: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def view(self) -> RankMessages:
        """Return the calls, to be compared with those of other ranks."""
        return RankMessages(rank=self.rank, calls=self.calls, steps=self.steps or 1)


def rank_documents(path: Path, starts: bytes | tuple[bytes, ...]) -> Iterator[Document]:
    """Yield the documents of a file; the notes and file-system debris in an archive are passed over.

    Args:
        path: the file.
        starts: what a document of this kind begins with, white space aside.

    Raises:
        TraceError: a document is damaged at its beginning.
    """
    for document in documents(path):
        try:
            beginning = unmarked(document.stream.peek(512))
        except (EOFError, OSError, zlib.error) as error:  # what gzip raises for a damaged member
            raise TraceError(
                f"{document.label} is damaged or cut off: {error}", hint="pack the archive again from whole files"
            ) from error
        if beginning.startswith(starts) or ":" not in document.label:
            yield document


def read_ranks(
    paths: Sequence[Path],
    read_one: Callable[[Document], RankReading],
    *,
    starts: bytes | tuple[bytes, ...],
    source: str,
    name: str,
) -> Workload:
    """Read every document of the files, one per rank, and merge them.

    Args:
        paths: the files.
        read_one: reads one document.
        starts: see `rank_documents`.
        source: name of the reader.
        name: of the workload.

    Raises:
        TraceError: a file was given twice or cannot be read; the files are of different jobs, show one rank twice, or
            hold no collective.
    """
    check_distinct(paths)
    readings: list[RankReading] = []
    for path in paths:
        found = [read_one(document) for document in rank_documents(path, starts)]
        if not found:
            raise TraceError(f"{path.name} holds no file of this kind", hint="pack the files of all ranks into it")
        readings += found
    readings = [join_cycles(cycles) for cycles in group_cycles(readings, lambda reading: reading)]
    check_ranks(readings)
    readings.sort(key=rank_order)
    if not any(r.calls for r in counted_ranks(readings)):
        raise _no_collectives(readings)
    messages = {message for r in readings for _group, message in r.calls}
    world_size = max(r.world_size for r in readings)
    placed = not any(1 < message.group_size < world_size for message in messages)
    closing = () if placed else ("this source does not say which groups span nodes: none is taken to",)
    origin = provenance_of(readings, source, word="file", closing=closing)
    return workload_of_roles(name, roles_of(readings), origin)


Recorded = TypeVar("Recorded")


def group_cycles(files: Sequence[Recorded], reading: Callable[[Recorded], RankReading]) -> list[list[Recorded]]:
    """Group the files by rank where they are several profiler cycles of it: each marks other steps.

    Args:
        files: of all ranks.
        reading: returns what a file shows.
    """
    groups: list[list[Recorded]] = []
    for file in files:
        mine = reading(file)
        for group in groups:
            known = [reading(other) for other in group]
            is_same = known[0].rank == mine.rank is not None and known[0].world_size == mine.world_size
            if is_same and mine.marks and all(one.marks and not one.marks & mine.marks for one in known):
                group.append(file)
                break
        else:
            groups.append([file])
    return groups


def join_cycles(cycles: Sequence[RankReading]) -> RankReading:
    """Return the cycles of one rank as one recording; see `group_cycles`."""
    if len(cycles) == 1:
        return cycles[0]
    ordered = sorted(cycles, key=lambda reading: min(reading.marks))
    times: dict[Message, list[tuple[float, int]]] = {}
    for reading in ordered:
        made = Counter[Message]()
        for (_group, message), count in reading.calls.items():
            made[message] += count
        for message, mean_us in reading.mean_us.items():
            times.setdefault(message, []).append((mean_us, max(1, made[message])))
    return replace(
        ordered[0],
        label=", ".join(reading.label for reading in ordered),
        calls=sum((Counter(reading.calls) for reading in ordered), Counter()),
        mean_us={m: sum(us * n for us, n in seen) / sum(n for _, n in seen) for m, seen in times.items()},
        steps=sum(reading.steps for reading in ordered),
        marks=frozenset().union(*(reading.marks for reading in ordered)),
        recorded_on=min((reading.recorded_on for reading in ordered if reading.recorded_on), default=""),
        facts={key: joined(r.facts.get(key) for r in ordered) for r in ordered for key in r.facts},
        notes=tuple(dict.fromkeys(note for reading in ordered for note in reading.notes)),
    )


def check_ranks(readings: Sequence[RankReading]) -> None:
    """Refuse files of different jobs, and a rank in two files.

    Raises:
        TraceError: see above.
    """
    check_one_job([RankFile(label=r.label, ranks=(r.rank,), world_size=r.world_size) for r in readings])


def rank_order(reading: RankReading) -> tuple[bool, int, str]:
    """Return the key by which ranks are sorted: those that are not known last."""
    return reading.rank is None, reading.rank or 0, reading.label


def counted_ranks(ranks: Sequence[RankReading]) -> Sequence[RankReading]:
    """Return the ranks whose calls count: those that mark steps, or all where none does.

    Calls of a step and calls of a whole file cannot be compared.
    """
    return [r for r in ranks if r.steps] or ranks


def roles_of(ranks: Sequence[RankReading]) -> RankRoles:
    """Return the roles of some ranks, with the smallest of the ranks' times."""
    return find_roles([reading.view() for reading in counted_ranks(ranks)], smallest(r.mean_us for r in ranks))


def provenance_of(
    ranks: Sequence[RankReading], source: str, *, word: str, about: Sequence[str] = (), closing: Sequence[str] = ()
) -> Provenance:
    """Return where the messages of some ranks, in their order, come from.

    Args:
        ranks: at least one.
        source: name of the reader.
        word: what its files are called in notes.
        about: notes on the recording as a whole.
        closing: the last notes.
    """
    world_size = max(r.world_size for r in ranks)
    keys = dict.fromkeys(key for r in ranks for key in r.facts)
    unknown = [f"a {word} does not say which rank it is of"] if any(r.rank is None for r in ranks) else []
    return Provenance(
        source=source,
        created=min((r.recorded_on for r in ranks if r.recorded_on), default=""),
        detail={"files": ", ".join(r.label for r in ranks)}
        | known({key: joined(r.facts.get(key) for r in ranks) for key in keys}),
        world_size=world_size,
        ranks_read=tuple(r.rank for r in ranks if r.rank is not None),
        steps=min(r.steps for r in counted_ranks(ranks)),
        notes=(
            *_notes(ranks, word),
            *about,
            *partial_note(len(ranks), world_size),
            *unknown,
            *closing,
        ),
        whole_file=not any(r.steps for r in ranks),
    )


def _notes(ranks: Sequence[RankReading], word: str) -> list[str]:
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
        notes.append(f"{len(ranks) - marking} of {len(ranks)} {word}s mark no training step: their calls do not count")
    return notes


def _no_collectives(ranks: Sequence[RankReading]) -> TraceError:
    left_out = sorted({note for r in ranks for note in r.notes if note.startswith(("format ", "left out"))})
    return TraceError(
        f"no collectives in {all_of([r.label for r in ranks])}: "
        f"{'; '.join(left_out) or 'not one call of a collective is recorded'}",
        hint="record steps of the distributed run itself, with a PyTorch that writes sizes and dtypes (2.4 or later)",
    )
