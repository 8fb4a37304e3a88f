"""Which training steps are recorded."""

from __future__ import annotations

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
        """Tell whether a step is recorded."""
        return self.first <= step <= self.last

    def is_outside(self, step: int) -> bool:
        """Tell whether a step shows how long steps take without a recording."""
        return SETTLING_STEPS < step <= self.begin or self.last + 1 < step <= self.end

    def action(self, position: int) -> str:
        """Name the torch.profiler.ProfilerAction of the profiler's own step `position`, counted from 0."""
        final = self.lead + self.last - self.first
        if position < self.lead:
            return "WARMUP"
        if position > final:
            return "NONE"
        return "RECORD_AND_SAVE" if position == final else "RECORD"
