"""The local side of a launch by ssh, a process of its own: one ssh for each node, ended together.

`python -m ncclt.launch.ssh.driver FOLDER SCRIPT` sends FOLDER/SCRIPT to the nodes of FOLDER/nodes.json, runs it there
and exits with the exit code of the first that fails. Each node sees the end of its input when this process ends.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

NODES_FILE = "nodes.json"
"""For each node, in the order of ranks: the ssh command up to the host's name."""

_NO_CONNECTION = 255
"""ssh(1): "255 if an error occurred"; the script of a node exits with codes of torchrun or of a shell."""

_TICK_S = 0.05
_OTHERS_S = 15.0
"""Max wait for the other nodes after one has failed: their SIGTERM, grace period and SIGKILL."""


def remote_command(rank: int, size_bytes: int) -> str:
    """Return the command for any login shell of a node: read a script from the input and run it.

    Exactly `size_bytes` are read, because the rest of the input belongs to the script.
    """
    script = (
        'd=$(mktemp -d "${TMPDIR:-/tmp}/ncclt-XXXXXXXX") && { '
        f'head -c {size_bytes} >"$d/script" && sh "$d/script" "$d" {rank}; code=$?; rm -rf "$d"; exit "$code"; }}'
    )
    return f"exec sh -c {shlex.quote(script)}"


def run(commands: Sequence[Sequence[str]], script: bytes) -> int:
    """Run a script on all nodes and return the exit code of the first that failed, 0 where none did."""
    nodes = [
        subprocess.Popen((*command, remote_command(rank, len(script))), stdin=subprocess.PIPE)
        for rank, command in enumerate(commands)
    ]
    for node in nodes:
        # Connecting takes time and a pipe holds 64 KiB; with a thread each, no node waits for another.
        threading.Thread(target=_send, args=(node, script), daemon=True).start()
    running = dict(enumerate(nodes))
    deadline_s = float("inf")
    first_failure = 0
    while running and time.monotonic() < deadline_s:
        for rank, code in [(rank, code) for rank, node in running.items() if (code := node.poll()) is not None]:
            del running[rank]
            if code != 0 and first_failure == 0:
                first_failure = code if code > 0 else 128 - code
                lost = ": it cannot be reached, or the connection was lost" if code == _NO_CONNECTION else ""
                _say(f"node {rank} ({commands[rank][-1]}) failed first, with exit code {first_failure}{lost}")
                deadline_s = time.monotonic() + _OTHERS_S
                for node in nodes:
                    _let_go(node)
        time.sleep(_TICK_S)
    for rank, node in running.items():
        _say(f"node {rank} ({commands[rank][-1]}) did not end after that: its connection is closed")
        node.kill()
        node.wait()
    for node in nodes:
        _let_go(node)
    return first_failure


def _send(node: subprocess.Popen[bytes], script: bytes) -> None:
    assert node.stdin is not None, "Popen was asked for a pipe"
    # The connection or `_let_go` may close the pipe meanwhile; either is reported elsewhere.
    with contextlib.suppress(OSError, ValueError):
        node.stdin.write(script)
        node.stdin.flush()


def _let_go(node: subprocess.Popen[bytes]) -> None:
    """Close a node's input, which makes it end what it runs."""
    assert node.stdin is not None, "Popen was asked for a pipe"
    with contextlib.suppress(OSError):
        node.stdin.close()


def _say(text: str) -> None:
    sys.stderr.write(f"ncclt: {text}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the script named in the arguments."""
    folder = Path(arguments[0])
    commands = json.loads((folder / NODES_FILE).read_text(encoding="utf-8"))
    return run(commands, (folder / arguments[1]).read_bytes())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
