"""NCCL's calls and kernels in an export, counted by process."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ncclt.profile.other_libraries import other_library
from ncclt.profile.readers.nsys.file import Export
from ncclt.profile.readers.nsys.kernels import Kernel, kernel_of
from ncclt.profile.readers.nsys.payload import Payload, payload_of_blob, payload_of_json, schemas_of
from ncclt.profile.reading import day_in

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
    """What one export holds of NCCL.

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
    kernels: Counter[Kernel] = field(default_factory=Counter)
    graphed: int = 0
    other_kernels: int = 0
    libraries: Counter[str] = field(default_factory=Counter)


def recording_of(export: Export) -> NsysExport:
    """Count the calls and kernels of an export."""
    dates = export.select("TARGET_INFO_SESSION_START_TIME", "utcTime", joined="LIMIT 1")
    recording = NsysExport(
        label=export.label,
        recorded_on=next((day_in(str(moment)) for (moment,) in dates), ""),
        facts=export.facts(),
    )
    names = export.names()
    _count_calls(export, names, recording)
    _count_kernels(export, names, recording)
    return recording


def _count_calls(export: Export, names: Mapping[int, str], recording: NsysExport) -> None:
    columns = export.columns.get("NVTX_EVENTS", frozenset())
    schemas = schemas_of(export.select("NVTX_PAYLOAD_SCHEMA_ENTRIES", "domainId", "schemaId", "name", "type", "offset"))
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
        told = json_text if json_text is not None or json_id is None else _json_by_id(export, json_id)
        if blob is None and told is None:
            continue
        recording.payloads += 1
        payload = payload_of_blob(blob, schemas) or payload_of_json(told)
        if payload is None:
            recording.undecoded += 1
            continue
        process = (recording.label, thread >> 24 if isinstance(thread, int) else 0)
        _take(recording, process, function, payload)


def _json_by_id(export: Export, number: object) -> str | None:
    rows = export.connection.execute("SELECT value FROM StringIds WHERE id = ?", (number,))
    return next((value for (value,) in rows if isinstance(value, str)), None)


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
        kernel = kernel_of(names.get(full, "")) or kernel_of(names.get(short, ""))
        if kernel is None:
            recording.other_kernels += count
            if library := other_library(every.get(full, "")):
                recording.libraries[library] += count
        else:
            recording.kernels[kernel] += count
            recording.graphed += graphed
