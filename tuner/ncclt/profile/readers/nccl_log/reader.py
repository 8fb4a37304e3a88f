"""Debug logs of NCCL 2.8 to 2.32 and RCCL (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING).

COLL lines log every call of every rank and are preferred. Without them, the TUNING lines give the decisions of rank 0
of each communicator. In both cases the TUNING lines give the algorithm, protocol and channels that NCCL chose, which
the provenance keeps. A log is read line by line in one pass; ranks may share a file or have one each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ncclt.core.message import Collective
from ncclt.core.workload import WHOLE_FILE, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.readers.nccl_log.book import LogBook, check_own_process, read_log
from ncclt.profile.readers.nccl_log.comms import Communicators, communicators_of
from ncclt.profile.readers.nccl_log.lines import LOGGED_CALL, check_distinct
from ncclt.profile.readers.nccl_log.ranks import UNKNOWN_DTYPE, RankFindings, findings_from_calls, findings_from_tunings
from ncclt.profile.reading import partial_note, workload_of_roles
from ncclt.profile.roles import find_roles
from ncclt.profile.source import documents, heads

name = "nccl_log"

# The prefix as `ncclt.nccl.log.lines` reads it: prose and code that only name NCCL are no logs.
_MARK = re.compile(
    rb"\]\s(?:\S{1,400}\s){0,4}NCCL (?:INFO|WARN|TRACE|ATTN|ERROR|ABORT) "
    rb"|\bR?NCCL version (?:: )?\d+\.\d+\.\d+[+-]| Bytes -> Algo "
)
_SUBSYSTEMS = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING"


def recognises(path: Path) -> bool:
    """Return whether a file begins with output of NCCL's logger, possibly among other output."""
    try:
        return any(_MARK.search(one) or LOGGED_CALL.search(one) for one in heads(path))
    except TraceError:
        return False


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the logs of one job: one file of all ranks, or one per process.

    Raises:
        TraceError: damaged, not an NCCL log, without calls, or with a process in two files.
    """
    check_distinct(paths)
    books = sorted((read_log(d) for path in paths for d in documents(path)), key=lambda book: book.label)
    check_own_process(books)
    comms = communicators_of(books)
    found, read_from = findings_from_calls(books, comms), "COLL lines"
    if not found.calls:
        decided = findings_from_tunings(books, comms)
        if not decided.calls:
            raise _nothing(books, found, decided)
        decided.left_out.update(found.left_out)
        found, read_from = decided, "TUNING lines"
    return workload_of_roles(name, find_roles(found.views), _provenance(books, comms, found, read_from))


def _nothing(books: Sequence[LogBook], calls: RankFindings, decisions: RankFindings) -> TraceError:
    """Return the error for logs without messages."""
    files = books[0].label if len(books) == 1 else f"the {len(books)} files"
    reasons = _left_out(calls) + _left_out(decisions)
    if reasons:
        return TraceError(f"no collectives in {files}: {'; '.join(reasons)}", hint=f"record again with {_SUBSYSTEMS}")
    if any(book.has_nccl for book in books):
        return TraceError(
            f"no collectives in {files}: NCCL wrote it, but without COLL and TUNING lines",
            hint=f"record again with {_SUBSYSTEMS}; the default subsystems do not log calls",
        )
    return TraceError(f"{files} is not an NCCL debug log", hint=f"record one with {_SUBSYSTEMS}")


def _provenance(books: Sequence[LogBook], comms: Communicators, found: RankFindings, read_from: str) -> Provenance:
    facts = {
        "files": ", ".join(book.label for book in books),
        "read_from": read_from,
        "nccl_version": ", ".join(dict.fromkeys(version for book in books for version in book.versions)),
        "nodes": str(comms.world_nodes or ""),
        "nccl_choices": found.choices.text(),
    }
    return Provenance(
        source=name,
        detail={key: value for key, value in facts.items() if value},
        world_size=comms.world_size,
        ranks_read=comms.global_ranks(),
        notes=_notes(books, comms, found, read_from),
        whole_file=True,
    )


def _notes(books: Sequence[LogBook], comms: Communicators, found: RankFindings, read_from: str) -> tuple[str, ...]:
    """Return notes on what logs do not show, and what this one lacks."""
    messages = {message for calls in found.calls.values() for _, message in calls}
    notes = [WHOLE_FILE]
    notes.append(
        "the log mentions CUDA graphs: their calls are logged once, when captured, and not when replayed"
        if any(book.graphs for book in books)
        else "calls replayed by a CUDA graph are not logged: if the job used graphs, each counts once, at its capture"
    )
    if read_from == "TUNING lines":
        notes.append(f"TUNING lines have no dtype: messages are given in bytes, as {UNKNOWN_DTYPE}")
        notes.append("TUNING lines are of rank 0 of each communicator and show no send_recv")
        if any(message.group_size == 0 for message in messages):
            notes.append("no INIT line gives the ranks of some groups: they are assumed to be the whole job")
    if found.untyped:
        notes.append(
            f"{found.untyped} all_gather or broadcast lines say int8: NCCL up to 2.12 writes that for every dtype"
        )
    if any(message.collective is Collective.SEND_RECV for message in messages):
        notes.append("send_recv may come from an all_to_all, which frameworks hand to NCCL as sends and receives")
    if comms.world_size:
        notes.append(f"the largest communicator, of {comms.world_size} ranks, is assumed to be the whole job")
        if comms.ranks_seen and read_from == "COLL lines":
            notes += partial_note(comms.ranks_seen, comms.world_size)
    elif comms.ranks_seen:
        notes.append(f"{comms.ranks_seen} ranks seen and no communicator of all of them: the job's size is not known")
    return (*notes, *(f"left out: {reason}" for reason in _left_out(found)))


def _left_out(found: RankFindings) -> list[str]:
    return [f"{count} x {reason}" for reason, count in sorted(found.left_out.items()) if count]
