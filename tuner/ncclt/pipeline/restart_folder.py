"""Folder of one run of `ncclt autotune --restarts`, and the state of the run in it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.duration import format_duration
from ncclt.deliver.job_info import read_boot_id
from ncclt.launch.process.reaper import results_folder

_PREFIX = ".ncclt-restarts-"

_DEAD_AFTER_S = 86400.0
"""Time without a sign of life after which a run on another machine is dead: not every file system shares its locks."""

_ALIVE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of a run.

    Attributes:
        model: name of the training.
        host, pid: of the ncclt process.
        boot_id: of its kernel, which holds its lock.
        status: start and arm, as text.
        candidates: name and policy of each, as text.
        next_at: Unix time of the next affordable restart; 0 = not known.
    """

    model: str
    host: str
    pid: int
    boot_id: str
    status: str = ""
    candidates: tuple[str, ...] = ()
    next_at: float = 0.0

    def describe(self) -> list[str]:
        """Return it as lines."""
        wait_s = self.next_at - time.time()
        after = f"; next restart affordable in {format_duration(wait_s * 1e6)}" if wait_s > 0 else ""
        return [f"running on {self.host} (process {self.pid}): {self.status}{after}", *self.candidates]


class RunFolder:
    """The folder of a live run, which other runs find beside theirs."""

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self._file = path / "state.json"
        self._facts = {"model": model, "host": os.uname().nodename, "pid": os.getpid(), "boot_id": read_boot_id()}
        self._shown: dict[str, object] = {}
        self._lock = threading.Lock()
        self.show()

    def show(self, **changes: object) -> None:
        """Write the state with changes, fields of `RunState`."""
        with self._lock:
            self._shown |= changes
            made = self._file.with_suffix(".new")
            made.write_text(json.dumps(self._facts | self._shown), encoding="utf-8")
            made.replace(self._file)

    def show_alive(self) -> None:
        """Give a sign of life, at most one per minute."""
        if time.time() - self._file.stat().st_mtime > _ALIVE_EVERY_S:
            os.utime(self._file)


@contextmanager
def open_run_folder(base: Path, model: str) -> Iterator[RunFolder]:
    """Make the folder of a run, and remove it afterwards; those of dead runs are removed before.

    Args:
        base: a folder that all ranks share.

    Raises:
        OSError: it cannot be made, or the reaper cannot be started.
    """
    with results_folder(_PREFIX, parent=base.resolve()) as path, (path / "lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks, on which no run is ever known to be dead
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = RunFolder(path, model)
        for other in base.resolve().glob(f"{_PREFIX}*"):
            if other != path and _is_dead(other, now=path.stat().st_mtime):
                shutil.rmtree(other, ignore_errors=True)
        yield folder


def read_run_states(base: Path, model: str) -> list[RunState]:
    """Return the states of the live runs of a training."""
    states = [
        _read_state(folder) for folder in base.resolve().glob(f"{_PREFIX}*") if not _is_dead(folder, now=time.time())
    ]
    return [state for state in states if state is not None and state.model == model]


def _is_dead(folder: Path, *, now: float) -> bool:
    """Return True if the run of a folder has ended; a lock tells on its own machine alone.

    Args:
        now: Unix time by the clock of its file system.
    """
    state = _read_state(folder)
    try:
        silent_s = now - (folder if state is None else folder / "state.json").stat().st_mtime
        if state is not None:  # its run has locked it before
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if state.boot_id and state.boot_id == read_boot_id():
                return True
        return silent_s > _DEAD_AFTER_S
    except OSError:  # locked, another user's, or being removed
        return False


def _read_state(folder: Path) -> RunState | None:
    try:
        found = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return RunState(**found | {"candidates": tuple(found.get("candidates", ()))})
    except (OSError, ValueError, TypeError):
        return None
