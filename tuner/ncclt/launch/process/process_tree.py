"""Processes of one launch: those of this machine, found through /proc, and clean-up commands for other machines.

Neither a process group nor a session is enough: shells and MPI launchers put their children into groups of their own,
and torchrun opens a session for every rank (torch/distributed/elastic/multiprocessing/subprocess_handler, seen with
2.13), so its ranks outlive a torchrun that was killed. All of them still carry in their environment what the launch
was started with. A process that cleans its environment and leaves the session is found as long as its parent is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK_VARIABLE = "NCCLT_LAUNCH"
"""Holds the mark of a launch; a launch within a launch appends its own."""

KILL_WAIT_S = 5.0
"""Max wait for SIGKILL to take effect; a process inside a hung driver call ignores even that."""

_TICK_S = 0.05
"""Time between two scans of /proc; one scan costs milliseconds on a busy node."""

_ENDED = ("Z", "X", "x")
"""States of a process that has ended (proc_pid_stat(5)); a zombie only waits for its parent."""


_numbers = itertools.count(1)


def new_mark() -> str:
    """Return a mark that no other launch of any machine has; the number counts the launches of this process."""
    return f"{secrets.token_hex(6)}-{next(_numbers):06d}"


@dataclass(frozen=True, slots=True)
class _Process:
    """One line of /proc; an id may be reused, an id together with its start time is unique."""

    id: int
    parent: int
    session: int
    started: int


def members(mark: str, *, session_id: int | None = None) -> tuple[int, ...]:
    """Return the ids of all running processes that belong to a launch.

    Args:
        mark: in the environment of the launch's processes and of no others.
        session_id: the session that was opened for the launch.
    """
    return tuple(process.id for process in _members(os.fsencode(mark), session_id))


def signal_members(mark: str, number: signal.Signals, *, session_id: int | None = None) -> tuple[int, ...]:
    """Send a signal to every process of a launch and return their ids."""
    processes = _members(os.fsencode(mark), session_id)
    for process in processes:
        # Ended meanwhile, or now of another user: the caller sees what could not be ended by what is left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _send(process, number)
    return tuple(process.id for process in processes)


def end_members(
    mark: str,
    *,
    session_id: int | None = None,
    grace_s: float = 0.0,
    hurried: Callable[[], bool] = lambda: False,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[int, ...]:
    """End every process of a launch, first by SIGTERM.

    Args:
        mark: as for `members`.
        session_id: as for `members`.
        grace_s: between SIGTERM and SIGKILL, s; 0 = SIGKILL at once.
        hurried: ends the grace period as soon as it is true.
        pause: how to wait; the caller may have to read meanwhile what the processes write before they can end.

    Returns:
        the ids of those that could not be ended; almost always none.
    """

    def until(done: Callable[[], bool], within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while not done() and time.monotonic() < deadline_s:
            pause(_TICK_S)

    if grace_s > 0 and signal_members(mark, signal.SIGTERM, session_id=session_id):
        until(lambda: hurried() or not members(mark, session_id=session_id), grace_s)
    # Members may start others while they are being killed, so this repeats until none is left.
    until(lambda: not signal_members(mark, signal.SIGKILL, session_id=session_id), KILL_WAIT_S)
    return members(mark, session_id=session_id)


def _members(mark: bytes, session_id: int | None) -> list[_Process]:
    """Return the processes of the session, those with the mark, and the descendants of both, but never this process."""
    running = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (process := _read(int(folder.name))):
            running[process.id] = process
    ours = {p.id for p in running.values() if p.session == session_id or _carries(p.id, mark)}
    children: dict[int, list[int]] = {}
    for process in running.values():
        children.setdefault(process.parent, []).append(process.id)
    ours.discard(os.getpid())
    unseen = list(ours)
    while unseen:
        unmarked = [child for child in children.get(unseen.pop(), ()) if child not in ours and child != os.getpid()]
        ours.update(unmarked)
        unseen += unmarked
    return [running[process_id] for process_id in sorted(ours)]


def _read(process_id: int) -> _Process | None:
    try:
        text = Path(f"/proc/{process_id}/stat").read_text(errors="replace")
    except OSError:
        return None  # it has ended between the listing and the reading
    # pid (name) state ppid pgrp session ...; the name may hold blanks and brackets itself.
    words = text.rpartition(")")[2].split()
    if not words or words[0] in _ENDED:
        return None
    return _Process(id=process_id, parent=int(words[1]), session=int(words[3]), started=int(words[19]))


def _carries(process_id: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{process_id}/environ").read_bytes()
    except OSError:
        return False  # ended meanwhile, or of another user


def _send(process: _Process, number: signal.Signals) -> None:
    try:
        descriptor = os.pidfd_open(process.id)
    except ProcessLookupError:
        return
    except OSError:
        # Kernels before 5.3 (RHEL 8 among them): a race of microseconds between check and kill remains.
        if _read(process.id) == process:
            os.kill(process.id, number)
        return
    try:
        # From here on the id cannot be reused; check once more that it was not reused before.
        now = _read(process.id)
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


CLEAN_UP_S = 30.0
"""Max time of one command: a host that does not answer, and the grace periods of its processes there."""


def clean_up(commands: Sequence[Sequence[str]], *, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Run commands one after another, also after one has failed.

    Returns:
        one sentence for each command that failed.
    """
    complaints = (_complaint(argv, environment) for argv in commands)
    return tuple(complaint for complaint in complaints if complaint)


def _complaint(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    mark = new_mark()
    # A file, not a pipe: a grandchild that holds a pipe open would make us wait for it.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                argv,
                env={**environment, MARK_VARIABLE: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                timeout=CLEAN_UP_S,
                check=False,
            )
        except OSError as error:
            return f"{argv[0]} cannot be started: {error.strerror or error}"
        except subprocess.TimeoutExpired:
            return f"{argv[0]} was not done after {CLEAN_UP_S:.0f} s"
        finally:
            end_members(mark)
        if done.returncode == 0:
            return ""
        output.seek(0)
        lines = output.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"{argv[0]} ended with exit code {done.returncode}: {last}"
