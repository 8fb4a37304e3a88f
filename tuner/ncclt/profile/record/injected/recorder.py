"""The recording inside one process: counts its training steps and records a window of them.

`Recorder` follows PyTorch's optimizers, `Watch` the functions that their hook does not show. A window is recorded by
torch.profiler (`Trace`), or its step times alone are taken (`Timing`). `Journal` reports to the launching side.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import time
import weakref
from contextlib import contextmanager, suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any


class Journal:
    """One small JSON file, always replaced as a whole.

    Args:
        folder: the recording's folder.
    """

    def __init__(self, folder: Path) -> None:
        host, pid = os.uname().nodename, os.getpid()
        self._path = folder / "ranks" / f"{host}.{pid}.json"
        self.facts: dict[str, Any] = {"host": host, "pid": pid, "rank": None, "world_size": 0, "backend": ""}
        self.facts.update(state="loaded", steps_seen=0, outside_s=[], inside_s=[], write_s=0.0, failures=[])
        self.facts.update(started_with=_started_with(), set_inside={})

    def write(self, **changes: Any) -> None:
        """Update some facts and write all, with the NCCL variables that the program has set so far."""
        before = self.facts["started_with"]
        now = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
        self.facts["set_inside"] = {name: value for name, value in now.items() if before.get(name) != value}
        self.facts.update(changes)
        part = self._path.with_suffix(".part")
        with suppress(OSError):  # a full disk or a removed folder: there is nowhere left to report it
            part.write_text(json.dumps(self.facts), encoding="utf-8")
            part.replace(self._path)


def _started_with() -> dict[str, str]:
    """Return the NCCL variables that this process was started with, whatever its program has set since."""
    try:
        words = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(word).partition("=") for word in words if word.startswith(b"NCCL_"))
    return {name: value for name, _equals, value in pairs}


@contextmanager
def guard_errors(give_up: Callable[[str], None], doing: str) -> Iterator[None]:
    """Keep errors of the recording away from the training: hand their description to `give_up` instead."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # any error of our own; SystemExit and KeyboardInterrupt are none
        give_up(f"{doing}: {type(error).__name__}: {error}")


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
        """Return True if a step is recorded."""
        return self.first <= step <= self.last

    def is_outside(self, step: int) -> bool:
        """Return True if a step shows how long steps take without a recording."""
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
        """Return True if a torch.autograd profiler is our own."""
        return getattr(self._profiler, "profiler", None) is profiler

    def _save(self, profiler: Any) -> None:
        if self._discard:
            return
        began_s = time.perf_counter()
        part = self._path.with_name(f"{self._path.name}.{id(self)}.part")
        profiler.export_chrome_trace(str(part))
        if self._cut:
            # The step that the end of the program cut off is renamed, so that no reader takes it for a complete one.
            step, cut = f'"ProfilerStep#{profiler.step_num}"'.encode(), part.with_suffix(".cut")
            with part.open("rb") as before, cut.open("wb") as after:
                after.writelines(line.replace(step, b'"ncclt: cut off"') for line in before)
            cut.replace(part)
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


class Watch:
    """Sees backward passes, steps that a gradient scaler skips, and profilers of the program's own.

    Args:
        on_skip: called with the optimizer whose step a gradient scaler has skipped after an overflow.
        on_profiler: called with a torch.autograd profiler before it takes the place of another one.
    """

    def __init__(self, *, on_skip: Callable[[Any], None], on_profiler: Callable[[Any], None]) -> None:
        import torch

        self.backward_seen = False
        self.hook_called = False
        self._on_skip, self._on_profiler = on_skip, on_profiler
        self._other: Callable[[], Any] = lambda: None
        self._patched: list[tuple[Any, str, Any, Any]] = []
        self._patch(torch.autograd, "backward", self._backward)
        for name in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
            self._patch(getattr(sys.modules.get(name), "GradScaler", None), "step", self._scaler_step)
        self._patch(torch.autograd.profiler.profile, "_prepare_trace", self._prepare_trace)

    @property
    def other_profiler_runs(self) -> bool:
        """Return True if a profiler that was begun after us has not ended yet."""
        other = self._other()
        return other is not None and getattr(other, "kineto_results", None) is None

    def end(self) -> None:
        """Restore everything but functions that were patched again after us."""
        while self._patched:
            owner, name, patched, original = self._patched.pop()
            if vars(owner).get(name) is patched:
                setattr(owner, name, original)

    def _patch(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = None if owner is None else vars(owner).get(name)
        if original is None:
            return  # another version of PyTorch: what it would show stays unknown

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, patched)
        self._patched.append((owner, name, patched, original))

    def _backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.backward_seen = True
        return original(*args, **kwargs)

    def _scaler_step(self, original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.hook_called = False
        result = original(scaler, optimizer, *args, **kwargs)
        if not self.hook_called:
            self._on_skip(optimizer)
        return result

    def _prepare_trace(self, original: Callable[..., Any], profiler: Any) -> Any:
        self._on_profiler(profiler)
        result = original(profiler)
        self._other = weakref.ref(profiler)
        return result


STOP_WAIT_S = 120.0
"""Time for which a rank that ends the job waits for the others to write: a trace of 1 GB takes about a minute."""


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
        with guard_errors(self._give_up, "following the optimizers"):
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
            with guard_errors(self._give_up, "ending the profiler"):
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
            with guard_errors(self._give_up, "counting steps"):
                if self._is_step(optimizer):
                    self._count_step()

    def _is_step(self, optimizer: Any) -> bool:
        """Return True if the training has moved on by one step.

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
        facts, rank = self._journal.facts, os.environ.get("RANK", "")
        facts["rank"] = int(rank) if rank.isdecimal() else None
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            facts.update(rank=distributed.get_rank(), world_size=distributed.get_world_size())
            facts.update(backend=str(distributed.get_backend()))
        # Named by its rank: what a restarted rank writes replaces what it wrote before.
        process = f"{facts['host']}.{facts['pid']}" if facts["rank"] is None else f"rank{facts['rank']}"
        path = self._folder / "traces" / f"{process}.json"
        self._trace = Timing(path) if self._times_only else Trace(path, self._window)
        self._trace.start()
        self._journal.write(state="recording")

    def _finish(self, trace: Trace | Timing) -> None:
        self._trace = None
        trace.close()
        facts = self._journal.facts
        self._journal.write(state="recorded", write_s=trace.write_s)
        _silence_log(self._folder / "nccl")
        if self._stop_after:
            self._end_watching()
            # Wait until all ranks have written, for the first one to leave may take the others with it.
            deadline_s, traces = time.monotonic() + STOP_WAIT_S, self._folder / "traces"
            while time.monotonic() < deadline_s and len(list(traces.glob("*.json"))) < facts["world_size"]:
                time.sleep(0.05)
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
        with guard_errors(self._give_up, "saving a window that was cut short"):
            if trace is not None:
                trace.cut(save=complete > 0)
                self._journal.facts.update(state="cut short", write_s=trace.write_s)
        self._journal.write()


def _silence_log(folder: Path) -> None:
    """Send NCCL's log of this process nowhere from now on: it has served, and a long training would fill the disk."""
    for descriptor in Path("/proc/self/fd").iterdir():
        if descriptor.resolve().parent == folder.resolve():
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, int(descriptor.name))
            os.close(null)
