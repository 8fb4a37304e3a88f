"""What a Flight Recorder dump says: its version, its groups and its entries."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ncclt.profile.readers.kineto.shapes import Tensor
from ncclt.profile.readers.param_comms.calls import MOST_ELEMENTS, MOST_RANKS, RecordedCall, counted

_MOST_DIMENSIONS = 64  # at::kDimVectorMaxSize and beyond: no tensor has more
_OWN_RANK = re.compile(r":(?:send|recv) (\d{1,9})(?:->|<-)\d")
_RANK_IN_NAME = re.compile(r"rank_?(\d{1,7})(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpGroup:
    """A process group of `pg_config`: its global ranks, empty where not listed."""

    description: str
    ranks: tuple[int, ...]


def entries_of(dump: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries that are objects and name an operation."""
    entries = dump.get("entries")
    found = entries if isinstance(entries, list | tuple) else ()
    return [entry for entry in found if isinstance(entry, Mapping) and isinstance(entry.get("profiling_name"), str)]


def groups_of(dump: Mapping[str, Any]) -> dict[str, DumpGroup]:
    """Return name -> group; `ranks` is a list written as text, or a list."""
    config = dump.get("pg_config")
    found: dict[str, DumpGroup] = {}
    for key, row in config.items() if isinstance(config, Mapping) else ():
        if isinstance(key, str) and isinstance(row, Mapping):
            description = row.get("desc")
            found[key] = DumpGroup(
                description=description if isinstance(description, str) else "", ranks=_ranks(row.get("ranks"))
            )
    return found


def group_of(entry: Mapping[str, Any], groups: Mapping[str, DumpGroup]) -> DumpGroup | None:
    """Return the group of an entry, by its name; the only group there is where the names do not meet (gloo)."""
    known = groups.get(_group_name(entry))
    if known is None and len(groups) == 1:
        return next(iter(groups.values()))
    return known


def call_of(entry: Mapping[str, Any], groups: Mapping[str, DumpGroup]) -> RecordedCall:
    """Return the call that an entry shows."""
    group = group_of(entry, groups)
    place = counted(entry.get("pg_id"), MOST_RANKS)
    duration_ms = entry.get("duration_ms")
    timed = isinstance(duration_ms, int | float) and 0 < duration_ms < 1e12
    return RecordedCall(
        name=entry["profiling_name"],
        # The number distinguishes groups even where the name is empty.
        group=f"{place}/{_group_name(entry)}" if place is not None else _group_name(entry),
        group_size=len(group.ranks) if group else 0,
        inputs=_tensors(entry.get("input_sizes"), entry.get("input_dtypes")),
        outputs=_tensors(entry.get("output_sizes"), entry.get("output_dtypes")),
        position=counted(entry.get("record_id")) or 0,
        duration_us=float(duration_ms) * 1e3 if timed and duration_ms is not None else None,
    )


def world_size_of(groups: Mapping[str, DumpGroup]) -> int:
    """Return the ranks of the default group, or of the only one; 0 where neither is listed."""
    default = [group for name, group in groups.items() if group.description == "default_pg" or name == "0"]
    chosen = default or (list(groups.values()) if len(groups) == 1 else [])
    return max((len(group.ranks) for group in chosen), default=0)


def rank_of(entries: list[Mapping[str, Any]], groups: Mapping[str, DumpGroup], label: str) -> tuple[int | None, str]:
    """Return the rank of a dump and where it is read from.

    The content tells it by point-to-point calls alone (`nccl:send 0->1`, numbers inside the group). PyTorch puts the
    rank into the file's name, from which its own analyser (torch.distributed.flight_recorder) takes it.
    """
    for entry in entries:
        own, group = _OWN_RANK.search(entry["profiling_name"][:200]), group_of(entry, groups)
        if own and group and int(own[1]) < len(group.ranks):
            return group.ranks[int(own[1])], ""
    named = _RANK_IN_NAME.findall(label.rsplit(":", 1)[-1])
    return (int(named[-1]), "the rank is read from the file's name: the dump does not hold it") if named else (None, "")


def _group_name(entry: Mapping[str, Any]) -> str:
    pair = entry.get("process_group")
    if isinstance(pair, list | tuple) and pair and isinstance(pair[0], str):
        return pair[0]
    return ""


def _ranks(value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        # A list that was shortened for printing does not show how many ranks there are.
        return () if "..." in value else tuple(int(n) for n in re.findall(r"\d{1,9}", value))
    if isinstance(value, list | tuple):
        ranks = tuple(counted(n, MOST_RANKS) for n in value)
        return tuple(n for n in ranks if n is not None) if None not in ranks else ()
    return ()


def _tensors(sizes: object, dtypes: object) -> tuple[Tensor, ...]:
    """Return the tensors of one side; a dtype is empty where the dump has none (torch 2.3)."""
    if not isinstance(sizes, list | tuple):
        return ()
    names = dtypes if isinstance(dtypes, list | tuple) else ()
    found = []
    for place, shape in enumerate(sizes):
        elements = _elements(shape)
        if elements is None:
            return ()
        dtype = names[place] if place < len(names) else ""
        found.append(Tensor(elements=elements, dtype=dtype if isinstance(dtype, str) else ""))
    return tuple(found)


def _elements(shape: object) -> int | None:
    if not isinstance(shape, list | tuple) or len(shape) > _MOST_DIMENSIONS:
        return None
    dimensions = [counted(n) for n in shape]
    if any(n is None for n in dimensions):
        return None
    elements = math.prod(n for n in dimensions if n is not None)
    return elements if elements <= MOST_ELEMENTS else None
