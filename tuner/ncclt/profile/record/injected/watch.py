"""What the optimizer hook does not see: functions of PyTorch that are watched until the window is over."""

from __future__ import annotations

import functools
import sys
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


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
        """Return whether a profiler that was begun after us has not ended yet."""
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
