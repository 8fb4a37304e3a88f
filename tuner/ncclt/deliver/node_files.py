"""Files that every node of a job reads: table, plugin and hook, named by their content and written once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from ncclt.client.trust import open_trusted, require_trusted_folder
from ncclt.nccl.tuner_plugin import LIBRARY_NAME

_READABLE, _ENTERED = 0o644, 0o755


def table_path(folder: Path, text: str) -> Path:
    """Return the path of a table, named by its hash, so that jobs share it and never overwrite another one."""
    return folder.absolute() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.csv"


def write_table(path: Path, text: str) -> None:
    """Write a table atomically; it is never removed, since communicators may open late.

    Other users can read it: a TaskProlog may serve them, and a folder a group. An intact file is never replaced: a node
    that reads it over NFS at that moment would fail and choose differently from the rest.

    Raises:
        OSError: it cannot be written there.
    """
    put_file(path, text.encode())


def place_plugin(folder: Path, plugin: Path) -> Path:
    """Copy the plugin beside the tables, and return its path.

    A process that decides for other nodes or users only knows that they can read this folder, and a node with the table
    but without the plugin would choose differently from the rest. If the folder is mounted noexec, the plugin stays
    where it is.

    Raises:
        OSError: it cannot be read, or not written there.
    """
    with open_trusted(plugin) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        content = file.read()
    path = folder.absolute() / hashlib.sha256(content).hexdigest()[:32] / LIBRARY_NAME
    put_file(path, content)
    facts = path.parent.stat()
    if facts.st_uid == os.geteuid() and facts.st_mode & _ENTERED != _ENTERED:
        path.parent.chmod(_ENTERED)
    return plugin if os.statvfs(path).f_flag & os.ST_NOEXEC else path


def put_file(path: Path, content: bytes) -> None:
    """Write a file atomically into a folder that no other user can write; an intact one is never replaced.

    Raises:
        OSError: it cannot be written there, or another user can change it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_trusted_folder(path.parent)
    if _holds(path, content):
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, _READABLE)
        try:
            path.hardlink_to(name)
        except OSError:  # it exists, maybe damaged, or the file system has no hard links
            if not _holds(path, content):
                Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _holds(path: Path, content: bytes) -> bool:
    """Return True if a file has this content; if it is ours, make it readable for others.

    Raises:
        UntrustedError: it has, and another user can change it.
    """
    try:
        with open_trusted(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
            if file.read(len(content) + 1) != content:
                return False
            facts = os.fstat(descriptor)
            if facts.st_uid == os.geteuid() and facts.st_mode & _READABLE != _READABLE:
                os.fchmod(descriptor, _READABLE)
            return True
    except FileNotFoundError:
        return False
