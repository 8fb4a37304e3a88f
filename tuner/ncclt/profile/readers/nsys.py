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

import json
import os
import re
import shlex
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message
from ncclt.errors import TraceError
from ncclt.profile.nccl_calls import OPERATIONS, UNKNOWN_DTYPE
from ncclt.profile.numbers import parse_int
from ncclt.profile.other_libraries import NCCL_INSTEAD, other_library
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.source import open_regular
from ncclt.profile.workload_builder import count_reasons, join_distinct, parse_day, partial_note

_RECORD = "nsys profile --trace=cuda,nvtx --output=REPORT COMMAND"


class NsysReader(Reader):
    """Reader of SQLite exports of Nsight Systems."""

    name = "nsys"

    def begins(self, beginning: bytes) -> bool:
        """Return True for an SQLite file; `recognises` looks at its tables."""
        return beginning.startswith(_MAGIC)

    def recognises(self, path: Path) -> bool:
        """Return True for an export of Nsight Systems; never raises."""
        return is_export(path)

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls of every process."""
        recordings = []
        for path in source.paths:
            source.labels.append(path.name)
            with open_export(path) as export:
                recordings.append(read_export(export))
        source.readings = recordings
        _check_ranks(recordings)
        assumed: dict[str, None] = {}
        yield from size_calls(recordings, source.left_out, assumed)
        _describe(source, recordings, assumed)

    def refusal(self, source: Source) -> TraceError:
        """Return the error for exports without a message: what was seen, and what to do."""
        return _refusal([r for r in source.readings if isinstance(r, NsysExport)], source.left_out)


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


def _describe(source: Source, recordings: Sequence[NsysExport], assumed: Iterable[str]) -> None:
    """Fill in all but the calls."""
    members = [member for recording in recordings for member in recording.members.values()]
    source.world_size = max((member.ranks for member in members), default=0)
    source.ranks = {rank for member in members if member.ranks == source.world_size for rank in member.mine}
    source.created = min((recording.recorded_on for recording in recordings if recording.recorded_on), default="")
    source.detail["nsys"] = join_distinct(r.facts.get("EXPORT_PRODUCT_VERSION", "")[:40] for r in recordings)
    source.detail["kernels"] = format_counts(_kernel_words(recordings))
    source.notes += assumed
    bare = sum(
        count for recording in recordings for function, count in recording.functions.items() if function in FUNCTIONS
    ) - sum(
        count for recording in recordings for (_p, kind), count in recording.sized.items() if kind.function in FUNCTIONS
    )
    if bare:
        source.notes.append(f"{bare} calls have no readable payload: the profile is partial")
    graphed = sum(recording.graphed for recording in recordings)
    if graphed:
        source.notes.append(
            f"{graphed} NCCL kernels were launched by CUDA graphs, whose calls show once, when captured"
        )
    if source.ranks:
        source.notes += partial_note(len(source.ranks), source.world_size)


def _refusal(recordings: Sequence[NsysExport], left_out: Mapping[str, int]) -> TraceError:
    """Return the error for exports without a message: what was seen, and what to do."""
    labels = ", ".join(recording.label for recording in recordings)
    functions = sum((recording.functions for recording in recordings), Counter[str]())
    kernels = _kernel_words(recordings)
    seen = f"NCCL kernels: {format_counts(kernels) or 'none'}; NCCL calls: {format_counts(functions) or 'none'}"
    libraries = sum((recording.libraries for recording in recordings), Counter[str]())
    if libraries and not functions and not kernels:
        did = ", ".join(count_reasons(libraries))
        return TraceError(
            f"no NCCL in {labels}: other libraries did the work ({did}), which NCCL settings do not affect",
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
        why = "; ".join(count_reasons(left_out))
        return TraceError(f"no message in {labels}: {why}", hint=f"record from the start of the job: {_RECORD}")
    if any(recording.undecoded for recording in recordings):
        return TraceError(
            f"no message sizes in {labels}: the export has payloads but not the schemas that explain them ({seen})",
            hint=f"export again, whole: {_export_command(recordings[0])}",
        )
    # A switch was off; older exports do not name it, and may have lost the payloads.
    is_lossy = any(recording.facts.get("EXPORT_PARAM_INCLUDE_BLOBS", "false") != "true" for recording in recordings)
    if any(recording.payloads for recording in recordings) or not is_lossy:
        return TraceError(
            f"no message sizes in {labels}: NCCL wrote none; it does since 2.16 ({seen})",
            hint="update NCCL, or import its own log: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL",
        )
    switches = ", ".join(
        f"{key}={recordings[0].facts.get(f'EXPORT_PARAM_{key}', 'not told')[:10]}"
        for key in ("INCLUDE_BLOBS", "INCLUDE_JSON")
    )
    return TraceError(
        f"no message sizes in {labels}: it was exported without NVTX payloads ({switches}; {seen})",
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


_MAGIC = b"SQLite format 3\0"
_MARKS = frozenset({"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "META_DATA_EXPORT"})
"""Tables of which every export has one."""

_STEP = 100_000
_OPERATIONS_PER_BYTE = 20
"""Operations of SQLite's virtual machine allowed for each byte of the file; a scan needs about one. A statement that
recurses forever, or a join without end, meets this bound instead."""

_CELL_BYTES = 1 << 20
"""Largest cell read; payloads of NCCL have 56 bytes."""


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
        known = self.columns[table]
        shown = ", ".join(c if c in known or c.startswith("(") else "NULL" for c in columns)
        # Names of tables and columns are literals of this package: nothing of the file gets into the statement.
        return iter(self.connection.execute(" ".join(("SELECT", shown, "FROM", table, joined))))

    def names(self) -> dict[int, str]:
        """Return the strings with NCCL's name in them, by the number under which rows refer to them."""
        return self._strings("WHERE value GLOB '*nccl*'")

    def kernel_names(self) -> dict[int, str]:
        """Return the names of all kernels, of an export that has them, by the same number."""
        return self._strings("WHERE id IN (SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL)")

    def _strings(self, where: str) -> dict[int, str]:
        rows = self.select("StringIds", "id", "value", joined=where)
        return {key: value for key, value in rows if isinstance(key, int) and isinstance(value, str)}

    def facts(self) -> dict[str, str]:
        """Return the settings of the export: name -> value."""
        rows = self.select("META_DATA_EXPORT", "name", "value", joined="WHERE name GLOB 'EXPORT_*'")
        return {str(key): str(value) for key, value in rows}


def is_export(path: Path) -> bool:
    """Return True if a file is a SQLite export of Nsight Systems; never raises."""
    try:
        with open_regular(path, error=TraceError) as raw:
            if raw.read(len(_MAGIC)) != _MAGIC:
                return False
        with open_export(path) as export:
            return bool(_MARKS & export.columns.keys())
    except (OSError, TraceError):
        return False


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
            _bound(connection, size_bytes)
            yield Export(label=path.name, connection=connection, columns=_columns(connection))
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read: {error.strerror or error}", hint="check the path and who may read it"
        ) from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Of a damaged schema, SQLite quotes bytes in its message that Python's sqlite3 fails to decode.
        raise TraceError(
            f"{path.name} is damaged, cut off or not an SQLite export: {error}",
            hint="copy the file again, or export the report again with nsys export --type sqlite",
        ) from error


def _bound(connection: sqlite3.Connection, size_bytes: int) -> None:
    budget = 300 + size_bytes * _OPERATIONS_PER_BYTE // _STEP
    used = 0

    def is_over() -> bool:
        nonlocal used
        used += 1
        return used > budget

    connection.set_progress_handler(is_over, _STEP)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _CELL_BYTES)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")


def _columns(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    query = (
        "SELECT t.name, c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c "
        "WHERE t.type = 'table' AND t.sql NOT LIKE 'CREATE VIRTUAL%'"
    )
    found: dict[str, set[str]] = {}
    for table, column in connection.execute(query):
        found.setdefault(table, set()).add(column)
    return {table: frozenset(columns) for table, columns in found.items()}


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

Schemas = Mapping[tuple[int, int], Mapping[str, tuple[str, int]]]
"""(domain, schema) -> field -> (struct format, offset in bytes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The content of a call's payload; None for what it lacks.

    Attributes:
        size_bytes: bytes of one rank's count, as given to the call.
        communicator: hash of the communicator, the same on all its ranks; NCCL 2.25 and later.
        ranks: ranks of the communicator; on its creation alone.
        rank: this rank in it; on its creation alone.
        devices: GPUs of the process, on ncclCommInitAll alone.
    """

    size_bytes: int | None = None
    communicator: int | None = None
    ranks: int | None = None
    rank: int | None = None
    devices: int | None = None


def read_schemas(rows: Iterable[tuple[Any, ...]]) -> Schemas:
    """Return the schemas from rows of (domainId, schemaId, name, type, offset).

    An export of several processes repeats its schemas; one that two processes define differently is dropped,
    because an event does not say which of them it means. An offset that is missing is 0, the first field.
    """
    found: dict[tuple[int, int], dict[str, tuple[str, int]]] = {}
    disputed: set[tuple[int, int]] = set()
    for domain, schema, name, kind, offset in rows:
        if not (isinstance(domain, int) and isinstance(schema, int)) or name not in _WANTED or kind not in _FORMATS:
            continue
        if not isinstance(offset, int | None):
            continue
        place = (_FORMATS[kind], offset or 0)
        if found.setdefault((domain, schema), {}).setdefault(str(name), place) != place:
            disputed.add((domain, schema))
    return {key: fields for key, fields in found.items() if key not in disputed}


def decode_blob(blob: object, schemas: Schemas) -> Payload | None:
    """Decode `NVTX_EVENTS.binaryData`, bytes or hexadecimal text; None where it cannot be decoded."""
    if isinstance(blob, str):  # the column is declared as text, and some tools write it as such
        try:
            blob = bytes.fromhex(blob)
        except ValueError:
            return None
    if not isinstance(blob, bytes) or len(blob) < _HEADER.size:
        return None
    domain, schema, size, _where = _HEADER.unpack_from(blob)
    body = blob[_HEADER.size : _HEADER.size + size]
    fields = schemas.get((domain, schema))
    if not fields or len(body) != size:
        return None
    values = {
        name: struct.unpack_from(form, body, offset)[0]
        for name, (form, offset) in fields.items()
        if 0 <= offset <= len(body) - struct.calcsize(form)
    }
    return _payload(values)


def decode_json(text: object) -> Payload | None:
    """Decode `NVTX_EVENTS.jsonText`; None where it is no object with a field of NCCL's."""
    if not isinstance(text, str) or len(text) > _JSON_CHARS:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    values: dict[str, int] = {}
    # The fields are in the object itself or, with several payloads, in objects inside it.
    for place in (document, *(document.values() if isinstance(document, dict) else ())):
        if isinstance(place, dict):
            for name in _WANTED & place.keys():
                value = place[name]
                if isinstance(value, str) and _GROUPED.fullmatch(value.strip()):
                    value = value.replace(",", "")  # Nsight shows commas between thousands
                number = parse_int(value)
                if number is not None:
                    values.setdefault(name, number)
    return _payload(values)


def _payload(values: Mapping[str, int]) -> Payload | None:
    if not values:
        return None
    return Payload(
        size_bytes=next((values[name] for name in _SIZES if name in values), None),
        communicator=values.get(_COMM),
        ranks=values.get(_RANKS),
        rank=values.get(_RANK),
        devices=values.get(_DEVICES),
    )


# 2.7 to 2.18 ncclKernel_AllReduce_RING_LL_Sum_float, since 2.19 ncclDevKernel_AllReduce_Sum_f32_RING_LL, since 2.27
# ncclSymDevKernel_..., since 2.28 ncclSymkDevKernel_...
_KERNEL = re.compile(r"\bnccl(?:Symk?)?(?:Dev)?Kernel_([A-Za-z]+)(?:_(\w+))?")
_COLLECTIVES = {**OPERATIONS, "SendRecv": Collective.SEND_RECV}
REDUCTIONS = frozenset({Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE})
"""The others move bytes: their kernels have no dtype, or the placeholder int8_t."""

_DTYPES = {
    "f16": "float16",
    "half": "float16",
    "f32": "float32",
    "float": "float32",
    "f64": "float64",
    "double": "float64",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "u8": "uint8",
    "u32": "uint32",
    "u64": "uint64",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaKernel:
    """A kernel's name, read.

    Attributes:
        word: the operation as written, `AllReduce`, `Generic`.
        collective: None where the name is of several.
        dtype: None where the name does not say.
    """

    word: str
    collective: Collective | None
    dtype: str | None


def parse_kernel_name(name: str) -> CudaKernel | None:
    """Read a kernel's name; None if it is not NCCL's.

    >>> parse_kernel_name("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)").dtype
    'bfloat16'
    """
    found = _KERNEL.search(name)
    if found is None:
        return None
    collective = _COLLECTIVES.get(found[1])
    dtype = None
    if collective in REDUCTIONS:
        dtype = next((_DTYPES[part] for part in (found[2] or "").split("_") if part in _DTYPES), None)
    return CudaKernel(word=found[1], collective=collective, dtype=dtype)


def agreed_dtypes(kernels: Iterable[CudaKernel]) -> dict[Collective, str]:
    """Return the dtype of every reduction whose kernels all name the same one."""
    named: dict[Collective, set[str | None]] = {}
    for kernel in kernels:
        if kernel.collective in REDUCTIONS:
            named.setdefault(kernel.collective, set()).add(kernel.dtype)
    return {c: dtype for c, dtypes in named.items() if len(dtypes) == 1 and (dtype := next(iter(dtypes))) is not None}


def format_counts(counts: Counter[str]) -> str:
    """Return counts as text: `AllReduce x12, SendRecv x4`."""
    return ", ".join(f"{word} x{count}" for word, count in counts.most_common(20))


_CALL = re.compile(r"nccl[A-Z]\w{1,60}")
_RANGES = "(59, 60)"
"""Event types of push/pop and start/end ranges (ENUM_NSYS_EVENT_TYPE)."""

Process = tuple[str, int]
"""File and the process's number in it: the thread's number without its lowest 24 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CallKind:
    """Calls that are alike.

    Attributes:
        function: `ncclAllReduce`, ...
        communicator: its hash, None before NCCL 2.25.
        size_bytes: from the payload.
    """

    function: str
    communicator: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A process in a communicator.

    Attributes:
        ranks: ranks of the communicator.
        mine: ranks that this process holds; more than one where it drives several GPUs.
    """

    ranks: int
    mine: frozenset[int]


@dataclass(slots=True, kw_only=True)
class NsysExport:
    """NCCL's calls and kernels in one export.

    Attributes:
        label: the file's name.
        recorded_on: ISO date of the recording, empty where unknown.
        facts: how it was exported, `EXPORT_...` -> value.
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

    label: str
    recorded_on: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    functions: Counter[str] = field(default_factory=Counter)
    sized: Counter[tuple[Process, CallKind]] = field(default_factory=Counter)
    members: dict[tuple[Process, int | None], Membership] = field(default_factory=dict)
    payloads: int = 0
    undecoded: int = 0
    kernels: Counter[CudaKernel] = field(default_factory=Counter)
    graphed: int = 0
    other_kernels: int = 0
    libraries: Counter[str] = field(default_factory=Counter)


def read_export(export: Export) -> NsysExport:
    """Count the calls and kernels of an export."""
    dates = export.select("TARGET_INFO_SESSION_START_TIME", "utcTime", joined="LIMIT 1")
    recording = NsysExport(
        label=export.label, recorded_on=next((parse_day(str(moment)) for (moment,) in dates), ""), facts=export.facts()
    )
    names = export.names()
    _count_calls(export, names, recording)
    _count_kernels(export, names, recording)
    return recording


def _count_calls(export: Export, names: Mapping[int, str], recording: NsysExport) -> None:
    columns = export.columns.get("NVTX_EVENTS", frozenset())
    schemas = read_schemas(
        export.select("NVTX_PAYLOAD_SCHEMA_ENTRIES", "domainId", "schemaId", "name", "type", "offset")
    )
    by_id = ["textId IN (SELECT id FROM StringIds WHERE value GLOB 'nccl[A-Z]*')"] if "textId" in columns else []
    ways = (by_id if names else []) + (["text GLOB 'nccl[A-Z]*'"] if "text" in columns else [])
    if not ways:
        return
    kind = f" AND eventType IN {_RANGES}" if "eventType" in columns else ""
    rows = export.select(
        "NVTX_EVENTS",
        "text",
        "textId",
        "globalTid",
        "binaryData",
        "jsonText",
        "jsonTextId",
        joined=f"WHERE ({' OR '.join(ways)}){kind}",
    )
    for text, text_id, thread, blob, json_text, json_id in rows:
        function = text if isinstance(text, str) else names.get(text_id, "")
        if not _CALL.fullmatch(function):
            continue
        recording.functions[function] += 1
        if json_text is None and json_id is not None:
            stored = export.connection.execute("SELECT value FROM StringIds WHERE id = ?", (json_id,))
            json_text = next((value for (value,) in stored if isinstance(value, str)), None)
        if blob is None and json_text is None:
            continue
        recording.payloads += 1
        payload = decode_blob(blob, schemas) or decode_json(json_text)
        if payload is None:
            recording.undecoded += 1
            continue
        process = (recording.label, thread >> 24 if isinstance(thread, int) else 0)
        _take(recording, process, function, payload)


def _take(recording: NsysExport, process: Process, function: str, payload: Payload) -> None:
    if payload.size_bytes is not None:
        kind = CallKind(function=function, communicator=payload.communicator, size_bytes=payload.size_bytes)
        recording.sized[process, kind] += 1
    ranks, mine = payload.ranks, frozenset(() if payload.rank is None else (payload.rank,))
    if payload.devices is not None:
        ranks, mine = payload.devices, frozenset(range(max(0, min(payload.devices, 1024))))
    if ranks is None or not 0 < ranks < 1 << 24:
        return
    before = recording.members.get((process, payload.communicator))
    if before is None or before.ranks == ranks:
        held = mine | (before.mine if before else frozenset())
        recording.members[process, payload.communicator] = Membership(ranks=ranks, mine=held)
    elif payload.communicator is None:
        # Before 2.25 nothing distinguishes communicators: with two sizes, neither is certain.
        recording.members[process, None] = Membership(ranks=0, mine=frozenset())


def _count_kernels(export: Export, names: Mapping[int, str], recording: NsysExport) -> None:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    columns = export.columns.get(table, frozenset())
    by = ", ".join(column for column in ("demangledName", "shortName") if column in columns)
    graphs = "(count(graphNodeId))" if "graphNodeId" in columns else "(0)"
    rows = export.select(
        table, "demangledName", "shortName", "(count(*))", graphs, joined=f"GROUP BY {by}" if by else ""
    )
    every = export.kernel_names() if "demangledName" in columns else {}
    for full, short, count, graphed in rows:
        kernel = parse_kernel_name(names.get(full, "")) or parse_kernel_name(names.get(short, ""))
        if kernel is None:
            recording.other_kernels += count
            if library := other_library(every.get(full, "")):
                recording.libraries[library] += count
        else:
            recording.kernels[kernel] += count
            recording.graphed += graphed


FUNCTIONS = {f"nccl{word}": collective for word, collective in OPERATIONS.items()} | {"ncclBcast": Collective.BROADCAST}
"""Function of NCCL -> collective; gather, scatter and what manages communicators make no message."""


def size_calls(recordings: Sequence[NsysExport], left_out: Counter[str], assumed: dict[str, None]) -> Iterator[Call]:
    """Yield the calls of all processes that make a message.

    The rank of a process is that in its largest communicator, where it holds one rank of it.

    Args:
        left_out: filled with the calls that made no message, of the process with the most.
        assumed: filled with the assumptions, one sentence each.
    """
    members = {key: member for recording in recordings for key, member in recording.members.items()}
    dtypes = agreed_dtypes(kernel for recording in recordings for kernel in recording.kernels)
    by_process: dict[Process, list[tuple[CallKind, int]]] = {}
    for recording in recordings:
        for (process, kind), count in recording.sized.items():
            by_process.setdefault(process, []).append((kind, count))
    for process, kinds in sorted(by_process.items()):
        held = [member for (other, _communicator), member in members.items() if other == process]
        largest = max(held, key=lambda member: member.ranks, default=None)
        rank = next(iter(largest.mine)) if largest and len(largest.mine) == 1 else None
        without_message: Counter[str] = Counter()
        for kind, count in kinds:
            if kind.function not in FUNCTIONS:
                continue
            made = _message(kind, _find_ranks(kind.communicator, members), dtypes)
            if isinstance(made, str):
                without_message[made] += count
                continue
            mine = members.get((process, kind.communicator))
            # A process that drives several GPUs calls once for each of them.
            driven = max(1, len(mine.mine)) if mine else 1
            assumed.update(dict.fromkeys(_assumptions(made, kind, driven)))
            yield Call(
                message=made,
                rank=rank,
                lane=process,
                group=f"{kind.communicator}",
                count=max(1, round(count / driven)),
                is_receive=kind.function == "ncclRecv",
            )
        left_out |= without_message


def _find_ranks(communicator: int | None, members: Mapping[tuple[Process, int | None], Membership]) -> int:
    """Return the ranks of a communicator, 0 where not known.

    The hash is the same on all ranks: another process may have recorded the size that one lacks. Calls that name no
    communicator are of any that was created: their size is known where all have the same.
    """
    sizes = [member.ranks for (_process, other), member in members.items() if other == communicator]
    return sizes[0] if sizes and (communicator is not None or len(set(sizes)) == 1) else 0


def _message(kind: CallKind, ranks: int, dtypes: Mapping[Collective, str]) -> Message | str:
    collective = FUNCTIONS[kind.function]
    if not 0 < kind.size_bytes <= MOST_BYTES:
        return f"{kind.function} of {'0' if not kind.size_bytes else 'impossibly many'} bytes"
    if collective.has_rank_parts and not ranks:
        return f"{kind.function}, whose full size needs the ranks of its group, which the recording does not give"
    size_bytes = kind.size_bytes * (ranks if collective.has_rank_parts else 1)
    if size_bytes > MOST_BYTES:
        return f"{kind.function} of impossibly many bytes"
    dtype = dtypes.get(collective, UNKNOWN_DTYPE)
    return Message(
        collective=collective,
        dtype=dtype if size_bytes % DTYPE_SIZES[dtype] == 0 else UNKNOWN_DTYPE,
        size_bytes=size_bytes,
        group_size=ranks,
    )


def _assumptions(message: Message, kind: CallKind, driven: int) -> list[str]:
    how = f"{message.dtype} according to the names of its kernels"
    if message.dtype == UNKNOWN_DTYPE:
        how = f"counted in bytes, as {UNKNOWN_DTYPE}"
    assumed = [f"payloads have no dtype: {message.collective} is {how}"]
    if not message.group_size:
        assumed.append("the creation of a communicator was not recorded: assuming a group of the whole job")
    elif kind.communicator is None:
        assumed.append(
            "NCCL before 2.25 does not name the communicator of a call: all that were created have "
            f"{message.group_size} ranks"
        )
    if driven > 1:
        assumed.append(f"a process drives {driven} GPUs: its calls are divided by them")
    if message.collective is Collective.SEND_RECV:
        assumed.append("all_to_all of PyTorch shows as the sends and receives that it is made of")
    return assumed
