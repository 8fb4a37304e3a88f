"""A contract test that hangs fails and says where."""

import threading
import time

import pytest

from ncclt.testing.watchdog import fail_after


def test_a_method_that_hangs_is_named_with_its_limit():
    class Swallows:
        def read(self):
            try:
                threading.Event().wait()
            except Exception:  # noqa: BLE001 - a plugin may swallow the watchdog's exception
                self.read()

    with (
        pytest.raises(
            pytest.fail.Exception, match=r"Event\.wait in test_a_method_that_hangs\w+ has not returned after 0\.2 s"
        ),
        fail_after(0.2),
    ):
        Swallows().read()


def test_a_method_in_time_passes_and_leaves_no_alarm():
    with fail_after(0.2):
        pass
    time.sleep(0.3)
