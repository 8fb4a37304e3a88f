"""Launch of a command in a session of its own: it is ended as a whole, and the last part of its outputs is kept."""

from __future__ import annotations

import os
import secrets
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO

from ncclt.errors import reason
from ncclt.launch.launcher import FILES, MARK, PORT, LaunchPlan, LaunchResult
from ncclt.launch.process.process_tree import MARK_VARIABLE, clean_up, end_members, new_mark
from ncclt.launch.process.reaper import reaper

_CHUNK_BYTES = 65536
"""The size of a pipe on Linux (pipe(7)): one read empties it."""


class OutputTail:
    """Keeps the last bytes of a stream."""

    def __init__(self, *, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._kept = bytearray()
        self.dropped_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Append a chunk and drop the oldest bytes beyond the limit."""
        self._kept += chunk
        excess = max(0, len(self._kept) - self._keep_bytes)
        del self._kept[:excess]  # moves the beginning of a bytearray, not its content
        self.dropped_bytes += excess

    def text(self) -> str:
        """Decode what is kept; invalid bytes are replaced."""
        return self._kept.decode("utf-8", errors="replace")


class Capture:
    """Reads several pipes at once, so that a process never waits for one of them to be emptied."""

    def __init__(self, pipes: dict[IO[bytes], OutputTail]) -> None:
        self._selector = selectors.DefaultSelector()
        self._pipes = pipes
        for pipe, tail in pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, tail)

    @property
    def is_open(self) -> bool:
        """Return True if any pipe is still open for reading."""
        return bool(self._selector.get_map())

    def read_for(self, seconds: float) -> None:
        """Wait up to `seconds` for output and store it."""
        if not self.is_open:
            time.sleep(seconds)
            return
        for key, _events in self._selector.select(seconds):
            chunk = os.read(key.fd, _CHUNK_BYTES)
            if chunk:
                key.data.add(chunk)
            else:
                self._selector.unregister(key.fileobj)

    def close(self) -> None:
        """Close the pipes."""
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()


KEEP_BYTES = 8 * 1024 * 1024
"""Kept of each output: thousands of result rows, while a runaway log costs no more memory than this."""

GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL, in which mpirun ends its ranks on other hosts."""

_TICK_S = 0.02
"""Time between two checks for the end of the process and a request to stop; far below any launch of NCCL."""

_DRAIN_S = 0.5
"""Max time to empty the pipes after all their writers have ended: up to 64 KiB each."""

_PORTS = range(20000, 30000)
"""Below the ports that Linux gives to outgoing connections (net.ipv4.ip_local_port_range, from 32768)."""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ProcessSession:
    """Running command, until all of its processes have ended.

    The command leads its own session, so Ctrl-C in the terminal does not reach it: the caller decides. The leader is
    not reaped before all of the launch has ended: as long as its zombie exists, its id cannot be reused.

    Args:
        plan: plan to run.
        environment: environment of the command, without the plan's variables and the mark.
        grace_s: time between SIGTERM and SIGKILL.
        kill_grace_s: the same after `kill`; more than 0 for commands that must end ranks on other machines.
        keep_bytes: max bytes to keep of each output.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        environment: Mapping[str, str],
        grace_s: float = GRACE_S,
        kill_grace_s: float = 0.0,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        self.mark = new_mark()
        self._plan = plan
        outer = environment.get(MARK_VARIABLE)
        self._environment = {**environment, MARK_VARIABLE: f"{outer}/{self.mark}" if outer else self.mark}
        self._grace_s = grace_s
        self._kill_grace_s = kill_grace_s
        self._stdout = OutputTail(keep_bytes=keep_bytes)
        self._stderr = OutputTail(keep_bytes=keep_bytes)
        self._killed_at_s: float | None = None
        self._left_elsewhere: tuple[str, ...] = ()
        self._is_over = False

    def kill(self) -> None:
        """End everything at once; may be called from a signal handler or another thread, and before `run`."""
        if self._killed_at_s is None:
            self._killed_at_s = time.monotonic()

    def run(self) -> LaunchResult:
        """Start the command and wait until it and everything it started has ended.

        SIGINT, SIGTERM and SIGHUP, where they would end this program, end the command first and then take effect.
        """
        with ExitStack() as stack:
            stack.enter_context(_stop_signals_deferred(self.kill))
            try:
                plan, folder = stack.enter_context(filled(self._plan, self.mark))
                self._environment |= dict(plan.set_env)
                reaper().begin(
                    self.mark,
                    grace_s=self._grace_s,
                    environment=self._environment,
                    clean_up=plan.clean_up,
                    folder=folder,
                )
            except OSError as error:
                return LaunchResult(exit_code=None, not_started=f"cannot prepare the launch: {reason(error)}")
            try:
                return self._start_and_watch(plan)
            finally:
                # If an exception in a handler interrupted the end of the launch, the reaper still has to end it.
                if self._is_over:
                    reaper().end(self.mark)

    def _start_and_watch(self, plan: LaunchPlan) -> LaunchResult:
        started_s = time.monotonic()
        try:
            process = subprocess.Popen(
                plan.argv,
                env=self._environment,
                cwd=self._plan.cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._is_over = True
            # The reason may be the working folder rather than the program, so the message names both.
            place = f" in {self._plan.cwd}" if self._plan.cwd else ""
            return LaunchResult(
                exit_code=127 if isinstance(error, FileNotFoundError) else 126,  # as a shell says it
                not_started=f"cannot start {plan.argv[0]}{place}: {error.strerror or error}",
            )
        return self._watch(process, plan, started_s=started_s)

    def _watch(self, process: subprocess.Popen[bytes], plan: LaunchPlan, *, started_s: float) -> LaunchResult:
        deadline_s = started_s + self._plan.timeout_s
        capture = Capture({_pipe(process.stdout): self._stdout, _pipe(process.stderr): self._stderr})
        timed_out = killed = False
        grace_s = self._kill_grace_s  # an exception leaves no more time than a kill
        succeeded = False
        try:
            # WNOWAIT: the leader is not reaped, so that its id is not reused before all of the launch has ended.
            while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                killed = self._killed_at_s is not None
                timed_out = not killed and time.monotonic() >= deadline_s
                if killed or timed_out:
                    break
                capture.read_for(_TICK_S)
            else:
                ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                succeeded = ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)
            grace_s = self._kill_grace_s if killed else self._grace_s
        finally:
            survivors = end_members(
                self.mark,
                session_id=process.pid,
                grace_s=grace_s,
                hurried=lambda: (
                    self._killed_at_s is not None and time.monotonic() - self._killed_at_s >= self._kill_grace_s
                ),
                pause=capture.read_for,
            )
            # For a limited time: a process that could not be ended may keep the pipes open.
            drained_s = time.monotonic() + _DRAIN_S
            while capture.is_open and time.monotonic() < drained_s:
                capture.read_for(_TICK_S)
            capture.close()
            exit_code = None if process.pid in survivors else process.wait()
            if not succeeded:
                self._left_elsewhere = clean_up(plan.clean_up, environment=self._environment)
            self._is_over = True
        return LaunchResult(
            exit_code=exit_code,
            timed_out=timed_out,
            killed=killed,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            dropped_bytes=self._stdout.dropped_bytes + self._stderr.dropped_bytes,
            wall_s=time.monotonic() - started_s,
            survivors=survivors,
            left_elsewhere=self._left_elsewhere,
        )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "Popen was asked for a pipe"
    return stream


@contextmanager
def _stop_signals_deferred(stop: Callable[[], None]) -> Iterator[None]:
    """Let signals that would end this program end the command first; they take effect on leaving.

    The caller's own handlers are left alone. Only the main thread may set handlers.
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


@contextmanager
def filled(plan: LaunchPlan, mark: str) -> Iterator[tuple[LaunchPlan, Path | None]]:
    """Write the files of a plan into a folder of their own, and remove it afterwards.

    Returns:
        the plan with `MARK`, `PORT` and `FILES` filled in, and the folder; None = it has no files.

    Raises:
        OSError: they cannot be written.
    """
    # Nobody can look up a free port on another machine, and a free port may be taken a moment later. So choose one at
    # random, and another one on a collision; concurrent launches of one plan do not collide.
    port = str(secrets.choice(_PORTS))
    # mkdtemp gives 0700: scripts hold variables, and a user who could write there could run anything as this user.
    folder = Path(tempfile.mkdtemp(prefix="ncclt-launch-")) if plan.files else None

    def fill(text: str) -> str:
        return text.replace(MARK, mark).replace(PORT, port)

    def fill_words(argv: Sequence[str]) -> tuple[str, ...]:
        return tuple(fill(word).replace(FILES, str(folder)) if folder else fill(word) for word in argv)

    try:
        if folder:
            for name, text in plan.files:
                (folder / name).write_text(fill(text), encoding="utf-8")
        set_env = tuple((name, fill(value)) for name, value in plan.set_env)
        clean_up_commands = tuple(map(fill_words, plan.clean_up))
        yield replace(plan, argv=fill_words(plan.argv), set_env=set_env, clean_up=clean_up_commands), folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
