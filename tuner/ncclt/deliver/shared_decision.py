"""One decision per job, for many nodes: the first process publishes what the job is given, and all others follow it.

Ranks that choose differently hang or corrupt data, so a node that cannot learn the decision must not start. The
protocol has no lock and no owner, so a killed process leaves nothing behind: every process writes its own proposal, and
a hard link, which exactly one of them can create, even on NFS (link(2), open(2)), makes one of them the decision. It is
never changed afterwards. Imports the standard library alone: `ncclt run` must start fast.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclt.client.trust import UntrustedError, read_trusted, require_trusted_folder
from ncclt.deliver.job_info import JobInfo
from ncclt.errors import StoreError, UsageError, reason

DECISION_SCHEMA = 2
"""Version of the document of a decision."""

MAX_DECISION_BYTES = 4 * 1024 * 1024
"""Longest decision that is read: twice the longest answers of a server, with their quotes."""

REUSE_S = 3600.0
"""Age up to which a decision counts as the same job's where a job's name may recur: its processes start together."""

READ_BACK_S = 60.0
"""Max time until a new decision is visible: NFS caches the content of a folder for at most 60 s (acdirmax, nfs(5))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDecision:
    """The decision for one job.

    Attributes:
        job: its identity.
        question: what was requested; a process that requests something else belongs to another job.
        content: what the job is given; its form is the caller's.
        host, pid: who decided.
        created_s: when, seconds since 1970.
        token: distinguishes decisions under one name.
    """

    job: str
    question: str
    content: Mapping[str, Any]
    host: str
    pid: int
    created_s: float
    token: str

    @property
    def when(self) -> str:
        """Return its time as text."""
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.created_s))


def check_shared_folder(folder: Path) -> Path:
    """Return the folder of decisions in a folder that all nodes share.

    Raises:
        StoreError: it does not exist on this node, or other users can change its entries.
        UsageError: it is a mount point, whose empty directory exists even where nothing is mounted.
    """
    require_folder(folder)
    folder = folder.resolve()  # the target of a link counts
    if os.path.ismount(folder):
        raise UsageError(
            f"{folder} is a mount point: a node without the mount would not notice",
            hint="name a folder inside it with --shared, and make it once",
        )
    try:
        require_trusted_folder(folder)
    except UntrustedError as error:
        raise StoreError(f"the shared folder is not used: {error}", hint=error.hint) from error
    return folder


def require_folder(folder: Path) -> None:
    """Raise unless a folder that all nodes share is there.

    It is never created: on a node without the file system that would be a different one, and the node would decide
    alone, or write a table that no other node reads.

    Raises:
        StoreError: it does not exist on this node.
    """
    try:
        why = "" if folder.is_dir() else f"is not on {os.uname().nodename}"
    except OSError as error:  # an expired ticket, an unreachable server
        why = f"cannot be reached on {os.uname().nodename}: {error.strerror}"
    if why:
        raise StoreError(
            f"the shared folder {folder} {why}", hint="make the folder once, on a file system that all nodes mount"
        )


def await_participants(folder: Path, job: JobInfo, *, name: str, count: int, wait_s: float) -> int:
    """Show this process to the others in the shared folder, and return how many are seen there after at most `wait_s`.

    Nothing else proves that the nodes of a job see one folder: a folder of the same name may be another one on each
    node. Tokens of an earlier job are older than `REUSE_S` by the clock of the file system.

    Args:
        folder: of `check_shared_folder`.
        wait_s: longest wait for the others; 0 = only show this one.

    Raises:
        StoreError: the folder cannot be read or written.
    """
    start = f"ncclt-node-{_short(job.name)}-"
    own = folder / f"{start}{_short(name)}"
    deadline = time.monotonic() + wait_s
    pause_s = 0.02
    try:
        while True:
            # Writing makes a client of NFS look at the folder again, whose content it may have kept.
            own.write_bytes(b"")
            os.utime(own)
            made_s = own.stat().st_mtime
            participants = sum(made_s - path.stat().st_mtime < REUSE_S for path in folder.glob(f"{start}*"))
            left_s = deadline - time.monotonic()
            if participants >= count or left_s <= 0:
                return participants
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, 1.0)
    except OSError as error:
        raise StoreError(
            f"cannot write to {folder}: {reason(error)}", hint="the folder must be readable and writable on every node"
        ) from error


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def find_decision(folder: Path, job: JobInfo, *, question: str) -> SharedDecision | None:
    """Return the decision for a job; None = there is none yet.

    Raises:
        StoreError: it cannot be read, is damaged or another user's, or may be of an earlier job.
        UsageError: the job requested something else.
    """
    return _find_newest(folder, job, question)[1]


def decide(
    folder: Path,
    job: JobInfo,
    *,
    question: str,
    content: Mapping[str, Any],
    patience_s: float = READ_BACK_S,
    clock: Callable[[], float] = time.time,
) -> SharedDecision:
    """Propose what a job is given, and return the decision: this proposal, or an earlier one of another process.

    Args:
        folder: shared by all nodes.
        patience_s: how long to wait for a decision that exists but is not visible on this node yet.
        clock: seconds since 1970.

    Raises:
        StoreError, UsageError: as for `find_decision`; or it cannot be published here, and no other node has done so.
    """
    path, decision = _find_newest(folder, job, question)
    if decision is not None:
        return decision
    text = _encode(job, question, content, clock())
    if len(text) > MAX_DECISION_BYTES:
        raise StoreError(f"the decision has {len(text)} bytes", hint=f"at most {MAX_DECISION_BYTES} are read")
    _publish(path, text)
    deadline = time.monotonic() + patience_s
    while True:
        published = _read(path, job, question)
        if published is not None:
            return published
        if time.monotonic() > deadline:
            raise StoreError(
                f"the decision {path} exists but is not visible on {os.uname().nodename}",
                hint="this node does not start; check the file system",
            )
        time.sleep(0.1)


def await_decision(folder: Path, job: JobInfo, *, question: str, wait_s: float) -> SharedDecision | None:
    """Wait for the decision of another process; None = none was made in this time.

    Raises:
        StoreError, UsageError: as for `find_decision`.
    """
    deadline = time.monotonic() + wait_s
    pause_s = 0.05
    while True:
        decision = find_decision(folder, job, question=question)
        left_s = deadline - time.monotonic()
        if decision is not None or left_s <= 0:
            return decision
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, 1.0)


def _find_newest(folder: Path, job: JobInfo, question: str) -> tuple[Path, SharedDecision | None]:
    """Return the file of this job's decision, which may not exist yet, and the decision.

    Where a job's name may recur, a decision that is surely an earlier job's is skipped: its successor's name is derived
    from its token, so that all processes that skip it look for the same file. Nothing is ever removed or replaced,
    since then two processes could disagree.
    """
    name = job.name
    while True:
        path = folder / f"ncclt-decision-{_short(name)}.json"
        decision = _read(path, job, question if job.is_unique else None)
        if decision is None or job.is_unique:
            return path, decision
        ages_s = _ages_s(path, decision)
        if max(ages_s) < REUSE_S:
            return path, _same_question(decision, question)
        if min(ages_s) < 2 * REUSE_S:
            raise StoreError(
                f"the decision of {decision.when} may be of this job or of an earlier one of the same name",
                hint=f"the name is {job.name!r}; give the job a unique one with --job",
            )
        name = f"{job.name}\n{decision.token}"


def _ages_s(path: Path, decision: SharedDecision) -> list[float]:
    """Return the age of a decision by the clocks of the two nodes, and by the file system's clock if it has one.

    Nodes whose clocks differ by hours would otherwise disagree about which decision is in effect. A file server has one
    clock for all of them, which can only be read by writing a file.
    """
    ages_s = [time.time() - decision.created_s]
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".ncclt-clock-") as asked:
            asked.write(b"?")
            asked.flush()
            os.fsync(asked.fileno())
            ages_s.append(os.fstat(asked.fileno()).st_mtime - path.stat().st_mtime)
    except OSError:
        return ages_s
    return ages_s


def _read(path: Path, job: JobInfo, question: str | None) -> SharedDecision | None:
    try:
        raw = read_trusted(path, most_bytes=MAX_DECISION_BYTES, follow=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"the decision {path} cannot be read: {reason(error)}", hint=_DAMAGED) from error
    decision = _decode(raw, path)
    if decision.job != job.name:
        raise StoreError(f"{path} is the decision of another job, {decision.job!r}", hint=_DAMAGED)
    return decision if question is None else _same_question(decision, question)


_DAMAGED = "this node does not start; remove the file before the job is started anew"


def _same_question(decision: SharedDecision, question: str) -> SharedDecision:
    if decision.question != question:
        raise UsageError(
            f"for this job {decision.host} asked for {decision.question}, and this process for {question}",
            hint="ranks must ask for the same; where these are two jobs, give each a name with --job",
        )
    return decision


def _encode(job: JobInfo, question: str, content: Mapping[str, Any], created_s: float) -> bytes:
    document = {
        "job": job.name,
        "question": question,
        "content": dict(content),
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "created_s": created_s,
        "token": os.urandom(16).hex(),
    }
    body = json.dumps(document, sort_keys=True)
    return json.dumps({"ncclt_decision": DECISION_SCHEMA, "sha256": _digest(body), "decision": body}).encode()


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _decode(raw: bytes, path: Path) -> SharedDecision:
    try:
        outer = json.loads(raw)
        if outer["ncclt_decision"] != DECISION_SCHEMA:
            raise StoreError(f"{path} is a decision of another version", hint="use one version of ncclt on all nodes")
        if outer["sha256"] != _digest(outer["decision"]):
            raise ValueError("its checksum does not match")
        inner = json.loads(outer["decision"])
        return SharedDecision(
            job=str(inner["job"]),
            question=str(inner["question"]),
            content=dict(inner["content"]),
            host=str(inner["host"]),
            pid=int(inner["pid"]),
            created_s=float(inner["created_s"]),
            token=str(inner["token"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the decision {path} is damaged: {error}", hint=_DAMAGED) from error


def _publish(path: Path, text: bytes) -> None:
    """Make this text the decision, unless there is one already.

    Raises:
        StoreError: it cannot be written, or the file system has no hard links.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".ncclt-proposal-")
    except OSError as error:
        if path.exists():
            return  # another process was first
        raise _unwritable(path.parent, error) from error
    proposal = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        try:
            path.hardlink_to(proposal)
        except FileExistsError:
            return
        except OSError as error:
            # NFS repeats a request whose answer was lost, and then reports a success as a failure: count the links.
            if proposal.stat().st_nlink < 2 and not path.exists():
                raise _unwritable(path.parent, error) from error
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    finally:
        proposal.unlink(missing_ok=True)


def _unwritable(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"no node has decided for this job, and nothing can be decided in {folder}: {error.strerror or error}",
        hint="this node does not start; the folder must be writable, on a file system with hard links",
    )
