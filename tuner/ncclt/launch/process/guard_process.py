"""The guardian itself, a process of its own: see `guard`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from ncclt.launch.process.clean_up import clean_up
from ncclt.launch.process.process_tree import end_members

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What ends the guarded process must not end its guardian first."""

_QUIET_S = 1.0
"""No process of a launch may appear for this long: the last thing its owner did may have been to start one."""


def main() -> None:
    """Wait for the end of standard input, then end every launch that has begun and not ended, and exit."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    left = open_launches(sys.stdin.buffer)
    enders = [threading.Thread(target=end_launch, args=(launch,)) for launch in left if "results" not in launch]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()
    # Last, because launches write into these until they end.
    for launch in left:
        if "results" in launch:
            shutil.rmtree(launch["results"], ignore_errors=True)


def open_launches(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Read the lines of `Guard` until they end, and return the launches that have not ended."""
    launches: dict[str, dict[str, Any]] = {}
    for line in lines:
        if not line.endswith(b"\n"):
            break  # cut off by the death of its writer, which starts a launch only after it has written the line
        said = json.loads(line)
        if "ended" in said:
            launches.pop(said["ended"], None)
        else:
            launches[said["begun"]] = said
    return list(launches.values())


def end_launch(launch: dict[str, Any]) -> None:
    """End a launch here, then elsewhere, and remove its files."""
    quiet_since_s = time.monotonic()
    end_members(launch["begun"], grace_s=launch["grace_s"])
    while time.monotonic() - quiet_since_s < _QUIET_S:
        time.sleep(_QUIET_S / 10)
        end_members(launch["begun"])
    clean_up(launch["clean_up"], environment=launch["environment"])
    if launch["folder"]:
        shutil.rmtree(launch["folder"], ignore_errors=True)
