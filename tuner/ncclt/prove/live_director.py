"""The director of live tuning: blocks of steps from the boundaries of a job, and the plan of each.

It runs in rank 0 of the user's job, beside `ncclt.deliver.agree.injected.live`, whose boundaries it gets. The folder
that it shares with `ncclt autotune --live`:

    arms.json      from ncclt: the arms and limits
    blocks.jsonl   one line per block, which `read_blocks` reads; those of a job that was started again continue it
    state.json     the newest state, always replaced as a whole

This module runs inside the job of the user: standard library alone, Python 3.8, nothing of ncclt.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from .live_proof import DEFAULT, Draw, LiveProof, StepBlock

ARMS_FILE, BLOCKS_FILE, STATE_FILE = "arms.json", "blocks.jsonl", "state.json"

MIN_BLOCK_S = 2.0
"""Min time of a block: shorter blocks would spend more on switches than they show."""

MIN_COUNTED = 3
"""Min counted steps of a block: the fewest with a median that one outlier does not move."""

SWITCH_STEPS = 3
"""Steps after a draw that count for no block, whatever it drew: ranks get to know a plan during two, and the third is
the first one under it, in which they wait for each other (`Coordinator.propose`)."""


class SavedBlock(NamedTuple):
    """A block with the time of the job at its end, µs, and its last step."""

    block: StepBlock
    elapsed_us: float
    step: int


class LiveDirector:
    """Live tuning as rank 0 directs it.

    Args:
        folder: with `arms.json`.
        backend: over which the job trains, as PyTorch names it.

    Attributes:
        finished: how it ended; empty = it goes on.
    """

    def __init__(self, folder: Path, *, backend: str, ranks: int) -> None:
        request = json.loads((folder / ARMS_FILE).read_text(encoding="utf-8"))
        self.finished = ""
        self._backend, self._ranks = backend, ranks
        self._folder, self._min_block_us = folder, 1e6 * request["min_block_s"]
        self._names: list[str] = [arm["name"] for arm in request["arms"]]
        self._plans: list[str] = ["", *(arm["table"] for arm in request["arms"])]
        self._proof = LiveProof(arms=len(self._names), min_effect=request["min_effect"], max_cost=request["max_cost"])
        for saved in read_blocks(folder):
            self._proof.add(saved.block, elapsed_us=saved.elapsed_us)
        self._before_us, self._elapsed_us = self._proof.elapsed_us, 0.0
        self._draw, self._drawn_at, self._is_drawn = Draw(DEFAULT), 0, True
        self._counted: list[float] = []
        self._first_us = 0.0
        self._steps = 0
        self._chosen: int | None = None
        self._restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        if not (folder / STATE_FILE).exists():
            self._write_state(step=0, in_force=None)

    def decide(self, boundary: Any) -> str | None:
        """Return the plan of the next block; None = the current plan."""
        times_us = [max(times) for times in zip(*boundary.times_us.values())]  # noqa: B905  # Python 3.8
        in_force = self._plans.index(boundary.plan)
        if not self._elapsed_us:
            self._write_state(step=boundary.step, in_force=in_force)
        self._elapsed_us += sum(times_us)
        if boundary.outcome is not None and not boundary.outcome.committed:
            self._is_drawn = False  # the block is void, and its draw holds: only a change of plan can fail
        if self._is_drawn:
            self._count(boundary, times_us, is_in_force=in_force == self._draw.arm)
        if not boundary.can_propose or (self._is_drawn and not self._is_block_complete()):
            return None
        if self._is_drawn and self._chosen is None:
            self._end_block(boundary.step)
        if self._chosen is None and self._proof.has_ended:
            self._chosen = self._proof.winner or DEFAULT
        if self._chosen == in_force:
            self.finished = self._describe_end(in_force)
        draw = self._draw if self._chosen is None else Draw(self._chosen)
        if self._chosen is None and self._is_drawn:
            draw = self._proof.draw()
        self._draw, self._drawn_at, self._is_drawn = draw, boundary.step, self._chosen is None
        self._counted, self._first_us, self._steps = [], 0.0, 0
        self._write_state(step=boundary.step, in_force=in_force)
        return None if draw.arm == in_force else self._plans[draw.arm]

    def end(self, reason: str) -> None:
        """Store the reason for ending proposals."""
        self.finished = self.finished or reason
        self._write_state(step=self._drawn_at, in_force=None)

    def _count(self, boundary: Any, times_us: list[float], *, is_in_force: bool) -> None:
        """Sort the steps since the last boundary into counted ones of the block and those before them."""
        starts_at = max(self._drawn_at + SWITCH_STEPS, boundary.plan_since) + 1
        self._steps += len(times_us)
        for step, time_us in enumerate(times_us, start=boundary.step - len(times_us) + 1):
            if is_in_force and step >= starts_at:
                self._counted.append(time_us)
            else:
                self._first_us = max(self._first_us, time_us)

    def _is_block_complete(self) -> bool:
        return len(self._counted) >= MIN_COUNTED and sum(self._counted) >= self._min_block_us

    def _end_block(self, step: int) -> None:
        block = StepBlock(draw=self._draw, step_us=tuple(self._counted), first_us=self._first_us, steps=self._steps)
        elapsed_us = self._before_us + self._elapsed_us
        self._proof.add(block, elapsed_us=elapsed_us)
        saved = {
            "arm": block.draw.arm,
            "drawn_from": block.draw.drawn_from,
            "opens_pair": block.draw.opens_pair,
            "closes_pair": block.draw.closes_pair,
            "step_us": [round(time_us, 1) for time_us in block.step_us],
            "first_us": round(block.first_us, 1),
            "steps": block.steps,
            "elapsed_us": round(elapsed_us, 1),
            "step": step,
        }
        with (self._folder / BLOCKS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(saved) + "\n")

    def _describe_end(self, chosen: int) -> str:
        if chosen != DEFAULT:
            gain = self._proof.result(chosen).speedup - 1
            return f"steps are {100 * gain:.1f} % faster with {self._names[chosen - 1]}, which stays"
        if self._proof.left:
            return "undecided: the noise of the steps hides any gain; the NCCL default stays"
        return "no arm is faster; the NCCL default stays"

    def _write_state(self, *, step: int, in_force: int | None) -> None:
        state = {
            "step": step,
            "in_force": in_force,
            "restarts": self._restarts,
            "backend": self._backend,
            "ranks": self._ranks,
            "finished": self.finished,
            "dropped": {self._names[arm - 1]: why for arm, why in self._proof.dropped.items()},
        }
        part = self._folder / f"{STATE_FILE}.part"
        part.write_text(json.dumps(state), encoding="utf-8")
        part.replace(self._folder / STATE_FILE)


def read_blocks(folder: Path) -> list[SavedBlock]:
    """Read the blocks written by a job, without a truncated last line."""
    path, blocks = folder / BLOCKS_FILE, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            break
        draw = Draw(record["arm"], tuple(record["drawn_from"]), record["opens_pair"], record["closes_pair"])
        block = StepBlock(
            draw=draw, step_us=tuple(record["step_us"]), first_us=record["first_us"], steps=record["steps"]
        )
        blocks.append(SavedBlock(block, record["elapsed_us"], record["step"]))
    return blocks
