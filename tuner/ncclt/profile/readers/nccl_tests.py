"""Output of nccl-tests: its table as printed, in the forms of all releases, or the file that `-J` writes.

What was benchmarked is not what a training sends: each size counts as one call, and the notes say so. Releases from
2.17 on name their program; for older ones the command line above the table does, or else the form of the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from ncclt.core.message import MOST_BYTES, Collective, Message, parse_dtype
from ncclt.core.plural import count_noun
from ncclt.errors import BenchmarkError, InputError, TraceError
from ncclt.nccl.nccl_tests.json import NEWEST, parse_json
from ncclt.nccl.nccl_tests.result import NcclTest, NcclTestRow
from ncclt.nccl.nccl_tests.text import parse_text
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.readers.nccl_log import LOGGED_CALL
from ncclt.profile.source import Document, check_readable, documents, read_block
from ncclt.profile.unsupported import find_unsupported
from ncclt.profile.workload_builder import count_reasons, join_distinct, newer_notes

_TABLE = re.compile(rb"(?m)^[^\n#]{0,240}#\s{1,40}size\s{1,40}count\s{1,40}type\s")
_DECISION = b" Bytes -> "
_OF_PROGRAM = re.compile(r"\w_perf(?:_mpi)?\b|#\s*nThread\s|#\s+size\s+count\s|Test (?:NCCL|CUDA) failure")
_GIVE_OUTPUT = "give the output of all_reduce_perf or another nccl-tests program, or its JSON file (-J)"
_JSON_KEYS = (b'"version"', b'"config"', b'"nthreads"', b'"ngpus"')

_MOST_TEXT_BYTES = 64 * 1024 * 1024
"""A sweep prints a few KiB; logs mixed into it can make some MiB of that."""


class NcclTestsReader(Reader):
    """Reader of nccl-tests outputs, each of one or more sweeps."""

    name = "nccl_tests"
    unstepped = "benchmarked sizes, not a training's messages: each size counts as one call, without steps"
    empty = "no table of nccl-tests is in it"
    hint = _GIVE_OUTPUT

    def begins(self, beginning: bytes) -> bool:
        """Return True for a table of nccl-tests or one of its JSON files.

        Where NCCL has logged its calls around the table, the log has more detail.
        """
        if beginning.lstrip()[:1] == b"{":
            return all(key in beginning for key in _JSON_KEYS)
        if LOGGED_CALL.search(beginning) or _DECISION in beginning:
            return False
        return _TABLE.search(beginning) is not None

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield one call of each size."""
        tests = [test for document in source.documents() for test in _tests(document)]
        times: dict[Message, list[float]] = {}
        for test in tests:
            for row in test.rows:
                for call in source.admit(_build_message(row, test)):
                    times.setdefault(call.message, []).extend(_list_times_us(row, call.message))
        if not times and any(test.rows and test.collective is None for test in tests):
            raise TraceError(
                f"no collectives in {source.where}: {'; '.join(count_reasons(source.left_out))}",
                hint="put the command (`alltoall_perf -b 8 ...`) above the table, or use nccl-tests 2.17 or later",
            )
        source.detail["nccl_tests"] = join_distinct(test.version for test in tests)
        source.world_size = max((test.ranks for test in tests), default=0)
        source.notes += _notes(tests)
        for message, times_us in times.items():
            yield Call(message=message, time_us=fmean(times_us) if times_us else None)


def _notes(tests: Sequence[NcclTest]) -> list[str]:
    notes = newer_notes({str(test.file_version) for test in tests}, str(NEWEST))
    if not all(test.ranks for test in tests):
        notes.append("the ranks are not listed everywhere: assuming the whole job for those messages")
    if unnamed := sum(test.program is None for test in tests):
        notes.append(
            f"{count_noun(unnamed, 'table')} without a program name: collective inferred from the command or layout"
        )
    if unreadable := sum(test.unreadable_lines for test in tests):
        notes.append(f"{count_noun(unreadable, 'line')} inside the tables not readable: sizes may be missing")
    if any(test.gpu and test.rows and test.avg_busbw_gbps is None for test in tests):
        notes.append("a run has no average at its end: it was cut off or ended early, and sizes may be missing")
    return notes


def read_tests(path: Path) -> tuple[NcclTest, ...]:
    """Read the tests of one output, text or JSON.

    Raises:
        TraceError: it cannot be read, or is of another kind.
    """
    heads = check_readable(path)
    if not NcclTestsReader().fits(path, heads) and (unsupported := find_unsupported(path, heads)):
        raise unsupported
    return tuple(test for document in documents(path) for test in _tests(document))


def _tests(document: Document) -> tuple[NcclTest, ...]:
    content = read_block(document, _MOST_TEXT_BYTES + 1)
    if len(content) > _MOST_TEXT_BYTES:
        hint = "give the output alone"
        raise TraceError(f"{document.label} is larger than {_MOST_TEXT_BYTES // 2**20} MiB", hint=hint)
    text = content.decode("utf-8-sig", errors="replace")
    try:
        return (parse_json(text),) if text.lstrip().startswith("{") else parse_text(text)
    except BenchmarkError as error:
        if not text.lstrip().startswith("{") and not _OF_PROGRAM.search(text):
            raise TraceError(f"{document.label} is not nccl-tests output", hint=_GIVE_OUTPUT) from error
        raise TraceError(f"{document.label}: {error.message}", hint=error.hint) from error


def _build_message(row: NcclTestRow, test: NcclTest) -> Message | str:
    """Return the message of a row, or why it makes none."""
    if test.collective is None:
        return "row of a table that does not say which collective it is of"
    if not isinstance(test.collective, Collective):
        return f"row of {test.collective}, which ncclt does not support"
    if not 0 < row.size_bytes <= MOST_BYTES:
        return f"row of {row.size_bytes} bytes"
    try:
        return Message(
            collective=test.collective, dtype=parse_dtype(row.dtype), size_bytes=row.size_bytes, group_size=test.ranks
        )
    except InputError:
        return f"row of type {row.dtype[:24]!r}, of unknown size"


def _list_times_us(row: NcclTestRow, message: Message) -> list[float]:
    """Return the time of the half that training does: in place, but between two buffers where a rank has a part."""
    halves = (row.in_place, row.out_of_place)
    if message.collective.has_rank_parts or message.collective is Collective.SEND_RECV:
        halves = (row.out_of_place, row.in_place)
    half = next((h for h in halves if h is not None), None)
    return [half.time_us] if half is not None and math.isfinite(half.time_us) and half.time_us > 0 else []
