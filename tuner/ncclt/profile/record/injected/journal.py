"""What a process reports to the launching side, errors of the recording included."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any


class Journal:
    """One small JSON file, always replaced as a whole.

    Args:
        folder: the recording's folder.
    """

    def __init__(self, folder: Path) -> None:
        host, pid = os.uname().nodename, os.getpid()
        self._path = folder / "ranks" / f"{host}.{pid}.json"
        self.facts: dict[str, Any] = {
            "host": host,
            "pid": pid,
            "rank": None,
            "world_size": 0,
            "torch": "",
            "state": "loaded",
            "steps_seen": 0,
            "steps_recorded": 0,
            "outside_s": [],
            "inside_s": [],
            "start_s": 0.0,
            "write_s": 0.0,
            "failures": [],
        }

    def write(self, **changes: Any) -> None:
        """Change some facts and write all."""
        self.facts.update(changes)
        part = self._path.with_suffix(".part")
        with suppress(OSError):  # a full disk or a removed folder: there is nowhere left to report it
            part.write_text(json.dumps(self.facts), encoding="utf-8")
            part.replace(self._path)


class ErrorGuard:
    """Keeps errors of the recording away from the training: hands their description to `give_up` instead."""

    def __init__(self, give_up: Callable[[str], None], doing: str) -> None:
        self._give_up, self._doing = give_up, doing

    def __enter__(self) -> None:
        """Begin something that may fail."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> bool:
        """Swallow an error of our own; SystemExit and KeyboardInterrupt are not errors."""
        if kind is None or not issubclass(kind, Exception):
            return False
        self._give_up(f"{self._doing}: {kind.__name__}: {error}")
        return True
