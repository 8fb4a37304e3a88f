"""Whole studies without anybody who watches, at one moment."""

from ncclt.pipeline.tune import tune
from ncclt.testing.fakes import SilentWatcher


def tune_quietly(request, testbed, store, *, interrupted=lambda: "", clock=lambda: 0.0):
    """Run a study to its end and return its result."""
    return tune(
        request,
        testbed,
        store,
        watcher=SilentWatcher(),
        interrupted=interrupted,
        clock=clock,
        now=lambda: "2026-01-01T00:00:00+00:00",
    )
