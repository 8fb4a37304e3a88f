"""A long command whose output is read line by line; it does not outlive this process."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO

from ncclt.errors import StudyStoppedError, reason
from ncclt.launch.process.process_tree import MARK_VARIABLE, end_members, new_mark
from ncclt.launch.process.reaper import reaper

_LONGEST_LINE = 2000
"""Characters of a line that are kept."""

_MOST_LINES = 1000
"""Lines that wait to be read; then the command waits too."""


class FollowedProcess:
    """A running command in a session of its own; leaving the `with` block ends it and all that it has started.

    Args:
        argv: the command.
        environment: of the command, complete; a mark is added to it.

    Raises:
        StudyStoppedError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, environment: Mapping[str, str]) -> None:
        self._mark = new_mark()
        self._lines: queue.Queue[str] = queue.Queue(_MOST_LINES)
        try:
            # No grace: who takes over what this command did must find nothing of it.
            reaper().begin(self._mark, grace_s=0.0, environment=environment)
            self._process = subprocess.Popen(
                argv,
                env={**environment, MARK_VARIABLE: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            reaper().end(self._mark)
            raise StudyStoppedError(f"{argv[0]} cannot be started: {reason(error)}") from error
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def __enter__(self) -> FollowedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._process.wait()
        reaper().end(self._mark)

    def lines(self) -> Iterator[str]:
        """Yield the lines that were written since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._lines.get_nowait()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end and return the exit code; None = it has not ended within this time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command alone; nothing happens if it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it, and all that it has started, at once."""
        end_members(self._mark, session_id=self._process.pid)

    def _read(self, output: IO[str]) -> None:
        with contextlib.suppress(ValueError), output:
            while line := output.readline(_LONGEST_LINE):
                self._lines.put(line.rstrip("\n"))
