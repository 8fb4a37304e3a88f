"""Faults of a simulated cluster, with the messages of real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ncclt.core.setting import Setting
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.measure.simulated.noise import uniform

Predicate = Callable[[Setting], bool]
"""Returns whether a setting always fails."""

DETAIL = {
    Outcome.CRASHED: (
        "node1:4242:4242 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'\n"
        "Test NCCL failure: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
    ),
    Outcome.TIMEOUT: (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE) ran for longer than the "
        "limit; the processes were killed"
    ),
    Outcome.WRONG_RESULT: "# Out of bounds values : 1024 FAILED",
}
"""Last lines of output of each fault (forms as printed by NCCL, torch and nccl-tests)."""


def _never(_setting: Setting) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Which launches fail, and how.

    Attributes:
        crash, hang, wrong: probability of that outcome of a launch, 0 to 1; drawn from the seed.
        crash_if, hang_if, wrong_if: settings that always have it.
    """

    crash: float = 0.0
    hang: float = 0.0
    wrong: float = 0.0
    crash_if: Predicate = _never
    hang_if: Predicate = _never
    wrong_if: Predicate = _never

    def __post_init__(self) -> None:
        if any(not 0 <= p <= 1 for p in (self.crash, self.hang, self.wrong)):
            raise UsageError("the probability of a fault must be 0 to 1", hint="0 = never, 1 = every launch")

    def outcome(self, setting: Setting, *, seed: int, repeat: int) -> Outcome:
        """Return how a launch ends: `ok`, or the first fault that occurs."""
        for outcome, rate, always in (
            (Outcome.CRASHED, self.crash, self.crash_if),
            (Outcome.TIMEOUT, self.hang, self.hang_if),
            (Outcome.WRONG_RESULT, self.wrong, self.wrong_if),
        ):
            if always(setting) or (rate and uniform(seed, setting, repeat, outcome) < rate):
                return outcome
        return Outcome.OK


NO_FAULTS = Faults()
"""Every launch succeeds."""
