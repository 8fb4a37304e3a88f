"""Counts the training steps of one process and records a window of them."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import weakref
from pathlib import Path

from .journal import ErrorGuard, Journal
from .trace import Timing, Trace, Window
from .watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

STOP_WAIT_S = 120.0
"""How long a rank that ends the job waits for the others to write: a trace of 1 GB takes about a minute."""


class Recorder:
    """Follows PyTorch's optimizers by its global hook (`register_optimizer_step_post_hook`, torch 2.0).

    Args:
        folder: the recording's folder, shared by all ranks.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._journal = Journal(self._folder)
        self._pid = os.getpid()
        self._stop_after = self._times_only = self._count_only = self._over = self._leaving = False
        self._steps, self._last_s = 0, 0.0
        self._optimizer: Callable[[], Any] = lambda: None
        self._watch: Watch | None = None
        self._backward_known = False
        self._trace: Trace | Timing | None = None

    def attach(self, optim: ModuleType) -> None:
        """Register with PyTorch's optimizers."""
        with ErrorGuard(self._give_up, "following the optimizers"):
            plan = json.loads((self._folder / "inject" / "recording.json").read_text(encoding="utf-8"))
            self._window = Window(warmup=plan["warmup"], steps=plan["steps"])
            self._stop_after = plan["stop_after"]
            self._times_only = plan.get("times_only", False)
            self._count_only = plan.get("count_only", False)
            register = getattr(optim, "register_optimizer_step_post_hook", None)
            if register is None:
                raise RuntimeError("this PyTorch has no global optimizer hooks; torch 2.0 or later is needed")

            def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
                self._after_step(optimizer)

            # Read by torch.compile, which would otherwise trace into the hook of a compiled step and warn about it.
            vars(after_step)["_torchdynamo_disable"] = True
            register(after_step)
            atexit.register(self._at_exit)
            self._journal.write()

    def _give_up(self, reason: str) -> None:
        """End the recording and say why; what was not written yet is lost."""
        self._over = True
        self._journal.facts["failures"].append(reason)
        trace, self._trace = self._trace, None
        if trace is not None:
            with ErrorGuard(self._give_up, "ending the profiler"):
                trace.cut(save=False)
        self._journal.write(state="failed")

    def _after_step(self, optimizer: Any) -> None:
        if self._leaving:
            # SystemExit was caught: the program does not want to end, but --stop-after was asked for.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        # The hook stays registered: removing it in here would break PyTorch's loop over its hooks.
        if not self._over and os.getpid() == self._pid:
            with ErrorGuard(self._give_up, "counting steps"):
                if self._is_step(optimizer):
                    self._count_step()

    def _is_step(self, optimizer: Any) -> bool:
        """Return whether the training has moved on by one step.

        Of several optimizers the first one counts, for as long as it lives. It counts once per backward pass: ZeRO
        optimizers step once per parameter group. Where no backward pass was ever seen, each of its steps counts.
        """
        if self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return False
        if self._watch is None:
            self._watch = Watch(on_skip=self._after_step, on_profiler=self._make_way)
            return True
        self._watch.hook_called = True
        self._backward_known = self._backward_known or self._watch.backward_seen
        if self._backward_known and not self._watch.backward_seen:
            return False
        self._watch.backward_seen = False
        return True

    def _count_step(self) -> None:
        interval_s = time.perf_counter() - self._last_s
        self._steps += 1
        step, window, facts = self._steps, self._window, self._journal.facts
        facts["steps_seen"] = step
        if self._count_only:
            return  # what the steps hold is seen by others: the whole run is counted, and nothing is timed
        if window.is_inside(step):
            facts["inside_s"].append(interval_s)
        elif window.is_outside(step):
            facts["outside_s"].append(interval_s)
        if step == window.begin:
            self._start()
        elif self._trace is not None:
            self._trace.step()
            if step == window.last:
                self._finish(self._trace)
        if step == window.end:
            self._end_watching()
            self._journal.write()
        self._last_s = time.perf_counter()

    def _start(self) -> None:
        import torch

        other = self._watch is not None and self._watch.other_profiler_runs
        if not self._times_only and (other or torch._C._autograd._profiler_enabled()):
            raise RuntimeError("the program runs a profiler of its own at the same time")
        began_s = time.perf_counter()
        facts, rank = self._journal.facts, os.environ.get("RANK", "")
        facts.update(torch=str(torch.__version__), rank=int(rank) if rank.isdecimal() else None)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            facts.update(rank=torch.distributed.get_rank(), world_size=torch.distributed.get_world_size())
        # Named by its rank: what a restarted rank writes replaces what it wrote before.
        who = f"{facts['host']}.{facts['pid']}" if facts["rank"] is None else f"rank{facts['rank']}"
        path = self._folder / "traces" / f"{who}.json"
        self._trace = Timing(path) if self._times_only else Trace(path, self._window)
        self._trace.start()
        self._journal.write(state="recording", start_s=time.perf_counter() - began_s)

    def _finish(self, trace: Trace | Timing) -> None:
        self._trace = None
        trace.close()
        facts = self._journal.facts
        self._journal.write(state="recorded", steps_recorded=len(facts["inside_s"]), write_s=trace.write_s)
        _silence_log(self._folder / "nccl")
        if self._stop_after:
            self._end_watching()
            _await_files(self._folder / "traces", facts["world_size"])
            self._leaving = True
            raise SystemExit(0)

    def _end_watching(self) -> None:
        self._over = True
        if self._watch is not None:
            self._watch.end()

    def _make_way(self, profiler: Any) -> None:
        """End the recording for a profiler of the program: PyTorch has room for one and would refuse the second."""
        if self._trace is not None and not self._trace.is_by(profiler):
            self._give_up("the program started a profiler of its own")

    def _at_exit(self) -> None:
        """Save what there is of a window that the program did not reach the end of."""
        if os.getpid() != self._pid:
            return
        trace, self._trace = self._trace, None
        complete = len(self._journal.facts["inside_s"])
        with ErrorGuard(self._give_up, "saving a window that was cut short"):
            if trace is not None:
                trace.cut(save=complete > 0)
                self._journal.facts.update(state="cut short", steps_recorded=complete, write_s=trace.write_s)
        self._journal.write()


def _silence_log(folder: Path) -> None:
    """Send NCCL's log of this process nowhere from now on: it has served, and a long training would fill the disk."""
    for descriptor in Path("/proc/self/fd").iterdir():
        if descriptor.resolve().parent == folder.resolve():
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, int(descriptor.name))
            os.close(null)


def _await_files(folder: Path, count: int) -> None:
    """Wait until all ranks have written, for the first one to leave may take the others with it."""
    deadline_s = time.monotonic() + STOP_WAIT_S
    while time.monotonic() < deadline_s and len(list(folder.glob("*.json"))) < count:
        time.sleep(0.05)
