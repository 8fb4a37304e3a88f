"""Options for the launches that compare two sides of a training: environments or commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ncclt.core.budget import MIN_BLOCKS, MOST_LAUNCHES, MOST_SECONDS
from ncclt.core.option import Group, Option
from ncclt.core.recommendation import MIN_EFFECT
from ncclt.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Number, length and limits of the launches; the `Option` of each field describes it.

    Raises:
        UsageError: a number is out of range.
    """

    blocks: Annotated[int, Option("Max blocks of two pairs each; at least 3 are run.", group=Group.PROOF)] = 12
    steps: Annotated[int, Option("Training steps to measure in each launch.")] = 30
    warmup: Annotated[int, Option("Warm-up steps before the measured ones.", group=Group.LAUNCH)] = 10
    min_effect: Annotated[float, Option("Min gain worth a change, as a share.", group=Group.PROOF)] = MIN_EFFECT
    timeout_s: Annotated[float, Option("Max seconds of a launch.", flag="--timeout", group=Group.LAUNCH)] = 1800.0
    run_to_end: Annotated[bool, Option("Do not stop launches after the measured steps.", group=Group.LAUNCH)] = False
    directory: Annotated[
        Path,
        Option("Path to a folder that all ranks share, for temporary files.", flag="--dir", group=Group.LAUNCH),
    ] = Path()

    def __post_init__(self) -> None:
        if not MIN_BLOCKS <= self.blocks <= MOST_LAUNCHES:
            raise UsageError(
                f"--blocks must be {MIN_BLOCKS} to {MOST_LAUNCHES:,}, not {self.blocks}",
                hint=f"fewer than {MIN_BLOCKS} blocks cannot decide",
            )
        for flag, steps in (("--steps", self.steps), ("--warmup", self.warmup)):
            if not 1 <= steps <= MOST_LAUNCHES:
                raise UsageError(f"{flag} must be 1 to {MOST_LAUNCHES:,}, not {steps}")
        if not 0 <= self.min_effect < 1:
            raise UsageError(f"--min-effect must be 0 to 0.99, not {self.min_effect:g}")
        if not 0 < self.timeout_s <= MOST_SECONDS:
            raise UsageError(f"--timeout must be above 0 and at most {MOST_SECONDS:,} seconds, not {self.timeout_s:g}")
