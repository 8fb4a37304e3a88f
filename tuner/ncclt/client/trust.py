"""Trust by owner: what is loaded from a folder must be this user's or root's, and no other user may change it.

One function for everything that decides what a job runs with: plugin, table, decision and kept answers. Only the
standard library, in the syntax of Python 3.8, as all of this folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


class UntrustedError(OSError):
    """A file or folder that another user owns or can change."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint

    def __str__(self) -> str:
        """Return the reason."""
        return str(self.args[0])


@contextlib.contextmanager
def open_trusted(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[int]:
    """Open a file once and yield its descriptor, after a check of its owner, its mode and all folders above it.

    Args:
        path: of the file.
        follow: it may be a link, whose target is then checked.

    Raises:
        UntrustedError: another user owns it or can write it, or can replace it or a folder above it.
        OSError: it cannot be opened.
    """
    real = Path(os.path.realpath(path)) if follow else Path(os.path.realpath(Path(path).parent), Path(path).name)
    # A link was resolved above, or is none to follow, and opening a FIFO would wait for a writer.
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise UntrustedError(f"{real} is not a regular file", "name a file")
        _check(real, facts)
        require_trusted_folder(real.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def read_trusted(path: str | os.PathLike[str], *, most_bytes: int, follow: bool = True) -> bytes:
    """Return the content of a file that passes `open_trusted`.

    Raises:
        UntrustedError, OSError: as there, or it is longer.
    """
    with open_trusted(path, follow=follow) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UntrustedError(f"{path} has more than {most_bytes} bytes", "it is not a file of ncclt")
    return content


def require_trusted_folder(folder: str | os.PathLike[str]) -> None:
    """Raise unless only this user and root can replace the entries of a folder and the folders above it.

    A sticky folder such as /tmp may be open to all: each user can only replace entries of their own there, and every
    entry on the way is checked.

    Raises:
        UntrustedError: another user can.
        OSError: it does not exist.
    """
    real = Path(os.path.realpath(folder))
    for place in (real, *real.parents):
        facts = place.stat()
        if not facts.st_mode & stat.S_ISVTX:
            _check(place, facts)
        elif facts.st_uid not in (0, os.geteuid()):
            raise _owned(place, facts)


def _check(place: Path, facts: os.stat_result) -> None:
    if facts.st_uid not in (0, os.geteuid()):
        raise _owned(place, facts)
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UntrustedError(f"other users can write {place}", f"chmod go-w {place}")


def _owned(place: Path, facts: os.stat_result) -> UntrustedError:
    return UntrustedError(f"{place} belongs to user {facts.st_uid}", "use a file or folder that you own")
