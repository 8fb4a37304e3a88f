"""Output of nccl-tests: its table as printed, in the forms of all releases, or the file that `-J` writes.

What was benchmarked is not what a training sends: each size counts as one call, and the notes say so. Releases from
2.17 on name their program; for older ones the command line above the table does, or else the form of the table.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message, parse_dtype
from ncclt.core.workload import Provenance, Workload
from ncclt.errors import BenchmarkError, InputError, TraceError
from ncclt.nccl.nccl_tests.json import parse_json
from ncclt.nccl.nccl_tests.result import NcclTest, NcclTestRow
from ncclt.nccl.nccl_tests.text import parse_text
from ncclt.profile.readers.nccl_log.lines import LOGGED_CALL, check_distinct
from ncclt.profile.readers.nccl_log.ranks import PER_RANK
from ncclt.profile.reading import joined, known, left_out_notes, reasons, workload_of
from ncclt.profile.source import Document, any_head, documents, read_block

name = "nccl_tests"

_TABLE = re.compile(rb"(?m)^[^\n#]{0,240}#\s{1,40}size\s{1,40}count\s{1,40}type\s")
_DECISION = b" Bytes -> "
_JSON_KEYS = (b'"version"', b'"config"', b'"nthreads"', b'"ngpus"')

_MOST_TEXT_BYTES = 64 * 1024 * 1024
"""A sweep prints a few KiB; logs mixed into it can make some MiB of that."""

_PROGRAMS = {f"{c}_perf": c for c in Collective if c not in (Collective.ALL_TO_ALL, Collective.SEND_RECV)} | {
    "alltoall_perf": Collective.ALL_TO_ALL,
    "sendrecv_perf": Collective.SEND_RECV,
}


def recognises(path: Path) -> bool:
    """Return whether a file has a table of nccl-tests near its beginning, or is one of its result files.

    Where NCCL has logged its calls around the table, the log has more detail.
    """
    return any_head(path, _is_output)


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the outputs of one or more programs, each of one or more sweeps.

    Raises:
        TraceError: damaged, not output of nccl-tests, without measurements, or of an unknown collective.
    """
    check_distinct(paths)
    labels: list[str] = []
    tests: list[tuple[NcclTest, Collective | None]] = []
    for document in (document for path in sorted(paths, key=str) for document in documents(path)):
        labels.append(document.label)
        tests += _tests(document)
    times: dict[Message, list[float]] = {}
    left_out = Counter[str]()
    for test, collective in tests:
        for row in test.rows:
            message = _message(row, test, collective)
            if isinstance(message, str):
                left_out[message] += 1
            else:
                times.setdefault(message, []).extend(_times_us(row, message))
    if not times:
        why = "; ".join(reasons(left_out)) or "no table of nccl-tests is in it"
        raise TraceError(
            f"no collectives in {', '.join(labels)}: {why}",
            hint="give the output of all_reduce_perf or another program of nccl-tests, or the file of -J",
        )
    found = [test for test, _collective in tests]
    origin = Provenance(
        source="nccl_tests",
        detail=known({"files": ", ".join(labels), "nccl_tests": joined(test.version for test in found)}),
        world_size=max(test.ranks for test in found),
        notes=tuple(_notes(found, left_out)),
        whole_file=True,
    )
    times_us = {message: fmean(taken) for message, taken in times.items() if taken}
    return workload_of(name, dict.fromkeys(times, 1.0), origin, times_us=times_us)


def _notes(tests: Sequence[NcclTest], left_out: Counter[str]) -> list[str]:
    notes = ["sizes that were benchmarked, not what a training sends: one call of each, and no steps"]
    if not all(test.ranks for test in tests):
        notes.append("the ranks are not listed everywhere: such messages are taken to be of the whole job")
    unnamed = sum(test.program is None for test in tests)
    if unnamed:
        notes.append(
            f"{unnamed} of {len(tests)} tables do not name their program: recognised by the command, or by their form"
        )
    unreadable = sum(test.unreadable_lines for test in tests)
    if unreadable:
        notes.append(f"{unreadable} lines inside the tables are no rows: sizes may be missing")
    return notes + left_out_notes(left_out)


def _is_output(beginning: bytes) -> bool:
    if beginning.lstrip()[:1] == b"{":
        return all(key in beginning for key in _JSON_KEYS)
    if LOGGED_CALL.search(beginning) or _DECISION in beginning:
        return False
    return _TABLE.search(beginning) is not None


def _tests(document: Document) -> list[tuple[NcclTest, Collective | None]]:
    """Return the tests of a document, each with its collective; None = one that ncclt has no message for."""
    content = read_block(document, _MOST_TEXT_BYTES + 1)
    if len(content) > _MOST_TEXT_BYTES:
        raise TraceError(
            f"{document.label} is larger than {_MOST_TEXT_BYTES // 2**20} MiB",
            hint="give the output alone",
        )
    text = content.decode("utf-8-sig", errors="replace")
    try:
        tests = (parse_json(text),) if text.lstrip().startswith("{") else parse_text(text)
    except BenchmarkError as error:
        raise TraceError(f"{document.label}: {error.message}", hint=error.hint) from error
    return [(test, _collective(test, document.label)) for test in tests]


def _collective(test: NcclTest, label: str) -> Collective | None:
    """Return what a test measured.

    Raises:
        TraceError: neither a name nor the form of the table tells.
    """
    program = test.program or test.command
    if program:
        return _PROGRAMS.get(program.removesuffix("_mpi"))  # as NAME_SUFFIX of its Makefile names them
    row = next((row for row in test.rows if row.size_bytes and row.count and _has_known_type(row)), None)
    known = None if row is None else _by_form(row, test)
    if row is not None and known is None:
        raise TraceError(
            f"{label} does not say which collective its table is of",
            hint="put the command (`alltoall_perf -b 8 ...`) above the table, or use nccl-tests 2.17 or later",
        )
    return known


def _has_known_type(row: NcclTestRow) -> bool:
    try:
        parse_dtype(row.dtype)
    except InputError:
        return False
    return True


def _by_form(row: NcclTestRow, test: NcclTest) -> Collective | None:
    """Return the only collective that prints such a row, None where there are several.

    Source: getCollPrintParams, *GetCollByteCount and *GetBw of nccl-tests 2.0 to 2.19.
    """
    # Whether count is one rank's part.
    is_part = test.ranks > 1 and row.size_bytes == row.count * DTYPE_SIZES[parse_dtype(row.dtype)] * test.ranks
    if row.root is not None and row.root >= 0:
        if is_part:
            return None  # gather, scatter
        return Collective.BROADCAST if row.redop in (None, "", "none") else Collective.REDUCE
    if row.redop == "":
        return Collective.ALL_TO_ALL  # the only one with the column and nothing in it
    if row.redop is None:
        return Collective.ALL_GATHER  # the only one with neither column
    if row.redop == "none":
        return None  # all_gather and alltoall look alike
    if is_part:
        return Collective.REDUCE_SCATTER
    halves = [half for r in test.rows for half in (r.out_of_place, r.in_place) if half is not None]
    half = max(halves, key=lambda h: h.algbw_gbps, default=None)
    if half is None or half.algbw_gbps <= 0 or test.ranks <= 2:
        return None  # between two ranks all_reduce and sendrecv have one bus bandwidth
    is_point_to_point = math.isclose(half.busbw_gbps, half.algbw_gbps, rel_tol=0.05)
    return Collective.SEND_RECV if is_point_to_point else Collective.ALL_REDUCE


def _message(row: NcclTestRow, test: NcclTest, collective: Collective | None) -> Message | str:
    """Return the message of a row, or why it makes none."""
    if collective is None:
        return f"row of {test.program or test.command or 'a program'}, which ncclt has no message for"
    if not 0 < row.size_bytes <= MOST_BYTES:
        return f"row of {row.size_bytes} bytes"
    try:
        return Message(
            collective=collective, dtype=parse_dtype(row.dtype), size_bytes=row.size_bytes, group_size=test.ranks
        )
    except InputError:
        return f"row of type {row.dtype[:24]!r}, whose size is not known"


def _times_us(row: NcclTestRow, message: Message) -> list[float]:
    """Return the time of the half that training does: in place, but between two buffers where a rank has a part."""
    halves = (row.in_place, row.out_of_place)
    if message.collective in (*PER_RANK, Collective.SEND_RECV):
        halves = (row.out_of_place, row.in_place)
    half = next((h for h in halves if h is not None), None)
    return [half.time_us] if half is not None and math.isfinite(half.time_us) and half.time_us > 0 else []
