"""Waiting for what another process brings about."""

import time

PATIENT_S = 300.0


def soon(seen, within_s=PATIENT_S):
    """Wait for a value that is true and return it; after a while, return the last one."""
    deadline_s = time.monotonic() + within_s
    while not (value := seen()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return value


def until(seen, within_s=PATIENT_S):
    """Wait for a value that is true and return it; fail after a while."""
    value = soon(seen, within_s)
    assert value, "it did not happen"
    return value
