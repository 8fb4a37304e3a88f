"""Whether the compute nodes of a cluster can see a file of this machine."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

_NODE_LOCAL = frozenset({"tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay"})
"""Types of file systems that other machines do not see by themselves (/proc/mounts)."""


def node_local_folder(path: Path, *, mounts: str | None = None) -> str:
    """Say why compute nodes may not see a file, empty where they probably do.

    A store that only the login node sees is the trap of submitting: the job would fill one of its own and lose it.

    Args:
        path: absolute.
        mounts: the text of /proc/mounts; None = this machine's.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(errors="replace")
        except OSError:
            return ""
    best, kind = PurePosixPath("/"), ""
    for line in mounts.splitlines():
        _device, point, mounted_kind, *_ = [*line.split(" "), "", "", ""]
        place = PurePosixPath(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point))
        if point and path.is_relative_to(place) and len(place.parts) >= len(best.parts):
            best, kind = place, mounted_kind
    if kind not in _NODE_LOCAL:
        return ""
    return f"{path} is on {best} ({kind}), a file system of this machine, which compute nodes may not see"
