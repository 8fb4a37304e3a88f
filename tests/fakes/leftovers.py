"""Which processes carry a word in the environment that they were started with, whatever session they fled to."""

import contextlib
import os
import time
from pathlib import Path


def carrying(word):
    """Ids of running processes, without this one."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # a process may end between the listing and the reading
            if word.encode() in (folder / "environ").read_bytes():
                state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if state not in "ZXx":
                    found.append(int(folder.name))
    return found


def soon_gone(word, within_s=120.0):
    """Those that are left after a while, for what ends by itself once its parent has."""
    deadline = time.monotonic() + within_s
    while (left := carrying(word)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
