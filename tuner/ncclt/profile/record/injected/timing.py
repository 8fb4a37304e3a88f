"""Step times alone, without a profiler; in the place of a trace."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


class Timing:
    """Lets a window of steps go by; their times stand in the journal.

    Args:
        path: where an empty file will tell the other ranks that this one is through the window.
    """

    write_s = 0.0

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self) -> None:
        """Prepare nothing: the journal has a clock already."""

    def step(self) -> None:
        """Go on to the next step."""

    def close(self) -> None:
        """End the window."""
        self._path.touch()

    def cut(self, *, save: bool) -> None:
        """End inside the window: `save` or not, there is nothing to write, and the others wait no longer for it."""

    def is_by(self, _profiler: object) -> bool:
        """Tell that no profiler is in the way, for there is none of ours."""
        return True
