"""Which training steps are recorded, and how: a trace of one rank by torch.profiler, or step times alone."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

SETTLING_STEPS = 3
"""Steps at the start whose times count for nothing: DDP rebuilds its buckets, kernels and buffers are chosen."""


class Window:
    """`steps` steps behind the first `warmup`, counted from 1.

    The profiler is prepared one step ahead where there is room, so that its first use slows no recorded step down.
    """

    def __init__(self, *, warmup: int, steps: int) -> None:
        self.lead = 1 if warmup > 1 else 0
        self.begin = warmup - self.lead
        self.first, self.last = warmup + 1, warmup + steps
        # The step behind the window waits for ranks that still write their traces.
        self.end = self.last + 1 + steps

    def is_inside(self, step: int) -> bool:
        """Return whether a step is recorded."""
        return self.first <= step <= self.last

    def is_outside(self, step: int) -> bool:
        """Return whether a step shows how long steps take without a recording."""
        return SETTLING_STEPS < step <= self.begin or self.last + 1 < step <= self.end

    def action(self, position: int) -> str:
        """Name the torch.profiler.ProfilerAction of the profiler's own step `position`, counted from 0."""
        final = self.lead + self.last - self.first
        if position < self.lead:
            return "WARMUP"
        if position > final:
            return "NONE"
        return "RECORD_AND_SAVE" if position == final else "RECORD"


class Trace:
    """Records a window of steps and writes it as one Kineto trace.

    Args:
        path: of the trace; it has this name only once it is complete.
        window: the steps.
    """

    def __init__(self, path: Path, window: Window) -> None:
        import torch
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        self._path, self._window = path, window
        self._discard = self._cut = False
        self.write_s = 0.0
        devices = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profiler: Any = profile(
            activities=[ProfilerActivity.CPU, *devices],
            record_shapes=True,  # over gloo, and before torch 2.3 over NCCL, only shapes show the sizes
            schedule=lambda position: getattr(ProfilerAction, window.action(position)),
            on_trace_ready=self._save,
        )

    def start(self) -> None:
        """Prepare the profiler, or start it where the window begins at once."""
        self._profiler.start()

    def step(self) -> None:
        """Go on to the next step; behind the last one of the window the trace is written."""
        self._profiler.step()

    def close(self) -> None:
        """End the profiler behind the window."""
        self._profiler.stop()

    def cut(self, *, save: bool) -> None:
        """End the profiler inside the window and write the complete steps, or nothing."""
        self._cut, self._discard = save, not save
        self._profiler.stop()

    def is_by(self, profiler: object) -> bool:
        """Return whether a torch.autograd profiler is our own."""
        return getattr(self._profiler, "profiler", None) is profiler

    def _save(self, profiler: Any) -> None:
        if self._discard:
            return
        began_s = time.perf_counter()
        part = self._path.with_name(f"{self._path.name}.{id(self)}.part")
        profiler.export_chrome_trace(str(part))
        if self._cut:
            _unmark(part, f"ProfilerStep#{profiler.step_num}")
        part.replace(self._path)
        self.write_s = time.perf_counter() - began_s


class Timing:
    """Lets a window of steps pass, in place of a trace; their times are in the journal.

    Args:
        path: of the empty file that shows the other ranks that this one has finished the window.
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
        """Return True: no profiler of ours is in the way."""
        return True


def _unmark(path: Path, step: str) -> None:
    """Rename a step that the end of the program cut off, so that no reader takes it for a complete one."""
    cut = path.with_suffix(".cut")
    with path.open("rb") as before, cut.open("wb") as after:
        after.writelines(line.replace(f'"{step}"'.encode(), b'"ncclt: cut off"') for line in before)
    cut.replace(path)
