"""Everything that one command has started: the members of its session, found through /proc.

A process group is not enough: shells and MPI launchers put their children into groups of their own. All of them stay in
the session that was opened for the command, unless they open another one, which is what daemons do on purpose.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_ENDED = ("Z", "X", "x")
"""States of a process that runs no more (proc_pid_stat(5)); a zombie only waits for its parent."""


def session_members(session_id: int) -> tuple[int, ...]:
    """Return the ids of all running processes of a session."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        # A process may end between the listing and the reading.
        with contextlib.suppress(OSError):
            # pid (name) state ppid pgrp session ...; the name may hold blanks and brackets itself.
            words = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if len(words) > 3 and words[0] not in _ENDED and int(words[3]) == session_id:
                found.append(int(folder.name))
    return tuple(sorted(found))


def signal_session(session_id: int, number: signal.Signals) -> tuple[int, ...]:
    """Send a signal to every member of a session and return whom it was sent to."""
    members = session_members(session_id)
    for member in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member, number)
    return members
