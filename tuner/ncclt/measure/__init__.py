"""A benchmark and a launcher joined to a runner: it launches, waits no longer than is sensible, and judges the end."""

from __future__ import annotations

from ncclt.measure.limits import SamplingLimit, Timeouts
from ncclt.measure.persistent.runner import PersistentRunner
from ncclt.measure.runner import LaunchedRunner, ask_through

__all__ = ["LaunchedRunner", "PersistentRunner", "SamplingLimit", "Timeouts", "ask_through"]
