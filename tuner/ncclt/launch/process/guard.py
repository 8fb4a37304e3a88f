"""The guardian of this process: ends its launches if it dies before it could do so itself.

A process that gets SIGKILL, from a user, the kernel's OOM killer or a scheduler, cannot clean up. So the first launch
starts a small process (`guard_process`) that receives every launch through a pipe and waits for the pipe's end. It has
a session of its own, so no Ctrl-C reaches it, and does not hold our outputs open, so their readers see EOF. There is
one per process because starting Python for every launch would cost more than the launch.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from ncclt.errors import reason
from ncclt.launch.process.process_tree import MARK_VARIABLE

_ROOT = Path(__file__).parents[3]
"""The folder that holds ncclt; last in sys.path, so that nothing in it shadows the standard library."""

_START = "import sys; sys.path.append(sys.argv[1]); from ncclt.launch.process.guard_process import main; main()"


class Guard:
    """Reports to the guardian which launches have begun and ended; for all threads of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: int | None = None
        self._open: dict[str, bytes] = {}

    def begin(
        self,
        mark: str,
        *,
        grace_s: float,
        environment: Mapping[str, str],
        clean_up: Sequence[Sequence[str]] = (),
        folder: Path | None = None,
    ) -> None:
        """Report that a launch is about to begin.

        Args:
            mark: of the launch.
            grace_s: between SIGTERM and SIGKILL, s.
            environment: for the commands of `clean_up`.
            clean_up: commands that end what the launch leaves on other machines.
            folder: removed last.

        Raises:
            OSError: the guardian cannot be started.
        """
        kept = {name: value for name, value in environment.items() if clean_up and name != MARK_VARIABLE}
        folder_path = str(folder) if folder else None
        self._open_entry(mark, grace_s=grace_s, clean_up=clean_up, environment=kept, folder=folder_path)

    def keep(self, folder: Path) -> None:
        """Report a folder of results, which the guardian removes when all launches have ended.

        `end` with the folder's path reports that it was removed.

        Raises:
            OSError: the guardian cannot be started.
        """
        self._open_entry(str(folder), results=str(folder))

    def _open_entry(self, key: str, **entry: object) -> None:
        line = json.dumps({"begun": key, **entry}).encode() + b"\n"
        with self._lock:
            self._open[key] = line
            self._send(line)

    def end(self, mark: str) -> None:
        """Report that nothing of a launch is left that the guardian could end."""
        with self._lock:
            self._open.pop(mark, None)
            # The result of this launch must not be lost; the next one reports that there can be no guardian.
            with contextlib.suppress(OSError):
                self._send(json.dumps({"ended": mark}).encode() + b"\n")

    def forget(self) -> None:
        """In a forked child, leave the launches to the parent: the child has started none of them."""
        self._lock = threading.Lock()
        if self._pipe is not None:
            os.close(self._pipe)
        self._pipe = None
        self._open = {}

    def _send(self, line: bytes) -> None:
        if self._pipe is not None:
            try:
                _write(self._pipe, line)
            except BrokenPipeError:  # the guardian was killed
                os.close(self._pipe)
                self._pipe = None
            else:
                return
        if self._open:
            self._pipe = _start_guardian()
            _write(self._pipe, b"".join(self._open.values()))


@contextmanager
def results_folder(prefix: str, *, parent: Path | None) -> Iterator[Path]:
    """Make a folder for the results of launches, readable by its owner alone, and remove it afterwards.

    Args:
        prefix: of its name.
        parent: where it is made; None = the system's temporary folder.

    Raises:
        OSError: it cannot be made, or the guardian cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        guard().keep(Path(name).absolute())
        try:
            yield Path(name)
        finally:
            guard().end(str(Path(name).absolute()))


@cache
def guard() -> Guard:
    """Return the guard of this process."""
    own = Guard()
    os.register_at_fork(after_in_child=own.forget)
    return own


def _start_guardian() -> int:
    """Start it and return the writing end of its pipe, which no other process inherits."""
    reading, writing = os.pipe()
    inherited = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
    try:
        # It forks and exits at once, so there is no child to reap later.
        subprocess.run(
            (sys.executable, "-I", "-S", "-c", _START, str(_ROOT)),
            env=inherited,
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        os.close(writing)
        raise OSError(f"the guardian of launches cannot be started: {reason(error)}") from error
    finally:
        os.close(reading)
    return writing


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]
