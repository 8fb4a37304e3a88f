"""Director of live tuning: builds blocks of steps from the boundaries of a job, and chooses the plan of each.

It runs in rank 0 of the user's job and gets boundaries from `ncclt.deliver.agree.injected.live`. Files in the folder
that it shares with `ncclt autotune --live`:

    arms.json      arms and limits, written by ncclt
    blocks.jsonl   one line per block (`resume_experiment`); a restarted job appends to it
    state.json     newest state, replaced atomically

This module runs inside the job of the user: standard library alone, Python 3.8, nothing of ncclt.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .experiment import CONTROL, Draw, Experiment, StepBlock

ARMS_FILE, BLOCKS_FILE, STATE_FILE = "arms.json", "blocks.jsonl", "state.json"

MIN_BLOCK_S = 2.0
"""Min time of a block: in shorter blocks, switches would cost more than the block can show."""

_MOST_BYTES = 1_000_000
"""Size of the file of blocks above which guard blocks are no longer added: a restarted job has to read them all. Arms
that were dropped since are in the state."""

MIN_COUNTED = 3
"""Min counted steps of a block: the fewest with a median that one outlier does not move."""

SWITCH_STEPS = 3
"""Uncounted steps after each draw: ranks learn the plan during two steps; in the third, the first one under the plan,
ranks wait for each other (`Coordinator.propose`)."""


class LiveDirector:
    """Director of live tuning in rank 0.

    Args:
        folder: folder with `arms.json`.
        backend: PyTorch's name of the job's backend.
        coin: source of the draws; None = the system's.

    Attributes:
        experiment: test of the arms.
        news: message to the user after the last boundary; empty = no change.
        finished: reason for the end; empty = still running.
    """

    def __init__(self, folder: Path, *, backend: str, ranks: int, coin: random.Random | None = None) -> None:
        request = json.loads((folder / ARMS_FILE).read_text(encoding="utf-8"))
        self.news = self.finished = ""
        self._backend, self._ranks = backend, ranks
        self._folder, self._min_block_us = folder, 1e6 * request["min_block_s"]
        self._names: list[str] = [arm["name"] for arm in request["arms"]]
        self._plans: list[str] = ["", *(arm["table"] for arm in request["arms"])]
        limits = {name: request[name] for name in ("min_effect", "max_cost")}
        self.experiment, blocks, _ = resume_experiment(
            folder, self._names, coin=coin or random.SystemRandom(), **limits
        )
        self._before_step = blocks[-1].step if blocks else 0
        self._before_us, self._elapsed_us = self.experiment.elapsed_us, 0.0
        self._draw, self._drawn_at, self._is_drawn = Draw(CONTROL), 0, True
        self._uncounted: list[float] = []
        self._counted: list[float] = []
        self._restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        if not (folder / STATE_FILE).exists():
            self._write_state(step=0, in_force=None)

    def decide(self, boundary: Any) -> str | None:
        """Return the plan of the next block; None = the current plan."""
        self.news = ""
        times_us = [max(times) for times in zip(*boundary.times_us.values())]  # noqa: B905  # Python 3.8
        in_force = self._plans.index(boundary.plan)
        if not self._elapsed_us:
            self._write_state(step=boundary.step, in_force=in_force)
        self._elapsed_us += sum(times_us)
        if boundary.outcome is not None and not boundary.outcome.committed:
            self._is_drawn = False  # discard the block and keep its draw: only a change of plan can fail
        if self._is_drawn:
            self._count(boundary, times_us, is_in_force=in_force == self._draw.arm)
        if not boundary.can_propose or (self._is_drawn and not self._is_block_complete()):
            return None
        if self._is_drawn:
            before = self._describe_state()
            self._end_block(boundary.step)
            self.news = "" if before == self._describe_state() else self._describe_state()
            self._draw = Draw(CONTROL) if self.experiment.has_ended else self.experiment.next()
        if self.experiment.has_ended and in_force == CONTROL:
            self.finished = self._describe_end()
        self._uncounted, self._counted = [], []
        self._drawn_at, self._is_drawn = boundary.step, True
        self._write_state(step=boundary.step, in_force=in_force)
        return None if self._draw.arm == in_force else self._plans[self._draw.arm]

    def end(self, reason: str) -> None:
        """Store the reason for ending proposals."""
        self.finished = self.finished or reason
        self._write_state(step=self._drawn_at, in_force=None)

    def _count(self, boundary: Any, times_us: list[float], *, is_in_force: bool) -> None:
        """Sort the steps since the last boundary into counted ones of the block and those before them."""
        starts_at = max(self._drawn_at + SWITCH_STEPS, boundary.plan_since) + 1
        for step, time_us in enumerate(times_us, start=boundary.step - len(times_us) + 1):
            (self._counted if is_in_force and step >= starts_at else self._uncounted).append(time_us)

    def _is_block_complete(self) -> bool:
        """Check that the block has enough steps, by the control's step time: equal lengths for all arms."""
        step_us = self.experiment.level_us or statistics.median(self._counted or [1.0])
        steps = max(MIN_COUNTED, math.ceil(self._min_block_us / step_us))
        return bool(len(self._counted) >= steps * max(1, self._draw.guards))

    def _end_block(self, step: int) -> None:
        block = StepBlock(
            draw=self._draw,
            step_us=tuple(round(time_us) for time_us in self._counted),
            uncounted_us=tuple(round(time_us) for time_us in self._uncounted),
            step=self._before_step + step,
            elapsed_us=round(self._before_us + self._elapsed_us),
        )
        self.experiment.observe(block)
        row = [block.draw, block.step_us, block.uncounted_us, block.step, block.elapsed_us]
        with (self._folder / BLOCKS_FILE).open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            if block.draw.guards and size > _MOST_BYTES:
                return
            file.seek(max(size - 1, 0))
            is_torn = file.read() not in (b"", b"\n")
            file.write(b"\n" * is_torn + json.dumps(row).encode() + b"\n")

    def _describe_state(self) -> str:
        leading = self.experiment.leading
        if leading is None:
            return "back to the NCCL default"
        name = self._names[leading - 1]
        if self.experiment.tuned is None:
            return f"{name} leads and stays in force; checking it for rare stalls"
        return f"tuned: steps are faster with {name}, stalls included; keeping it"

    def _describe_end(self) -> str:
        if self.experiment.left:
            return "undecided: step noise hides any gain; keeping the NCCL default"
        return "no arm is faster; keeping the NCCL default"

    def _write_state(self, *, step: int, in_force: int | None) -> None:
        state = {
            "step": step,
            "in_force": in_force,
            "restarts": self._restarts,
            "backend": self._backend,
            "ranks": self._ranks,
            "finished": self.finished,
            "dropped": {self._names[arm - 1]: why for arm, why in self.experiment.dropped.items()},
        }
        part = self._folder / f"{STATE_FILE}.part"
        part.write_text(json.dumps(state), encoding="utf-8")
        part.replace(self._folder / STATE_FILE)


def resume_experiment(folder: Path, names: Sequence[str], **options: Any) -> tuple[Experiment, list[StepBlock], Any]:
    """Return the experiment of a job as far as its folder shows it, its blocks, and its last state.

    Lines that are torn or of another format are skipped.

    Args:
        names: of the arms.
        options: of the experiment.
    """
    experiment, blocks, path = Experiment(arms=len(names), **options), list[StepBlock](), folder / BLOCKS_FILE
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, TypeError):
            (arm, drawn_from, *draw), step_us, uncounted_us, step, elapsed_us = json.loads(line)
            times_us = tuple(map(float, step_us)), tuple(map(float, uncounted_us))
            block = StepBlock(Draw(arm, tuple(drawn_from), *draw), *times_us, int(step), float(elapsed_us))
            if arm in range(len(names) + 1):
                blocks.append(block)
                experiment.observe(block)
    state: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    dropped = state.get("dropped", {})
    experiment.dropped.update({number: dropped[name] for number, name in enumerate(names, 1) if name in dropped})
    return experiment, blocks, state
