"""The NVTX payloads of NCCL's calls: message size, communicator, ranks.

Source: NVIDIA/nccl, src/collectives.cc of 2.16 to 2.24 (`Message size [bytes]` or `Bytes` first, no communicator) and
src/include/nvtx_payload_schemas.h of 2.25 and later (`NCCL communicator ID` first). Both layouts are read by the schema
that the export holds, never by guessing.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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


def schemas_of(rows: Iterable[tuple[Any, ...]]) -> Schemas:
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


def payload_of_blob(blob: object, schemas: Schemas) -> Payload | None:
    """Decode `NVTX_EVENTS.binaryData`, bytes or hexadecimal text; None where it cannot be decoded."""
    data = _bytes(blob)
    if data is None or len(data) < _HEADER.size:
        return None
    domain, schema, size, _where = _HEADER.unpack_from(data)
    body = data[_HEADER.size : _HEADER.size + size]
    fields = schemas.get((domain, schema))
    if not fields or len(body) != size:
        return None
    values = {
        name: struct.unpack_from(form, body, offset)[0]
        for name, (form, offset) in fields.items()
        if 0 <= offset <= len(body) - struct.calcsize(form)
    }
    return _payload(values)


def payload_of_json(text: object) -> Payload | None:
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
                number = _integer(place[name])
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


def _bytes(blob: object) -> bytes | None:
    if isinstance(blob, str):  # the column is declared as text, and some tools write it as such
        try:
            return bytes.fromhex(blob)
        except ValueError:
            return None
    return blob if isinstance(blob, bytes) else None


def _integer(value: object) -> int | None:
    """Return a whole number, also as text and with the commas that Nsight shows between thousands."""
    if isinstance(value, str) and _GROUPED.fullmatch(value.strip()):
        return int(value.replace(",", ""))
    return value if isinstance(value, int) and not isinstance(value, bool) else None
