"""What a launch leaves behind outside of its session.

torchrun opens a session for every rank (`start_new_session` in torch/distributed/elastic/multiprocessing/
subprocess_handler, seen with 2.13), so ranks outlive a torchrun that was killed. All of them still carry the launch's
own folder in the environment that they were started with, which names no other process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_WAIT_S = 5.0
"""How long SIGKILL may take; a process inside a hung driver call ignores even that."""

_TICK_S = 0.02


def end_leftovers(folder: Path, *, within_s: float = _WAIT_S) -> tuple[int, ...]:
    """End every process of this machine that was started for a recording's folder.

    Args:
        folder: the recording's folder, in the environment of each process of the launch.
        within_s: how long to go on, s; processes may start others while they are being ended.

    Returns:
        the ids of those that could not be ended; almost always none.
    """
    deadline_s = time.monotonic() + within_s
    while (left := _end_once(folder)) and time.monotonic() < deadline_s:
        time.sleep(_TICK_S)
    return left


def _end_once(folder: Path) -> tuple[int, ...]:
    """Send SIGKILL to all there are and return them."""
    mark = os.fsencode(folder) + b"/"
    found = []
    for entry in Path("/proc").iterdir():
        # Ended meanwhile, somebody else's, or a zombie: not ours to end.
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                _kill(int(entry.name), mark)
                found.append(int(entry.name))
    return tuple(sorted(found))


def _kill(process_id: int, mark: bytes) -> None:
    descriptor = os.pidfd_open(process_id)
    try:
        # Asked again: the number may have gone to another process in between, from now on it cannot.
        if mark in Path(f"/proc/{process_id}/environ").read_bytes():
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)
