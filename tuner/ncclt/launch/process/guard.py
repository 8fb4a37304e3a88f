"""The guardian of this process: ends its launches if it dies before it could do so itself.

Nothing can be done by a process that gets SIGKILL, from a person, the kernel short of memory, or a scheduler. So the
first launch starts a small process (`guard_process`) that is told of every launch through a pipe and waits for the
pipe's end. It has a session of its own, so no Ctrl-C reaches it, and none of our outputs, so whoever reads those sees
their end. There is one for each process because starting Python for every launch would cost more than the launch.
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
"""The folder that holds ncclt. It goes last: nothing in it may take the place of the standard library."""

_START = "import sys; sys.path.append(sys.argv[1]); from ncclt.launch.process.guard_process import main; main()"


class Guard:
    """Tells the guardian which launches have begun and ended; for all threads of one process."""

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
        """Say that a launch is about to begin.

        Args:
            mark: of the launch.
            grace_s: between SIGTERM and SIGKILL, s.
            environment: for the commands of `clean_up`.
            clean_up: commands that end what the launch leaves on other machines.
            folder: removed after all.

        Raises:
            OSError: the guardian cannot be started.
        """
        said = {
            "begun": mark,
            "grace_s": grace_s,
            "clean_up": clean_up,
            "environment": {name: value for name, value in environment.items() if name != MARK_VARIABLE},
            "folder": str(folder) if folder else None,
        }
        if not clean_up:
            said["environment"] = {}
        line = json.dumps(said).encode() + b"\n"
        with self._lock:
            self._open[mark] = line
            self._tell(line)

    def keep(self, folder: Path) -> None:
        """Say that a folder of results is there; the guardian removes it when all launches have ended.

        `end` with the folder's path says that it is gone.

        Raises:
            OSError: the guardian cannot be started.
        """
        line = json.dumps({"begun": str(folder), "results": str(folder)}).encode() + b"\n"
        with self._lock:
            self._open[str(folder)] = line
            self._tell(line)

    def end(self, mark: str) -> None:
        """Say that nothing of a launch is left that the guardian could end."""
        with self._lock:
            self._open.pop(mark, None)
            # The result of this launch must not be lost; the next one will say that there can be no guardian.
            with contextlib.suppress(OSError):
                self._tell(json.dumps({"ended": mark}).encode() + b"\n")

    def forget(self) -> None:
        """Leave the launches to the process that was forked: this one has begun none of them."""
        self._lock = threading.Lock()
        if self._pipe is not None:
            os.close(self._pipe)
        self._pipe = None
        self._open = {}

    def _tell(self, line: bytes) -> None:
        if self._pipe is not None:
            try:
                _write(self._pipe, line)
            except BrokenPipeError:  # somebody has killed the guardian
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
        parent: where it is made; None = the system's place for temporary files.

    Raises:
        OSError: it cannot be made, or not be guarded.
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
    """Start it and return the end of the pipe that tells it things; nobody inherits that end."""
    reading, writing = os.pipe()
    inherited = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
    try:
        # It leaves a child of its own and ends at once: there is nobody to wait for afterwards.
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
