"""Run a model's constructor on the meta device: torch is imported here at once, so import this module on use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _NumbersOnCpu(TorchFunctionMode):
    """Make number sequences on the CPU: some constructors compute widths with them and read the result."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function, on the CPU where it makes a sequence of numbers for which no device is named."""
        options = dict(kwargs or {})
        if func in (torch.arange, torch.linspace, torch.tensor):
            options.setdefault("device", "cpu")
        return func(*args, **options)


def made_on_meta(maker: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Return the module that `maker` builds, without memory for its weights.

    A constructor that reads the value of a tensor fails on the meta device; it gets a second try with number sequences
    on the CPU (torchvision's RegNet).
    """
    # Advice on initial weights, which nobody will ever see.
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return maker()
        except (NotImplementedError, RuntimeError):
            with _NumbersOnCpu():
                return maker()
