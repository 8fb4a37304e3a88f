"""The reaper of this process: ends its launches if it dies before it could do so itself.

A process that gets SIGKILL, from a user, the kernel's OOM killer or a scheduler, cannot clean up. So the first launch
starts a small process (`main`) that receives every launch through a pipe and waits for the pipe's end. It has
a session of its own, so no Ctrl-C reaches it, and does not hold our outputs open, so their readers see EOF. There is
one per process because starting Python for every launch would cost more than the launch.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ncclt.errors import reason
from ncclt.launch.process.process_tree import MARK_VARIABLE, clean_up, end_members

_ROOT = Path(__file__).parents[3]
"""The folder that holds ncclt; last in sys.path, so that nothing in it shadows the standard library."""

_START = "import sys; sys.path.append(sys.argv[1]); from ncclt.launch.process.reaper import main; main()"


class Reaper:
    """Reports the begin and the end of launches to the reaper process; for all threads of this one."""

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
            OSError: the reaper cannot be started.
        """
        for_clean_up = {name: value for name, value in environment.items() if clean_up and name != MARK_VARIABLE}
        folder_path = str(folder) if folder else None
        self._open_entry(mark, grace_s=grace_s, clean_up=clean_up, environment=for_clean_up, folder=folder_path)

    def keep(self, folder: Path) -> None:
        """Report a folder of results, which the reaper removes when all launches have ended.

        `end` with the folder's path reports that it was removed.

        Raises:
            OSError: the reaper cannot be started.
        """
        self._open_entry(str(folder), results=str(folder))

    def _open_entry(self, key: str, **entry: object) -> None:
        line = json.dumps({"begun": key, **entry}).encode() + b"\n"
        with self._lock:
            self._open[key] = line
            self._send(line)

    def end(self, mark: str) -> None:
        """Report that nothing of a launch is left that the reaper could end."""
        with self._lock:
            self._open.pop(mark, None)
            # The result of this launch must not be lost; the next one reports that there can be no reaper.
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
            except BrokenPipeError:  # the reaper was killed
                os.close(self._pipe)
                self._pipe = None
            else:
                return
        if self._open:
            self._pipe = _start_process()
            _write(self._pipe, b"".join(self._open.values()))


@contextmanager
def results_folder(prefix: str, *, parent: Path | None) -> Iterator[Path]:
    """Make a folder for the results of launches, readable by its owner alone, and remove it afterwards.

    Args:
        prefix: of its name.
        parent: where it is made; None = the system's temporary folder.

    Raises:
        OSError: it cannot be made, or the reaper cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name).absolute()
        try:
            reaper().keep(folder)
            yield Path(name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():  # something may write into it until we end
                reaper().end(str(folder))


@cache
def reaper() -> Reaper:
    """Return the reaper of this process."""
    own = Reaper()
    os.register_at_fork(after_in_child=own.forget)
    return own


def _start_process() -> int:
    """Start the reaper process and return the writing end of its pipe, which no other process inherits."""
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
        raise OSError(f"the reaper of launches cannot be started: {reason(error)}") from error
    finally:
        os.close(reading)
    return writing


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end this process must not end its reaper first."""

_QUIET_S = 1.0
"""No process of a launch may appear for this long: the last thing its owner did may have been to start one."""


def main() -> None:
    """Wait for the end of standard input, then end every launch that has begun and not ended, and exit."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    launches = open_launches(sys.stdin.buffer)
    enders = [threading.Thread(target=end_launch, args=(launch,)) for launch in launches if "results" not in launch]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()
    # Last, because launches write into these until they end.
    for launch in launches:
        if "results" in launch:
            shutil.rmtree(launch["results"], ignore_errors=True)


def open_launches(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Read the lines of `Reaper` until they end, and return the launches that have not ended."""
    launches: dict[str, dict[str, Any]] = {}
    for line in lines:
        if not line.endswith(b"\n"):
            break  # cut off by the death of its writer, which starts a launch only after it has written the line
        record = json.loads(line)
        if "ended" in record:
            launches.pop(record["ended"], None)
        else:
            launches[record["begun"]] = record
    return list(launches.values())


def end_launch(launch: dict[str, Any]) -> None:
    """End a launch here, then elsewhere, and remove its files."""
    quiet_since_s = time.monotonic()
    end_members(launch["begun"], grace_s=launch["grace_s"])
    while time.monotonic() - quiet_since_s < _QUIET_S:
        time.sleep(_QUIET_S / 10)
        end_members(launch["begun"])
    clean_up(launch["clean_up"], environment=launch["environment"])
    if launch["folder"]:
        shutil.rmtree(launch["folder"], ignore_errors=True)
