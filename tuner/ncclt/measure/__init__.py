"""A benchmark and a launcher joined to a runner: it launches, waits no longer than is sensible, and judges the end."""

from __future__ import annotations

from ncclt.measure.persistent.runner import PersistentRunner
from ncclt.measure.runner import LaunchedRunner, asking
from ncclt.measure.sampling import SamplingLimit
from ncclt.measure.timeouts import TimeoutRule, Timeouts

__all__ = ["LaunchedRunner", "PersistentRunner", "SamplingLimit", "TimeoutRule", "Timeouts", "asking"]
