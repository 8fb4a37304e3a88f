"""The one subprocess wrapper: a command in a session of its own, ended as a whole, with bounded memory."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import IO

from ncclt.launch.capture import Capture, Tail
from ncclt.launch.launcher import LaunchPlan, LaunchResult
from ncclt.launch.session import session_members, signal_session

KEEP_BYTES = 8 * 1024 * 1024
"""Kept of each output: thousands of result rows, while a log gone wild costs no more memory than this."""

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL: time for mpirun to end its ranks on other hosts."""

_TICK_S = 0.02
"""How often the end of the process and the wish to stop are looked at; far below any launch of NCCL."""

_KILL_WAIT_S = 5.0
"""How long SIGKILL may take; a process inside a hung driver call ignores even that."""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ProcessSession:
    """One command, from its start until nothing of it is left.

    The command leads its own session, so Ctrl-C in the terminal does not reach it: the caller decides. The leader is
    not reaped before the session is empty: as long as its zombie is there, no other process can be given its id.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        environment: Mapping[str, str],
        grace_s: float = GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        self._plan = plan
        self._environment = dict(environment)
        self._grace_s = grace_s
        self._stdout = Tail(keep_bytes=keep_bytes)
        self._stderr = Tail(keep_bytes=keep_bytes)
        self._kill_wanted = threading.Event()

    def kill(self) -> None:
        """End everything at once; may be called from a signal handler or another thread, and before `run`."""
        self._kill_wanted.set()

    def run(self) -> LaunchResult:
        """Start the command and wait until it and everything it started has ended.

        SIGINT, SIGTERM and SIGHUP, where they would end this program, end the command first and then take effect.
        """
        started = time.monotonic()
        with _stop_signals_deferred(self._kill_wanted.set):
            try:
                process = subprocess.Popen(
                    self._plan.argv,
                    env=self._environment,
                    cwd=self._plan.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                # The reason may name the working folder instead of the program: both are said.
                place = f" in {self._plan.cwd}" if self._plan.cwd else ""
                return LaunchResult(
                    exit_code=None, failure=f"cannot start {self._plan.argv[0]}{place}: {error.strerror or error}"
                )
            return self._watch(process, started=started)

    def _watch(self, process: subprocess.Popen[bytes], *, started: float) -> LaunchResult:
        deadline = started + self._plan.timeout_s
        capture = Capture({_pipe(process.stdout): self._stdout, _pipe(process.stderr): self._stderr})
        timed_out = killed = False
        grace_s = 0.0  # an exception on the way out leaves no time for manners
        try:
            while not _has_ended(process):
                killed = self._kill_wanted.is_set()
                timed_out = not killed and time.monotonic() >= deadline
                if killed or timed_out:
                    break
                capture.read_for(_TICK_S)
            grace_s = 0.0 if killed else self._grace_s
        finally:
            survivors = self._end_session(process.pid, capture, grace_s=grace_s)
            # What the pipes still hold. Whoever left the session may keep them open: no waiting for that.
            _until(lambda: not capture.is_open, capture, within_s=_TICK_S * 10)
            capture.close()
            exit_code = None if process.pid in survivors else process.wait()
        return LaunchResult(
            exit_code=exit_code,
            timed_out=timed_out,
            killed=killed,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            dropped_bytes=self._stdout.dropped_bytes + self._stderr.dropped_bytes,
            wall_s=time.monotonic() - started,
            survivors=survivors,
        )

    def _end_session(self, session_id: int, capture: Capture, *, grace_s: float) -> tuple[int, ...]:
        """End every member, first kindly, and return those that could not be ended."""

        def is_empty() -> bool:
            return not session_members(session_id)

        if grace_s > 0 and signal_session(session_id, signal.SIGTERM):
            _until(lambda: self._kill_wanted.is_set() or is_empty(), capture, within_s=grace_s)
        # Members may start others while they are being killed, so this goes on until none is left.
        _until(lambda: not signal_session(session_id, signal.SIGKILL), capture, within_s=_KILL_WAIT_S)
        return session_members(session_id)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "Popen was asked for a pipe"
    return stream


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether the leader has ended, without reaping it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _until(done: Callable[[], bool], capture: Capture, *, within_s: float) -> None:
    """Read outputs until something is so or the time is over; a member that waits for its reader cannot end."""
    deadline = time.monotonic() + within_s
    while not done() and time.monotonic() < deadline:
        capture.read_for(_TICK_S)


@contextmanager
def _stop_signals_deferred(stop: Callable[[], None]) -> Iterator[None]:
    """Let signals that would end this program end the command first; they take effect on leaving.

    A handler that the caller has set himself stays: he wants to decide. Only the main thread may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        stop()

    ending = (signal.SIG_DFL, signal.default_int_handler)
    replaced = {number: signal.getsignal(number) for number in _STOP_SIGNALS if signal.getsignal(number) in ending}
    for number in replaced:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
