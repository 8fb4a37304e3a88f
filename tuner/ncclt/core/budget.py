"""Limits and options of a study's search and proof."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ncclt.core.option import Group, Option
from ncclt.core.recommendation import MIN_EFFECT
from ncclt.errors import UsageError

PATIENCE = 10
"""Launches without a worthwhile gain after which the search stops."""

MIN_BLOCKS = 3
"""Fewer blocks than this decide nothing."""

MAX_BLOCKS = 16
"""Blocks of a proof at most. With a noise of 2 %, a gain of 5 % needs 4 to 10 of them, no gain 3 to 16."""

MOST_LAUNCHES = 1_000_000
"""Launches that an option may allow at most: years of them."""

MOST_STEPS = 10**12
MOST_SECONDS = 366 * 86400
MOST_GPU_HOURS = 10**9

LAST_SEED = 2**31 - 1
"""Largest seed: the samplers take 32 bits, a column of the store 31."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits and options of a study's search and proof; the `Option` of a field documents it.

    `trials` and `gpu_hours` count the whole study, earlier runs included; `seconds` counts this run. `process_wide` is
    kept as sorted names without `NCCL_`, and `none` as no name; None = those that the workload's collectives use.

    Raises:
        UsageError: a number is out of range.
    """

    trials: Annotated[int, Option("Max search trials, including earlier runs of the study.")] = 40
    seconds: Annotated[float | None, Option("Max seconds of search in this run.", flag="--time")] = None
    gpu_hours: Annotated[float | None, Option("Max GPU-hours of the whole study.", group=Group.BUDGET)] = None
    steps: Annotated[
        int | None,
        Option("Training steps that will use the result; stop when trials no longer pay off.", group=Group.BUDGET),
    ] = None
    patience: Annotated[
        int, Option("Max trials without a gain before the search stops; 0 = no limit.", group=Group.BUDGET)
    ] = PATIENCE
    blocks: Annotated[int, Option("Max blocks of the A/B test, two launches per arm each.", group=Group.PROOF)] = (
        MAX_BLOCKS
    )
    prove_variables: Annotated[
        bool, Option("Validate plain variables too, for jobs without the tuner plugin.", group=Group.PROOF)
    ] = False
    min_effect: Annotated[
        float, Option("Min gain worth a change, as a share of the step or communication time.", group=Group.PROOF)
    ] = MIN_EFFECT
    process_wide: Annotated[
        tuple[str, ...] | None,
        Option(
            "Comma-separated process-wide parameters; default: by collective, none = leave.",
            comma=True,
            group=Group.WHAT,
        ),
    ] = None
    deterministic: Annotated[
        bool, Option("Only policies that keep the reduction order of the NCCL default.", group=Group.WHAT)
    ] = False
    seed: Annotated[int, Option("Random seed; the same seed repeats the study.", group=Group.BUDGET)] = 0
    sampler: Annotated[
        str,
        Option(
            "Optuna or OptunaHub sampler to use instead of the built-in one.",
            metavar="MODULE:CLASS(KEY=VALUE)",
            group=Group.BUDGET,
        ),
    ] = ""
    study: Annotated[str | None, Option("Name of the study; the same name resumes.")] = None
    more: Annotated[
        int | None,
        Option("Add N trials to a finished study.", flag="--continue", metavar="N", least=1),
    ] = None

    def __post_init__(self) -> None:
        for flag, value, least, most in (
            ("--trials", self.trials, 1, MOST_LAUNCHES),
            ("--patience", self.patience, 0, MOST_LAUNCHES),
            ("--continue", self.more, 0, MOST_LAUNCHES),
            ("--blocks", self.blocks, 1, MOST_LAUNCHES),
            ("--steps", self.steps, 1, MOST_STEPS),
        ):
            if value is not None and not least <= value <= most:
                raise UsageError(f"{flag} must be {least} to {most:,}, not {value}")
        for flag, amount, most, unit in (
            ("--time", self.seconds, MOST_SECONDS, "seconds"),
            ("--gpu-hours", self.gpu_hours, MOST_GPU_HOURS, "GPU-hours"),
        ):
            if amount is not None and not 0 < amount <= most:
                raise UsageError(
                    f"{flag} must be above 0 and at most {most:,} {unit}, not {amount:g}",
                    hint="without it there is no such limit",
                )
        if not 0 <= self.seed <= LAST_SEED:
            raise UsageError(f"--seed must be 0 to {LAST_SEED}, not {self.seed}")
        if not 0 <= self.min_effect < 1:
            raise UsageError(f"--min-effect must be 0 to 0.99, not {self.min_effect:g}")
        if self.study is not None and not self.study.strip():
            raise UsageError("--study needs a name")
        if self.study is not None and any("\ud800" <= letter <= "\udfff" for letter in self.study):
            raise UsageError(f"--study {self.study!r} is not UTF-8", hint="check the locale of the terminal or script")
        if self.process_wide is not None:
            names = {name.upper().removeprefix("NCCL_") for name in self.process_wide}
            object.__setattr__(self, "process_wide", () if names == {"NONE"} else tuple(sorted(names)))
