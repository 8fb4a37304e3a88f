"""Nsight Systems: SQLite exports of `nsys profile -t cuda,nvtx`, one file per node or rank, or all ranks in one.

Sizes are in the NVTX payloads of NCCL 2.16 and later, and only in an export made with `--include-blobs=true`. Kernel
names give the collective and, of reductions, the dtype; never the size, nor the algorithm or protocol that was used.
An export is opened so that nothing in it can write, run code or run forever.

Payloads: NVIDIA/nccl, src/collectives.cc of 2.16 to 2.24 (`Message size [bytes]` or `Bytes` first, no communicator) and
src/include/nvtx_payload_schemas.h of 2.25 and later (`NCCL communicator ID` first). Both layouts are read by the schema
that the export holds, never by guessing. Kernel names: RING, TREE and LL are those of the entry kernel, compiled once
for each collective and dtype; another algorithm and protocol runs inside more often than not (src/device/generate.py,
best_kernel).
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from urllib.parse import quote

from ncclt.core.message import DTYPE_SIZES, Collective, Message
from ncclt.errors import TraceError
from ncclt.profile.nccl_calls import OPERATIONS, UNKNOWN_DTYPE, build_message
from ncclt.profile.numbers import parse_int
from ncclt.profile.other_libraries import NCCL_INSTEAD, other_library
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.source import open_regular, parse_json
from ncclt.profile.workload_builder import count_reasons, join_distinct, parse_day, partial_note

_RECORD = "nsys profile --trace=cuda,nvtx --output=REPORT COMMAND"


class NsysReader(Reader):
    """Reader of SQLite exports of Nsight Systems."""

    name = "nsys"

    def begins(self, beginning: bytes) -> bool:
        """Return True for an SQLite file; `fits` looks at its tables."""
        return beginning.startswith(_MAGIC)

    def fits(self, path: Path, heads: Sequence[bytes]) -> bool:
        """Return True for an export of Nsight Systems; never raises."""
        if not super().fits(path, heads):
            return False
        try:
            with open_export(path) as export:
                return bool(_MARKS & export.columns.keys())
        except TraceError:
            return False

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls of every process."""
        recording = NsysRecording()
        source.readings = [recording]
        for path in source.paths:
            source.labels.append(path.name)
            with open_export(path) as export:
                _add_export(recording, export)
        _check_ranks(recording)
        assumptions: dict[str, None] = {}
        yield from _size_calls(recording, source, assumptions)
        _describe(source, recording, assumptions)

    def refusal(self, source: Source) -> TraceError:
        """Return the error for exports without a message: what was seen, and what to do."""
        (recording,) = (reading for reading in source.readings if isinstance(reading, NsysRecording))
        labels = ", ".join(source.labels)
        functions, libraries, kernels = recording.functions, recording.libraries, recording.kernels
        seen = f"NCCL kernels: {_format_counts(kernels) or 'none'}; NCCL calls: {_format_counts(functions) or 'none'}"
        facts = recording.facts[0]
        if libraries and not functions and not kernels:
            did = ", ".join(count_reasons(libraries))
            why = f"no NCCL in {labels}: other libraries did the work ({did}), which NCCL settings do not affect"
            hint = NCCL_INSTEAD
        elif not functions and not kernels:
            why = f"no NCCL in {labels}: not one NCCL kernel or call among {recording.other_kernels} kernel launches"
            hint = f"record a run on more than one GPU: {_RECORD}"
        elif not functions:
            why = f"no message sizes in {labels}: recorded without NVTX, and kernels carry no size ({seen})"
            hint = f"record NVTX as well: {_RECORD}; then export with --include-blobs=true"
        elif source.left_out:
            why = f"no message in {labels}: {'; '.join(count_reasons(source.left_out))}"
            hint = f"record from the start of the job: {_RECORD}"
        elif recording.undecoded:
            missing = "the export has payloads but not the schemas that explain them"
            why = f"no message sizes in {labels}: {missing} ({seen})"
            hint = f"export again, whole: {_export_command(source.labels[0], facts)}"
        # A switch was off; older exports do not name it, and may have lost the payloads.
        elif recording.payloads or all(f.get("EXPORT_PARAM_INCLUDE_BLOBS") == "true" for f in recording.facts):
            why = f"no message sizes in {labels}: NCCL wrote none; it does since 2.16 ({seen})"
            hint = "update NCCL, or import its own log: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL"
        else:
            switches = ("INCLUDE_BLOBS", "INCLUDE_JSON")
            shown = (f"{key}={facts.get(f'EXPORT_PARAM_{key}', 'not told')[:10]}" for key in switches)
            why = f"no message sizes in {labels}: it was exported without NVTX payloads ({', '.join(shown)}; {seen})"
            hint = f"export the report again: {_export_command(source.labels[0], facts)}"
        return TraceError(why, hint=hint)


def _check_ranks(recording: NsysRecording) -> None:
    """Refuse a rank of a communicator that two processes claim: its calls would count once for each."""
    owners: dict[tuple[int, int], Process] = {}
    for (process, communicator), member in recording.members.items():
        for rank in member.held_ranks if communicator is not None else ():
            owner = owners.setdefault((communicator or 0, rank), process)
            if owner != process:
                raise TraceError(
                    f"rank {rank} of communicator {communicator:#x} is in {owner[0]} and in {process[0]}",
                    hint="give one export per process, all of the same recording",
                )


def _describe(source: Source, recording: NsysRecording, assumptions: Iterable[str]) -> None:
    """Fill in all but the calls."""
    members = recording.members.values()
    source.world_size = max((member.ranks for member in members), default=0)
    source.ranks = {rank for member in members if member.ranks == source.world_size for rank in member.held_ranks}
    source.created = min(recording.dates, default="")
    source.detail["nsys"] = join_distinct(facts.get("EXPORT_PRODUCT_VERSION", "")[:40] for facts in recording.facts)
    source.detail["kernels"] = _format_counts(recording.kernels)
    source.notes += assumptions
    unsized = Counter(recording.functions)
    for (_process, kind), count in recording.sized.items():
        unsized[kind.function] -= count
    if calls := sum(count for function, count in unsized.items() if function in FUNCTIONS):
        source.notes.append(f"{calls} calls have no readable payload: the profile is partial")
    if recording.graphed:
        source.notes.append(
            f"{recording.graphed} NCCL kernels were launched by CUDA graphs, whose calls show once, when captured"
        )
    if source.ranks:
        source.notes += partial_note(len(source.ranks), source.world_size)


def _format_counts(counts: Mapping[Any, int]) -> str:
    """Return counts as text: `AllReduce x12, SendRecv x4`."""
    words: Counter[str] = Counter()
    for word, count in counts.items():
        words[str(word)] += count
    return ", ".join(f"{word} x{count}" for word, count in words.most_common(20))


def _export_command(label: str, facts: Mapping[str, str]) -> str:
    """Return the command that exports a report with its payloads, beside the file that lacks them."""
    stem = PurePath(label).stem
    report = PurePath(facts.get("EXPORT_PARAM_INPUT_FILE", "")).name or f"{stem}.nsys-rep"
    command = ["nsys", "export", "--type", "sqlite", "--include-blobs=true", "--force-overwrite=true", "--output"]
    return shlex.join([*command, f"{stem}-payloads.sqlite", report[:200]])


_MAGIC = b"SQLite format 3\0"
_KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
_MARKS = frozenset({"NVTX_EVENTS", _KERNEL_TABLE, "META_DATA_EXPORT"})
"""Tables of which every export has one."""

_STEP = 100_000
_OPERATIONS_PER_BYTE = 20
"""Operations of SQLite's virtual machine allowed for each byte of the file; a scan needs about one. A statement that
recurses forever, or a join without end, meets this bound instead."""

_CELL_BYTES = 1 << 20
"""Largest cell read; payloads of NCCL have 56 bytes."""

_LIST_COLUMNS = (
    "SELECT t.name, c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c "
    "WHERE t.type = 'table' AND t.sql NOT LIKE 'CREATE VIRTUAL%'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An open export.

    Attributes:
        label: the file's name.
        connection: read-only.
        columns: table -> its columns; real tables alone, no views.
    """

    label: str
    connection: sqlite3.Connection
    columns: Mapping[str, frozenset[str]]

    def select(self, table: str, *columns: str, joined: str = "") -> Iterator[tuple[Any, ...]]:
        """Yield rows of a table; a column that it lacks is NULL, and a table that is missing has no rows.

        Args:
            table: one of the names that the caller knows; never text from outside.
            columns: names of columns, or expressions that begin with a bracket.
            joined: what follows the table's name.
        """
        if table not in self.columns:
            return iter(())
        shown = ", ".join(c if c in self.columns[table] or c.startswith("(") else "NULL" for c in columns)
        # Names of tables and columns are literals of this package: nothing of the file gets into the statement.
        return iter(self.connection.execute(" ".join(("SELECT", shown, "FROM", table, joined))))

    def strings(self, where: str) -> dict[int, str]:
        """Return stored strings by the number under which rows refer to them."""
        rows = self.select("StringIds", "id", "value", joined=f"WHERE {where}")
        return {key: value for key, value in rows if isinstance(key, int) and isinstance(value, str)}


@contextmanager
def open_export(path: Path) -> Iterator[Export]:
    """Open an export for reading.

    Raises:
        TraceError: it cannot be opened, is not an SQLite file, is damaged, or takes too long to read; also
            raised for reads inside the `with` block.
    """
    try:
        with open_regular(path, error=TraceError) as raw:  # SQLite itself waits for a pipe's writer
            size_bytes = os.fstat(raw.fileno()).st_size
        # immutable: no lock and no journal is made beside the file, which may be on a read-only file system.
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            ticks = iter(range(300 + size_bytes * _OPERATIONS_PER_BYTE // _STEP))
            connection.set_progress_handler(lambda: next(ticks, None) is None, _STEP)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _CELL_BYTES)
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            tables = groupby(connection.execute(_LIST_COLUMNS), itemgetter(0))
            columns = {table: frozenset(name for _, name in rows) for table, rows in tables}
            yield Export(label=path.name, connection=connection, columns=columns)
    except OSError as error:
        hint = "check the path and who may read it"
        raise TraceError(f"{path} cannot be read: {error.strerror or error}", hint=hint) from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Of a damaged schema, SQLite quotes bytes in its message that Python's sqlite3 fails to decode.
        hint = "copy the file again, or export the report again with nsys export --type sqlite"
        raise TraceError(f"{path.name} is damaged, cut off or not an SQLite export: {error}", hint=hint) from error


_HEADER = struct.Struct("<QQQQ")
"""Domain, schema, payload size, and the offset of the payload or the size of all, both of which put it behind these 32
bytes (two independent public decoders read the last word differently and agree on this)."""

# NVTX_PAYLOAD_ENTRY_TYPE_*: int, uint64, size_t (nvToolsExtPayload.h).
_FORMATS = {5: "<i", 18: "<Q", 22: "<Q"}
_SIZES = ("Message size [bytes]", "Bytes")
_COMM, _RANKS, _RANK, _DEVICES = "NCCL communicator ID", "No. of ranks", "Rank", "No. of devices"
_WANTED = frozenset({*_SIZES, _COMM, _RANKS, _RANK, _DEVICES})
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,20}")
_JSON_CHARS = 1 << 16

Payload = Mapping[str, int]
"""NCCL's name of a field -> its value. A size is of one rank's count, as given to the call. The hash of a communicator,
the same on all its ranks, comes with NCCL 2.25 and later; ranks and rank with its creation alone; the GPUs of the
process with ncclCommInitAll."""

Schemas = Mapping[tuple[int, int], Mapping[str, tuple[str, int]]]
"""(domain, schema) -> field -> (struct format, offset in bytes)."""


def read_schemas(rows: Iterable[tuple[Any, ...]]) -> Schemas:
    """Return the schemas from rows of (domainId, schemaId, name, type, offset).

    An export of several processes repeats its schemas; one that two processes define differently is dropped,
    because an event does not say which of them it means. An offset that is missing is 0, the first field.
    """
    schemas: dict[tuple[int, int], dict[str, tuple[str, int]]] = {}
    disputed: set[tuple[int, int]] = set()
    for domain, schema, name, kind, offset in rows:
        is_numbered = isinstance(domain, int) and isinstance(schema, int) and isinstance(offset, int | None)
        if is_numbered and name in _WANTED and kind in _FORMATS:
            place = (_FORMATS[kind], offset or 0)
            if schemas.setdefault((domain, schema), {}).setdefault(name, place) != place:
                disputed.add((domain, schema))
    return {key: fields for key, fields in schemas.items() if key not in disputed}


def decode_blob(blob: object, schemas: Schemas) -> Payload:
    """Decode `NVTX_EVENTS.binaryData`, bytes or hexadecimal text; empty where it cannot be decoded."""
    if isinstance(blob, str):  # the column is declared as text, and some tools write it as such
        try:
            blob = bytes.fromhex(blob)
        except ValueError:
            return {}
    if not isinstance(blob, bytes) or len(blob) < _HEADER.size:
        return {}
    domain, schema, size, _where = _HEADER.unpack_from(blob)
    body = blob[_HEADER.size : _HEADER.size + size]
    return {
        name: struct.unpack_from(form, body, offset)[0]
        for name, (form, offset) in schemas.get((domain, schema), {}).items()
        if len(body) == size and 0 <= offset <= size - struct.calcsize(form)
    }


def decode_json(text: object) -> Payload:
    """Decode `NVTX_EVENTS.jsonText`; empty where it is no object with a field of NCCL's."""
    if not isinstance(text, str) or len(text) > _JSON_CHARS:
        return {}
    document = parse_json(text)
    payload: dict[str, int] = {}
    # The fields are in the object itself or, with several payloads, in objects inside it.
    for place in (document, *(document.values() if isinstance(document, dict) else ())):
        for name in _WANTED & place.keys() if isinstance(place, dict) else ():
            value = place[name]
            if isinstance(value, str) and _GROUPED.fullmatch(value.strip()):
                value = value.replace(",", "")  # Nsight shows commas between thousands
            number = parse_int(value)
            if number is not None:
                payload.setdefault(name, number)
    return payload


# 2.7 to 2.18 ncclKernel_AllReduce_RING_LL_Sum_float, since 2.19 ncclDevKernel_AllReduce_Sum_f32_RING_LL, since 2.27
# ncclSymDevKernel_..., since 2.28 ncclSymkDevKernel_...
_KERNEL = re.compile(r"\bnccl(?:Symk?)?(?:Dev)?Kernel_([A-Za-z]+)(?:_(\w+))?")
_COLLECTIVES = {**OPERATIONS, "SendRecv": Collective.SEND_RECV}

_DTYPES = {dtype: dtype for dtype in DTYPE_SIZES} | {"half": "float16", "float": "float32", "double": "float64"}
_DTYPES |= {"bf16": "bfloat16", "f8e4m3": "float8_e4m3", "f8e5m2": "float8_e5m2"}
_DTYPES |= {f"{kind[0]}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 32, 64)}
_DTYPES |= {f"f{bits}": f"float{bits}" for bits in (16, 32, 64)}
"""Parts of kernel names -> our dtypes."""


class CudaKernel(NamedTuple):
    """A kernel's name, read.

    Attributes:
        word: the operation as written, `AllReduce`, `Generic`.
        collective: None where the name is of several.
        dtype: None where the name does not say; kernels that only move bytes have none, or the placeholder int8_t.
    """

    word: str
    collective: Collective | None
    dtype: str | None

    def __str__(self) -> str:
        """Return operation and dtype."""
        return f"{self.word} {self.dtype}" if self.dtype else self.word


def parse_kernel_name(name: str) -> CudaKernel | None:
    """Read a kernel's name; None if it is not NCCL's.

    >>> parse_kernel_name("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)").dtype
    'bfloat16'
    """
    match = _KERNEL.search(name)
    if match is None:
        return None
    collective, parts = _COLLECTIVES.get(match[1]), (match[2] or "").split("_")
    is_reduction = collective is not None and collective.is_reduction
    dtype = next((_DTYPES[part] for part in parts if part in _DTYPES), None) if is_reduction else None
    return CudaKernel(match[1], collective, dtype)


def agreed_dtypes(kernels: Iterable[CudaKernel]) -> dict[Collective, str]:
    """Return the dtype of every reduction whose kernels all name the same one."""
    named: dict[Collective, set[str | None]] = {}
    for kernel in kernels:
        if kernel.collective is not None and kernel.collective.is_reduction:
            named.setdefault(kernel.collective, set()).add(kernel.dtype)
    return {c: dtype for c, dtypes in named.items() if len(dtypes) == 1 and (dtype := next(iter(dtypes))) is not None}


_CALL = re.compile(r"nccl[A-Z]\w{1,60}")
_RANGES = "(59, 60)"
"""Event types of push/pop and start/end ranges (ENUM_NSYS_EVENT_TYPE)."""

Process = tuple[str, int]
"""File and the process's number in it: the thread's number without its lowest 24 bits."""


class CallKind(NamedTuple):
    """Equal calls.

    Attributes:
        function: `ncclAllReduce`, ...
        communicator: its hash, None before NCCL 2.25.
        size_bytes: from the payload.
    """

    function: str
    communicator: int | None
    size_bytes: int


class Membership(NamedTuple):
    """A process in a communicator.

    Attributes:
        ranks: ranks of the communicator.
        held_ranks: ranks of this process; more than one where it drives several GPUs.
    """

    ranks: int
    held_ranks: frozenset[int]


@dataclass(slots=True, kw_only=True)
class NsysRecording:
    """NCCL's calls and kernels in all exports of a job.

    Attributes:
        dates: ISO dates of the recording, as far as known.
        facts: how each was exported, `EXPORT_...` -> value.
        functions: every call by its name, with a payload or without.
        sized: (process, kind) -> calls whose payload has a size.
        members: (process, communicator) -> the process in it.
        payloads: calls with a payload column that holds something.
        undecoded: those of them that could not be decoded.
        kernels: name read -> launches.
        graphed: launches of them that came from a CUDA graph.
        other_kernels: launches of kernels that are not NCCL's.
        libraries: library that communicates without NCCL -> launches of its kernels.
    """

    dates: set[str] = field(default_factory=set)
    facts: list[Mapping[str, str]] = field(default_factory=list)
    functions: Counter[str] = field(default_factory=Counter)
    sized: Counter[tuple[Process, CallKind]] = field(default_factory=Counter)
    members: dict[tuple[Process, int | None], Membership] = field(default_factory=dict)
    payloads: int = 0
    undecoded: int = 0
    kernels: Counter[CudaKernel] = field(default_factory=Counter)
    graphed: int = 0
    other_kernels: int = 0
    libraries: Counter[str] = field(default_factory=Counter)


def _add_export(recording: NsysRecording, export: Export) -> None:
    """Count the calls and kernels of an export."""
    moments = export.select("TARGET_INFO_SESSION_START_TIME", "utcTime", joined="LIMIT 1")
    facts = export.select("META_DATA_EXPORT", "name", "value", joined="WHERE name GLOB 'EXPORT_*'")
    recording.dates |= {day for (moment,) in moments if (day := parse_day(str(moment)))}
    recording.facts.append({str(key): str(value) for key, value in facts})
    names = export.strings("value GLOB '*nccl*'")
    _count_calls(export, names, recording)
    _count_kernels(export, names, recording)


def _count_calls(export: Export, names: Mapping[int, str], recording: NsysRecording) -> None:
    columns = export.columns.get("NVTX_EVENTS", frozenset())
    entries = export.select("NVTX_PAYLOAD_SCHEMA_ENTRIES", "domainId", "schemaId", "name", "type", "offset")
    schemas = read_schemas(entries)
    ways = ["text GLOB 'nccl[A-Z]*'"] if "text" in columns else []
    if names and "textId" in columns:
        ways.append("textId IN (SELECT id FROM StringIds WHERE value GLOB 'nccl[A-Z]*')")
    if not ways:
        return
    kind = f" AND eventType IN {_RANGES}" if "eventType" in columns else ""
    wanted = ("text", "textId", "globalTid", "binaryData", "jsonText", "jsonTextId")
    rows = export.select("NVTX_EVENTS", *wanted, joined=f"WHERE ({' OR '.join(ways)}){kind}")
    for text, text_id, thread, blob, json_text, json_id in rows:
        function = text if isinstance(text, str) else names.get(text_id, "")
        if not _CALL.fullmatch(function):
            continue
        recording.functions[function] += 1
        if json_text is None and json_id is not None:
            stored = export.connection.execute("SELECT value FROM StringIds WHERE id = ?", (json_id,))
            json_text = next((value for (value,) in stored if isinstance(value, str)), None)
        payload = decode_blob(blob, schemas) or decode_json(json_text)
        has_payload = blob is not None or json_text is not None
        recording.payloads += has_payload
        recording.undecoded += has_payload and not payload
        _add_payload(recording, (export.label, thread >> 24 if isinstance(thread, int) else 0), function, payload)


def _add_payload(recording: NsysRecording, process: Process, function: str, payload: Payload) -> None:
    communicator = payload.get(_COMM)
    size_bytes = next((payload[name] for name in _SIZES if name in payload), None)
    if size_bytes is not None:
        recording.sized[process, CallKind(function, communicator, size_bytes)] += 1
    ranks, held = payload.get(_RANKS, 0), frozenset({payload[_RANK]} if _RANK in payload else ())
    if _DEVICES in payload:
        ranks, held = payload[_DEVICES], frozenset(range(max(0, min(payload[_DEVICES], 1024))))
    if not 0 < ranks < 1 << 24:
        return
    before = recording.members.get((process, communicator), Membership(ranks, frozenset()))
    if before.ranks == ranks:
        recording.members[process, communicator] = Membership(ranks, held | before.held_ranks)
    elif communicator is None:
        # Before 2.25 nothing distinguishes communicators: with two sizes, neither is certain.
        recording.members[process, None] = Membership(0, frozenset())


def _count_kernels(export: Export, names: Mapping[int, str], recording: NsysRecording) -> None:
    columns = export.columns.get(_KERNEL_TABLE, frozenset())
    by = ", ".join(column for column in ("demangledName", "shortName") if column in columns)
    graphs = "(count(graphNodeId))" if "graphNodeId" in columns else "(0)"
    grouped = f"GROUP BY {by}" if by else ""
    rows = export.select(_KERNEL_TABLE, "demangledName", "shortName", "(count(*))", graphs, joined=grouped)
    of_kernels = "id IN (SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL)"
    full_names = export.strings(of_kernels) if "demangledName" in by else {}
    for full, short, count, graphed in rows:
        kernel = parse_kernel_name(names.get(full, "")) or parse_kernel_name(names.get(short, ""))
        if kernel is not None:
            recording.kernels[kernel] += count
            recording.graphed += graphed
            continue
        recording.other_kernels += count
        if library := other_library(full_names.get(full, "")):
            recording.libraries[library] += count


FUNCTIONS = {f"nccl{word}": collective for word, collective in OPERATIONS.items()} | {"ncclBcast": Collective.BROADCAST}
"""Function of NCCL -> collective; gather, scatter and what manages communicators make no message."""


def _size_calls(recording: NsysRecording, source: Source, assumptions: dict[str, None]) -> Iterator[Call]:
    """Yield the calls of all processes that make a message.

    The rank of a process is that in its largest communicator, where it holds one rank of it. Calls without a message
    are counted of the process with the most.

    Args:
        assumptions: filled, one sentence each.
    """
    members, dtypes = recording.members, agreed_dtypes(recording.kernels)
    by_process: dict[Process, list[tuple[CallKind, int]]] = {}
    for (process, kind), count in recording.sized.items():
        if kind.function in FUNCTIONS:
            by_process.setdefault(process, []).append((kind, count))
    for process, kinds in sorted(by_process.items()):
        memberships = [member for key, member in members.items() if key[0] == process]
        largest = max(memberships, key=lambda member: member.ranks, default=None)
        rank = next(iter(largest.held_ranks)) if largest and len(largest.held_ranks) == 1 else None
        without_message: Counter[str] = Counter()
        for kind, count in kinds:
            message = _build_message(kind, _find_ranks(kind.communicator, members), dtypes)
            if isinstance(message, str):
                without_message[message] += count
                continue
            member = members.get((process, kind.communicator))
            # A process that drives several GPUs calls once for each of them.
            driven = max(1, len(member.held_ranks)) if member else 1
            assumptions.update(dict.fromkeys(_list_assumptions(message, kind, driven)))
            group, calls = f"{kind.communicator}", max(1, round(count / driven))
            is_receive = kind.function == "ncclRecv"
            yield Call(message=message, rank=rank, lane=process, group=group, count=calls, is_receive=is_receive)
        source.left_out |= without_message


def _find_ranks(communicator: int | None, members: Mapping[tuple[Process, int | None], Membership]) -> int:
    """Return the ranks of a communicator, 0 where not known.

    The hash is the same on all ranks: another process may have recorded the size that one lacks. Calls that name no
    communicator are of any that was created: their size is known where all have the same.
    """
    sizes = [member.ranks for (_process, number), member in members.items() if number == communicator]
    return sizes[0] if sizes and (communicator is not None or len(set(sizes)) == 1) else 0


def _build_message(kind: CallKind, ranks: int, dtypes: Mapping[Collective, str]) -> Message | str:
    collective = FUNCTIONS[kind.function]
    if collective.has_rank_parts and not ranks:
        return f"{kind.function}, whose full size needs the ranks of its group, which the recording does not give"
    size_bytes = kind.size_bytes * (ranks if collective.has_rank_parts else 1)
    dtype = dtypes.get(collective, UNKNOWN_DTYPE)
    if size_bytes % DTYPE_SIZES[dtype]:
        dtype = UNKNOWN_DTYPE
    return build_message(kind.function, collective, size_bytes // DTYPE_SIZES[dtype], dtype, group_size=ranks)


def _list_assumptions(message: Message, kind: CallKind, driven: int) -> list[str]:
    how = f"{message.dtype} according to the names of its kernels"
    if message.dtype == UNKNOWN_DTYPE:
        how = f"counted in bytes, as {UNKNOWN_DTYPE}"
    assumptions = [f"payloads have no dtype: {message.collective} is {how}"]
    if not message.group_size:
        assumptions.append("the creation of a communicator was not recorded: assuming a group of the whole job")
    elif kind.communicator is None:
        assumptions.append(
            "NCCL before 2.25 does not name the communicator of a call: all that were created have "
            f"{message.group_size} ranks"
        )
    if driven > 1:
        assumptions.append(f"a process drives {driven} GPUs: its calls are divided by them")
    if message.collective is Collective.SEND_RECV:
        assumptions.append("all_to_all of PyTorch shows as the sends and receives that it is made of")
    return assumptions
