"""Servers for benches: programs that listen on a loopback port inside a `with` block."""

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
"""Program that serves a store like `ncclt serve`."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def listening(command: Sequence[object], port: int) -> Iterator[int]:
    """Run a server command inside the block, and yield its process id once it listens."""
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
            raise SystemExit("the server does not listen")
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def serving(program: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run a Python server program inside the block, and yield its port and process id."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "serving.py"  # a file, since a spawned process imports it
        script.write_text(program)
        with listening([sys.executable, script, port, *arguments], port) as pid:
            yield port, pid
