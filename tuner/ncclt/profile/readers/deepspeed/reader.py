"""DeepSpeed's comms logger: tables of log_summary, verbose lines, and log_summary(return_dict=True) as JSON.

Sizes in text are rounded to two decimals of their unit, those of the dictionary are exact. An all_gather shows the
part of one rank and a reduce_scatter the full buffer, because DeepSpeed logs the tensor handed in. Only calls through
deepspeed.comm are seen, and none tells its dtype or group.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ncclt.core.message import MOST_BYTES, Collective, Message
from ncclt.core.workload import WHOLE_FILE, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.ranks import RankFile, check_one_job
from ncclt.profile.readers.deepspeed.rows import CommsLog, LogRow, read_dictionary, read_text
from ncclt.profile.readers.nccl_log.lines import LOGGED_CALL, check_distinct
from ncclt.profile.readers.nccl_log.ranks import UNKNOWN_DTYPE
from ncclt.profile.reading import all_of, left_out_notes, reasons, workload_of_roles
from ncclt.profile.roles import RankMessages, find_roles
from ncclt.profile.source import Document, any_head, documents, load_json

name = "deepspeed"

_MARK = re.compile(rb"Comm\. Op\s{1,40}Message Size\s{1,40}Count|comm op: [a-z]|\"(?:tput|busbw)_avg_gbps\"")

_OPERATIONS: dict[str, Collective] = {
    **dict.fromkeys(("all_reduce", "all_reduce_coalesced", "inference_all_reduce"), Collective.ALL_REDUCE),
    **dict.fromkeys(
        ("all_gather", "all_gather_base", "all_gather_into_tensor", "all_gather_coalesced"), Collective.ALL_GATHER
    ),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_base", "reduce_scatter_tensor"), Collective.REDUCE_SCATTER),
    **dict.fromkeys(("all_to_all", "all_to_all_single"), Collective.ALL_TO_ALL),
    **dict.fromkeys(("send", "isend", "recv", "irecv"), Collective.SEND_RECV),
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
}
"""Names of deepspeed/comm/comm.py; those in `_base` are from before March 2023."""

_SCALED = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
"""Where DeepSpeed's busbw is tput x (n - 1)/n of the whole job (calc_bw_log of deepspeed/utils/comms_logging.py)."""


def recognises(path: Path) -> bool:
    """Return whether a file has output of the comms logger near its beginning, and no calls logged by NCCL."""
    return any_head(path, _MARK.search) and not any_head(path, LOGGED_CALL.search)


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the logs of one job.

    Raises:
        TraceError: damaged, no output of the comms logger, several jobs, or a rank twice.
    """
    check_distinct(paths)
    logs = sorted((_read(d) for path in paths for d in documents(path)), key=lambda log: log.label)
    check_one_job([RankFile(label=log.label, ranks=tuple(log.rows)) for log in logs])
    world_size = _world_size(logs)
    left_out: Counter[str] = Counter()
    views: list[RankMessages] = []
    times: dict[Message, float] = {}
    for rank, rows in ((rank, rows) for log in logs for rank, rows in log.rows.items()):
        calls: Counter[tuple[str, Message]] = Counter()
        for row, message in _messages(rows, world_size, left_out):
            calls["", message] += row.calls
            if row.time_us > 0:
                times[message] = min(row.time_us, times.get(message, row.time_us))
        views.append(RankMessages(rank=rank, calls=calls))
    if not any(view.calls for view in views):
        raise _nothing(logs, left_out)
    return workload_of_roles(name, find_roles(views, times), _provenance(logs, world_size, left_out))


def _read(document: Document) -> CommsLog:
    if not document.stream.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return read_text(document)
    content = load_json(document)
    return read_dictionary(document.label, content if isinstance(content, Mapping) else {})


def _messages(rows: Sequence[LogRow], world_size: int, left_out: Counter[str]) -> Iterator[tuple[LogRow, Message]]:
    """Yield the rows that make messages; a receive counts where the rank sends nothing."""
    sends = any(row.operation in ("send", "isend") for row in rows)
    for row in rows:
        collective = _OPERATIONS.get(row.operation)
        if sends and row.operation in ("recv", "irecv"):
            continue
        size = row.size_bytes * (world_size if collective is Collective.ALL_GATHER else 1)
        if collective is None:
            left_out[f"{row.operation}, which ncclt has no message for"] += row.calls
        elif collective is Collective.ALL_GATHER and not world_size:
            left_out[f"{row.operation} of {row.size_bytes} bytes per rank: the number of ranks is not recorded"] += (
                row.calls
            )
        elif not 0 < size <= MOST_BYTES:
            left_out[f"{row.operation} of {size} bytes"] += row.calls
        else:
            yield row, Message(collective=collective, dtype=UNKNOWN_DTYPE, size_bytes=size)


def _world_size(logs: Sequence[CommsLog]) -> int:
    """Return the ranks of the job: as recorded, else computed from the two bandwidths, else those started, else 0.

    busbw / tput = (n - 1)/n, so n = tput / (tput - busbw); both are printed with two decimals, so every row gives a
    range for n, and only a single whole number inside all of them counts.

    Raises:
        TraceError: the files tell different sizes.
    """
    told = {log.world_size for log in logs if log.world_size}
    if len(told) > 1:
        shown = " and ".join(str(size) for size in sorted(told))
        raise TraceError(f"the files are of different jobs, of {shown} ranks", hint="import each job on its own")
    if told:
        return told.pop()
    low, high = 2.0, math.inf
    for row in (row for log in logs for rows in log.rows.values() for row in rows):
        if _OPERATIONS.get(row.operation) in _SCALED and row.busbw_gbps > 0.01:
            smallest = (row.busbw_gbps - 0.005) / (row.tput_gbps + 0.005)
            largest = (row.busbw_gbps + 0.005) / max(row.tput_gbps - 0.005, 1e-9)
            low = max(low, 1 / (1 - smallest) if smallest < 1 else math.inf)
            high = min(high, 1 / (1 - largest) if largest < 1 else math.inf)
    first = math.ceil(low) if low <= high < math.inf else 0
    return first if first and first <= high < first + 1 else max(log.started_ranks for log in logs)


def _nothing(logs: Sequence[CommsLog], left_out: Counter[str]) -> TraceError:
    where = all_of([log.label for log in logs])
    if any(log.rows or log.tables or log.torn for log in logs):
        return TraceError(
            f"no collectives in {where}: {'; '.join(reasons(left_out)) or 'its table has no row that can be read'}",
            hint="dump deepspeed.comm.log_summary(return_dict=True) as JSON: it has exact sizes and the ranks",
        )
    return TraceError(
        f"{where} holds no output of DeepSpeed's comms logger",
        hint='set "comms_logger": {"enabled": true} and call deepspeed.comm.log_summary() at the end',
    )


def _provenance(logs: Sequence[CommsLog], world_size: int, left_out: Counter[str]) -> Provenance:
    ranks = {rank for log in logs for rank in log.rows if rank is not None}
    read_from = dict.fromkeys(log.kind for log in logs if log.rows)
    return Provenance(
        source=name,
        created=min((log.created for log in logs if log.created), default=""),
        detail={"files": ", ".join(log.label for log in logs), "read_from": ", ".join(read_from)},
        world_size=world_size,
        ranks_read=tuple(sorted(ranks)),
        notes=_notes(logs, world_size, left_out),
        whole_file=True,
    )


def _notes(logs: Sequence[CommsLog], world_size: int, left_out: Counter[str]) -> tuple[str, ...]:
    notes = [
        WHOLE_FILE,
        f"it has no dtype: messages are given in bytes, as {UNKNOWN_DTYPE}",
        "it has no groups: every message is assumed to be of the whole job",
        "it makes every call wait for the GPU: the times are of calls that run alone",
    ]
    if any(log.is_rounded and log.rows for log in logs):
        notes.append("sizes are rounded to two decimals of their unit, up to 0.5 % off; the dictionary has them exact")
    if world_size and not any(log.world_size for log in logs):
        notes.append(f"the {world_size} ranks of the job are worked out from busbw / tput = (n - 1)/n")
    for log in logs:
        if log.tables > 1:
            notes.append(f"{log.label} has {log.tables} tables, each of all calls so far: the fullest one is read")
        if log.torn:
            notes.append(f"left out: {log.torn} rows of a table in {log.label} without an operation above them")
    return (*notes, *left_out_notes(left_out))
