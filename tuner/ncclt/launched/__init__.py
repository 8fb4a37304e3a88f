"""A benchmark and a launcher joined to a runner: it launches, waits no longer than is sensible, and judges the end."""

from __future__ import annotations

from ncclt.launched.pace import Pace
from ncclt.launched.persistent import PersistentRunner
from ncclt.launched.runner import LaunchedRunner, asking
from ncclt.launched.timeouts import TimeoutRule, Timeouts

__all__ = ["LaunchedRunner", "Pace", "PersistentRunner", "TimeoutRule", "Timeouts", "asking"]
