"""Sources with one file per rank: read one by one, several profiler cycles of a rank joined."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ncclt.core.message import Message
from ncclt.errors import TraceError
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.roles import count_per_step
from ncclt.profile.source import Document, strip_mark
from ncclt.profile.workload_builder import check_one_job, check_ranks_once, join_distinct, partial_note


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """Content of the file of one rank.

    Attributes:
        label: the file's name.
        rank: global rank, None where the file does not name it.
        world_size: ranks of the job, 0 where not recorded.
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

    def per_step(self) -> dict[Message, float]:
        """Return message -> calls per step, for comparison with those of other ranks."""
        return count_per_step(self.calls, self.steps or 1)

    def join(self, cycles: Sequence[RankReading]) -> RankReading:
        """Return this recording and later profiler cycles of the same rank as one recording."""
        if not cycles:
            return self
        ordered = sorted([self, *cycles], key=lambda reading: min(reading.marks))
        times: dict[Message, list[tuple[float, float]]] = {}
        for reading in ordered:
            counts = count_per_step(reading.calls, 1)
            for message, mean_us in reading.mean_us.items():
                times.setdefault(message, []).append((mean_us, max(1, counts.get(message, 0))))
        return replace(
            ordered[0],
            label=", ".join(reading.label for reading in ordered),
            calls=sum((Counter(reading.calls) for reading in ordered), Counter()),
            mean_us={m: sum(us * n for us, n in means) / sum(n for _, n in means) for m, means in times.items()},
            steps=sum(reading.steps for reading in ordered),
            marks=frozenset().union(*(reading.marks for reading in ordered)),
            recorded_on=min((reading.recorded_on for reading in ordered if reading.recorded_on), default=""),
            facts=join_facts(reading.facts for reading in ordered),
            notes=tuple(dict.fromkeys(note for reading in ordered for note in reading.notes)),
        )


class RankFileReader(Reader):
    """A kind of source with one document per rank.

    Attributes:
        starts: a document of this kind begins with one of these, white space aside; others in an archive are notes and
            file-system debris.
        word: what a document is called in notes.
    """

    starts: ClassVar[bytes | tuple[bytes, ...]]
    word: ClassVar[str] = "file"
    hint = "record steps of the distributed run itself, with a PyTorch that writes sizes and dtypes (2.4 or later)"

    @abstractmethod
    def read_rank(self, document: Document) -> RankReading:
        """Read one document.

        Raises:
            TraceError: it is damaged, or of another kind.
        """

    def calls(self, source: Source) -> Iterable[Call]:
        """Read the documents, join several profiler cycles of a rank, and yield the calls of the ranks that count."""
        readings: list[RankReading] = []
        for document in source.documents():
            try:
                beginning = strip_mark(document.stream.peek(512))
            except (EOFError, OSError, zlib.error) as error:  # what gzip raises for a damaged member
                hint = "pack the archive again from whole files"
                raise TraceError(f"{document.label} is damaged or cut off: {error}", hint=hint) from error
            if beginning.startswith(self.starts) or ":" not in document.label:
                readings.append(self.read_rank(document))
        for path in source.paths:
            if not any(r.label == path.name or r.label.startswith(f"{path.name}:") for r in readings):
                hint = "pack the files of all ranks into it"
                raise TraceError(f"{path.name} holds no {self.word} of this kind", hint=hint)
        ranks = [cycles[0].join(cycles[1:]) for cycles in _group_cycles(readings)]
        check_one_job((r.label, r.world_size) for r in ranks)
        check_ranks_once((r.label, r.rank) for r in ranks)
        ranks.sort(key=lambda r: (r.rank is None, r.rank or 0, r.label))
        source.readings = ranks
        # Calls of a step and calls of a whole file cannot be compared.
        counted = [r for r in ranks if r.steps] or ranks
        source.labels = [r.label for r in ranks]
        source.created = min((r.recorded_on for r in ranks if r.recorded_on), default="")
        source.detail |= join_facts(r.facts for r in ranks)
        source.world_size = max(r.world_size for r in ranks)
        source.ranks = {r.rank for r in ranks if r.rank is not None}
        source.steps = min(r.steps for r in counted)
        source.whole_file = not source.steps
        source.notes += [*_list_notes(ranks, self.word), *self.notes(ranks)]
        source.notes += partial_note(len(ranks), source.world_size)
        if any(r.rank is None for r in ranks):
            source.notes.append(f"a {self.word} does not name its rank")
        for reading in counted:
            for (group, message), count in reading.calls.items():
                yield Call(
                    message=message,
                    rank=reading.rank,
                    lane=reading.label,
                    group=group,
                    count=count,
                    steps=reading.steps or 1,
                    time_us=reading.mean_us.get(message),
                )

    def notes(self, ranks: Sequence[RankReading]) -> list[str]:
        """Return notes on the recording as a whole."""
        world_size = max(r.world_size for r in ranks)
        messages = {message for r in ranks for _group, message in r.calls}
        if any(1 < message.group_size < world_size for message in messages):
            return ["this source does not record which groups span nodes: none is assumed to"]
        return []

    def refusal(self, source: Source) -> TraceError:
        """Return the error for files without calls, with the reasons that their notes give."""
        ranks = [r for r in source.readings if isinstance(r, RankReading)]
        left_out = sorted({note for r in ranks for note in r.notes if note.startswith(("format ", "left out"))})
        return TraceError(f"no collectives in {source.where}: {'; '.join(left_out) or self.empty}", hint=self.hint)


def join_facts(ranks: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the facts of all ranks, those that differ joined by commas."""
    facts = list(ranks)
    return {key: join_distinct(rank.get(key) for rank in facts) for rank in facts for key in rank}


def _group_cycles(readings: Sequence[RankReading]) -> list[list[RankReading]]:
    """Group the files by rank where they are several profiler cycles of it: each marks other steps."""
    groups: list[list[RankReading]] = []
    for reading in readings:
        for group in groups:
            is_same = group[0].rank == reading.rank is not None and group[0].world_size == reading.world_size
            if is_same and reading.marks and all(cycle.marks and not cycle.marks & reading.marks for cycle in group):
                group.append(reading)
                break
        else:
            groups.append([reading])
    return groups


def _list_notes(ranks: Sequence[RankReading], word: str) -> list[str]:
    """Return the notes of all ranks, each once, with the ranks it holds for where it does not hold for all."""
    holders: dict[str, list[str]] = {}
    for reading in ranks:
        for note in reading.notes:
            holders.setdefault(note, []).append("?" if reading.rank is None else str(reading.rank))
    notes = [n if len(named) == len(ranks) else f"{n} (rank {', '.join(named)})" for n, named in holders.items()]
    unmarked = sum(not reading.steps for reading in ranks)
    if 0 < unmarked < len(ranks):
        notes.append(f"{unmarked} of {len(ranks)} {word}s mark no training step: their calls do not count")
    return notes
