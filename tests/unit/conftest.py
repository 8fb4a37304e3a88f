"""Fixtures of several rooms."""

import resource
import signal
from contextlib import contextmanager

import pytest


@pytest.fixture
def full_disk():
    """Return a context in which this process can write to no file, as on a full disk; all that is there can be read."""

    @contextmanager
    def full():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write fails, and does not end us
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)

    return full
