"""Waiting for what another process brings about."""

import time

PATIENT_S = 300.0


def until(seen, within_s=PATIENT_S):
    """Wait for a value that is true and return it; fail after a while."""
    deadline_s = time.monotonic() + within_s
    while not (value := seen()):
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.1)
    return value
