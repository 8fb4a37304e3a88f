"""A time limit for contract tests: one that hangs fails, and names the method that does not return."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar

import pytest


class WatchedContract:
    """Base of the contracts.

    Attributes:
        limit_s: for one test; a subclass may give another one.
    """

    limit_s: ClassVar[float] = 120.0

    @pytest.fixture(autouse=True)
    def _watchdog(self) -> Iterator[None]:
        with fail_after(self.limit_s):
            yield


@contextmanager
def fail_after(limit_s: float) -> Iterator[None]:
    """Fail a test that takes longer, with the method under test and the seconds; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def fail(_number: int, frame: FrameType | None) -> None:
        # Not an Exception, which the code under test might catch.
        pytest.fail(f"{_method_under_test(frame)} has not returned after {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _method_under_test(frame: FrameType | None) -> str:
    """Return the outermost function that a test called in another file than its own, with that test."""
    called = []
    while frame is not None:
        called.append(frame)
        if frame.f_code.co_name.startswith("test_"):
            break
        frame = frame.f_back
    test = called.pop().f_code
    names = [call.f_code.co_qualname for call in reversed(called) if call.f_code.co_filename != test.co_filename]
    return f"{names[0]} in {test.co_name}" if names else test.co_name
