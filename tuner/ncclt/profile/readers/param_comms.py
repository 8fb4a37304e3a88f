"""PARAM's basic comms traces: a JSON list with one object per communication call of one rank.

Format: facebookresearch/param, train/comms/pt/commsTraceParser.py, `_parseBasicTrace`. Sizes are elements. No public
sample is known; this reader is written from the code that replays such traces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ncclt.errors import TraceError
from ncclt.profile.c10d import MOST_ELEMENTS, RecordedCall, Tensor, convert_calls, count_messages
from ncclt.profile.numbers import MOST_RANKS, as_text, parse_int
from ncclt.profile.rank_files import RankFileReader, RankReading
from ncclt.profile.source import Document, load_json, strip_mark
from ncclt.profile.workload_builder import drop_answered_receives

_KEY = re.compile(rb'"comms"\s*:')
_OTHER_KEYS = (b'"in_msg_size"', b'"startTime_ns"', b'"req"', b'"world_size"', b'"markers"')

# Carries out the sends and receives before it, which are listed on their own.
_BATCH = "batchisendirecv"


class ParamCommsReader(RankFileReader):
    """Reader of PARAM's comms traces."""

    name = "param_comms"
    starts = b"["

    def begins(self, beginning: bytes) -> bool:
        """Return True for a list whose objects name a communication call."""
        text = strip_mark(beginning)
        return text.startswith(b"[") and _KEY.search(text) is not None and any(key in text for key in _OTHER_KEYS)

    def read_rank(self, document: Document) -> RankReading:
        """Read the trace of one rank."""
        rows = load_json(document)
        if not isinstance(rows, list):
            hint = "give the trace that PARAM replays"
            raise TraceError(f"{document.label} is not a PARAM comms trace: it is not a JSON list", hint=hint)
        comms = [row for row in rows if isinstance(row, Mapping) and isinstance(row.get("comms"), str)]
        records = [record for place, row in enumerate(comms) if (record := _record(row, place)).name != _BATCH]
        unknown = len(rows) - len(comms) - sum(isinstance(row, Mapping) and "compute" in row for row in rows)
        calls, notes, group_sizes = convert_calls(records)
        if unknown:
            notes.insert(0, f"left out: {unknown} x entry that is neither communication nor compute")
        return RankReading(
            label=document.label,
            rank=_rank(comms),
            # A trace with one group shows a job of one group; with several, none is known to be all of it.
            world_size=max(group_sizes.values(), default=0) if len({r.group for r in records}) == 1 else 0,
            calls=count_messages(drop_answered_receives(calls)),
            notes=("a comms trace has no durations", *notes),
        )


def _record(row: Mapping[str, Any], place: int) -> RecordedCall:
    dtype = as_text(row.get("dtype"))
    group, ranks = parse_int(row.get("pg_id")), row.get("global_ranks")
    size = len(ranks) if isinstance(ranks, list) and ranks else parse_int(row.get("world_size"), most=MOST_RANKS)
    return RecordedCall(
        name=_word(row),
        # Without a group a call runs in the default one.
        group="default" if group is None else f"pg {group}",
        group_size=size or 0,
        inputs=_tensor(row.get("in_msg_size"), dtype),
        outputs=_tensor(row.get("out_msg_size"), dtype),
        position=place,
    )


def _tensor(elements: object, dtype: str) -> tuple[Tensor, ...]:
    number = parse_int(elements, most=MOST_ELEMENTS)
    return () if number is None else (Tensor(elements=number, dtype=dtype),)


def _word(row: Mapping[str, Any]) -> str:
    return str(row["comms"]).replace("_", "").lower()


def _rank(comms: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the rank that sends or receives; a trace without point-to-point calls does not show its rank."""
    ranks = {
        parse_int(row.get("src_rank" if "send" in _word(row) else "dst_rank"), most=MOST_RANKS)
        for row in comms
        if _word(row) in ("send", "isend", "recv", "irecv")
    }
    return ranks.pop() if len(ranks) == 1 else None
