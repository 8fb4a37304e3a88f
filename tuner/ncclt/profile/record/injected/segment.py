"""End of a segment: the ranks signal themselves behind the same step, so that the training saves and exits.

A training that checkpoints on a signal often does so by a collective operation, so a signal that reaches the ranks in
different steps may hang it. Here the ranks agree over the store of the process group, which is no communication of
NCCL: rank 0 writes at a *check* the step of the next one, or that it is time; the others wait for that. A key is
written once, so all ranks read the same, also one that gives up waiting.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

INTERVAL_S = 10.0
"""Max time between two checks: two requests of each rank to one server thread, 0.25 s for 1,024 ranks."""

WAIT_S = 60.0
"""Max wait for rank 0 at a check, far above the time by which ranks are apart at a step."""

_STOP, _OFF = "stop", "off"


class SegmentEnd:
    """The agreement of the ranks on the last step of a segment.

    Args:
        folder: the recording's folder; rank 0 ends the segment once it holds a file `stop`.
        number: of the signal.
        first: step of the first check, behind the window.
        steps: max steps between two checks: as many as the window has, so that a short test has short segments.
    """

    def __init__(self, folder: Path, *, number: int, first: int, steps: int) -> None:
        self._stop = folder / "stop"
        self.number = number
        self._next, self._before, self._steps = first, 0, steps
        self._store: Any = None

    @property
    def is_handled(self) -> bool:
        """Return True if the program has a handler for the signal, or the user has chosen the one that has none."""
        handler = signal.getsignal(self.number)
        is_own = callable(handler) and handler is not signal.default_int_handler
        return is_own or self.number == signal.SIGKILL

    def is_due(self, step: int, times_s: Sequence[float]) -> bool:
        """Return True if the segment ends behind this step, on all ranks.

        Args:
            step: counted from 1, the same on all ranks.
            times_s: of some steps of this rank.

        Raises:
            RuntimeError: the ranks cannot agree; the segment never ends.
        """
        if step < self._next:
            return False
        step_s = max(sorted(times_s)[len(times_s) // 2], 1e-6)
        following = str(step + max(1, min(self._steps, round(INTERVAL_S / step_s))))
        said = self._agree(step, following)
        if said == _OFF:
            raise RuntimeError(f"the ranks do not reach the same steps: not all of them were at step {self._before}")
        if said == _STOP:
            return True
        self._before, self._next = step, int(said)
        return False

    def _agree(self, step: int, following: str) -> str:
        import torch

        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                raise RuntimeError("there is no process group over which the ranks could agree on a step")
            return self._decide(following)
        if self._store is None:
            self._store = distributed.distributed_c10d._get_default_store()
            with suppress(AttributeError, RuntimeError, NotImplementedError):
                self._store = self._store.clone()  # one that waits blocks no other user of the connection
        return self.agree_over(
            self._store, step, following, rank=distributed.get_rank(), ranks=distributed.get_world_size()
        )

    def agree_over(self, store: Any, step: int, following: str, *, rank: int, ranks: int) -> str:
        """Return the entry of rank 0 at a check: step of the next one, end of the segment, or that it never ends.

        Args:
            store: of the process group, with the methods of `torch.distributed.Store`.
            step: of the check.
            following: step of the next one.
            rank, ranks: of this process, and of all.
        """
        # Ranks that the launcher started again have the same store.
        prefix = f"ncclt/segment/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        store.add(f"{prefix}/{step}/ranks", 1)
        key = f"{prefix}/{step}"
        if rank == 0:
            is_alike = not self._before or store.add(f"{prefix}/{self._before}/ranks", 0) == ranks
            mine = self._decide(following) if is_alike else _OFF
        else:
            mine, until_s = _OFF, time.monotonic() + WAIT_S
            while not store.check([key]) and time.monotonic() < until_s:
                time.sleep(0.001)
        # Written once: what is there already is what it returns.
        said: bytes | str = store.compare_set(key, "", mine)
        return said.decode() if isinstance(said, bytes) else said

    def _decide(self, following: str) -> str:
        """Return that the segment ends if that was asked for and seen once, else the step of the next check."""
        if not self._before:
            return following  # it is not known yet whether all ranks get here
        try:
            # Renamed, so that ranks that the launcher starts again by itself do not stop a second time.
            self._stop.rename(self._stop.with_name("stopped"))
        except OSError:
            return following
        return _STOP
