"""Servers of the benches: programs that listen on a port of loopback until a block ends."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

OURS = """
import sys
from ncclt_api.app import create_app
import uvicorn
if __name__ == "__main__":
    app = create_app(sys.argv[2], large=sys.argv[2])
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
"""
"""The service on a store, as `ncclt serve` runs it."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def listening(command: Sequence[object], port: int) -> Iterator[int]:
    """Run a command that listens on a port until the block ends; yield its process id."""
    process = subprocess.Popen(list(map(str, command)))
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise SystemExit(f"a server ended with {process.returncode}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            raise SystemExit("a server did not begin to listen")
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def serving(program: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run a Python program, given a port and arguments, until the block ends; yield the port and its process id."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "serving.py"  # a file, since a spawned process imports it
        script.write_text(program)
        with listening([sys.executable, script, port, *arguments], port) as pid:
            yield port, pid
