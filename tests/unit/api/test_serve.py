"""Running the service as a process."""

import os
import runpy
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from ncclt.errors import StoreError, UsageError
from ncclt.store import open_store
from ncclt_api.app import serve

free_port = runpy.run_path(str(Path(__file__).parents[2] / "fakes" / "ports.py"))["free_port"]


def test_it_serves_until_sigterm(tmp_path):
    port, url = free_port(), f"sqlite:///{tmp_path}/ncclt.db"
    open_store(url).close()
    code = f"from ncclt_api.app import serve; serve({url!r}, port={port})"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        try:
            answer = None
            deadline = time.monotonic() + 240
            while answer is None and process.poll() is None and time.monotonic() < deadline:
                try:
                    answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60)
                except OSError:
                    time.sleep(0.05)
            assert answer is not None
            assert answer.status == 200
            assert "server" not in answer.headers
            answer.close()
        finally:
            process.send_signal(signal.SIGTERM)
            log = process.communicate(timeout=240)[1]
    assert "Traceback" not in log


def test_a_store_that_cannot_be_reached_is_told_before_anything_listens():
    with pytest.raises(StoreError):
        serve(f"postgresql://nobody@127.0.0.1:{free_port()}/none", port=free_port())


def test_a_url_that_is_none_is_refused():
    with pytest.raises(UsageError):
        serve(os.devnull, port=free_port())
