"""Open the files that a user names, all of them here: regular files as they are, pipes once.

A file is looked at more than once, first for its kind and then for its content, and a pipe can be read only once. So a
FIFO, a shell's `<(...)` and standard input are copied to a temporary file before anything else is done with them.
Nothing that can block forever or never ends is opened: no FIFO without a writer, no socket, no device. Compressed
input may grow only so much while it is unpacked.
"""

from __future__ import annotations

import gzip
import io
import os
import select
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from ncclt.errors import InputError

STDIN = Path("-")
"""Standard input on the command line."""

WRITER_S = 5.0
"""How long a FIFO may have no writer; a shell starts both ends of a pipe at the same time."""

SILENCE_S = 120.0
"""How long a writer may write nothing: what decompresses or fetches a file may need a while for its first byte."""

MOST_COPIED_BYTES = 64 * 2**30
"""Largest copy of a pipe; traces of one job have up to some GiB per rank."""

MOST_RATIO = 250
"""Unpacked bytes per packed one that are accepted. JSON traces shrink to a tenth, logs of equal lines to a hundredth;
deflate can reach 1 : 1032, and does for zeros alone."""

_FREE_BYTES = 256 * 2**20
"""Unpacked in any case, whatever the ratio."""

_BLOCK_BYTES = 256 * 1024
_SHARE_OF_DISK = 0.9


@contextmanager
def regular_files(paths: Sequence[Path], *, error: type[InputError] = InputError) -> Iterator[list[Path]]:
    """Yield the paths with every pipe, and `-` for standard input, replaced by a file that holds what came out of it.

    The copies bear the name of their pipe and are removed at the end of the `with` block. Folders and missing files
    are left to the caller.

    Args:
        paths: as the user gave them.
        error: what is raised.

    Raises:
        InputError: a FIFO has no writer or yields too much, or the path leads to a socket or device.
    """
    with ExitStack() as stack:
        files = []
        for path in paths:
            if path != STDIN and not _is_pipe(path, error):
                files.append(path)
                continue
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ncclt-input-")))
            # Closed at once where it is not read to its end: a writer would wait for us.
            with closing(_stdin_blocks(error) if path == STDIN else _pipe_blocks(path, error)) as blocks:
                files.append(_copied(blocks, folder / _label(path), error))
        yield files


def open_regular(path: Path, *, error: type[InputError] = InputError) -> io.BufferedReader:
    """Open a regular file for reading.

    Raises:
        InputError: the path leads to something else, which is not waited for.
        OSError: as `open`.
    """
    # O_NONBLOCK: without it, opening a FIFO waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise error(f"{path} is {_kind(mode)}", hint="name a file")
    return os.fdopen(descriptor, "rb")


class EnoughError(Exception):
    """As much was unpacked as the caller wanted to look at."""


class Meter:
    """Counts the bytes that come out of one file on disk, on all levels of packing, and stops where they are too many.

    Args:
        raw: the file on disk.
        enough: bytes after which `EnoughError` is raised; None = the caller wants all.
        error: what is raised where the content is out of proportion to the file.
    """

    def __init__(self, raw: BinaryIO, *, enough: int | None = None, error: type[InputError] = InputError) -> None:
        self._most = max(_FREE_BYTES, MOST_RATIO * os.fstat(raw.fileno()).st_size)
        self._enough, self._error, self._unpacked = enough, error, 0

    def count(self, size_bytes: int, label: str) -> None:
        """Add bytes; below 0 where they will be read again.

        Raises:
            InputError: more came out than any recording holds.
            EnoughError: see above.
        """
        self._unpacked += size_bytes
        if self._unpacked > self._most:
            raise self._error(
                f"{label} unpacks to more than {MOST_RATIO} times its size, as no recording does",
                hint="is it damaged? otherwise unpack it yourself and name what is in it",
            )
        if self._enough is not None and self._unpacked > self._enough:
            raise EnoughError


def unpacked(stream: io.BufferedReader, meter: Meter, label: str) -> io.BufferedReader:
    """Return a stream of the content, whether it is gzipped or not; `label` names it in errors."""
    if stream.peek(2)[:2] != b"\x1f\x8b":
        return stream
    return metered(cast(BinaryIO, gzip.GzipFile(fileobj=stream)), meter, label)


def metered(source: BinaryIO, meter: Meter, label: str) -> io.BufferedReader:
    """Return a stream whose bytes are counted."""
    return io.BufferedReader(_Metered(source, meter, label), buffer_size=_BLOCK_BYTES)


class _Metered(io.RawIOBase):
    def __init__(self, source: BinaryIO, meter: Meter, label: str) -> None:
        self._source, self._meter, self._label = source, meter, label
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        block = self._source.read(min(len(buffer), _BLOCK_BYTES))
        buffer[: len(block)] = block
        self._at += len(block)
        self._meter.count(len(block), self._label)
        return len(block)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._at
        elif whence != os.SEEK_SET:
            raise io.UnsupportedOperation("the end of unpacked data is not known")
        if offset < self._at:
            self._source.seek(offset)
            self._meter.count(offset - self._at, self._label)
            self._at = offset
        while self._at < offset and self.read(min(offset - self._at, _BLOCK_BYTES)):
            pass
        return self._at

    def close(self) -> None:
        self._source.close()
        super().close()


def _is_pipe(path: Path, error: type[InputError]) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False  # reported when it is opened
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISFIFO(mode)):
        raise error(f"{path} is {_kind(mode)}", hint="name a file or a pipe; - is standard input")
    return stat.S_ISFIFO(mode)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "no file")


def _label(path: Path) -> str:
    if path == STDIN:
        return "standard input"
    return f"pipe {path.name}" if path.name.isdigit() else path.name  # a shell's <(...) is /dev/fd/63


def _stdin_blocks(error: type[InputError]) -> Generator[bytes, None, None]:
    if sys.stdin is None:  # the process was started with it closed
        raise error("standard input is closed", hint="name a file")
    while block := sys.stdin.buffer.read(_BLOCK_BYTES):
        yield block


def _pipe_blocks(path: Path, error: type[InputError]) -> Generator[bytes, None, None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        has_writer, heard = False, time.monotonic()
        while True:
            try:
                block = os.read(descriptor, _BLOCK_BYTES)
            except BlockingIOError:  # a writer has opened it and written nothing yet
                has_writer = True
                if time.monotonic() - heard > SILENCE_S:
                    raise error(
                        f"nothing came out of {path} for {SILENCE_S:.0f} s", hint="write to a file first, and name that"
                    ) from None
                poller.poll(1000)
                continue
            if block:
                has_writer, heard = True, time.monotonic()
                yield block
            elif has_writer:
                return
            elif time.monotonic() - heard > WRITER_S:
                raise error(f"nothing writes into the pipe {path}", hint="start what writes into it first")
            else:
                time.sleep(0.05)  # poll() does not wait for a first writer
    finally:
        os.close(descriptor)


def _copied(blocks: Iterable[bytes], target: Path, error: type[InputError]) -> Path:
    room = min(MOST_COPIED_BYTES, int(shutil.disk_usage(target.parent).free * _SHARE_OF_DISK))
    hint = "write to a file first and name that, or set TMPDIR to a folder with more room"
    copied = 0
    try:
        with target.open("xb") as file:
            for block in blocks:
                copied += len(block)
                if copied > room:
                    raise error(f"{target.name} gives more than the {room} bytes that can be copied", hint=hint)
                file.write(block)
    except OSError as failure:
        raise error(f"{target.name} cannot be copied: {failure.strerror or failure}", hint=hint) from failure
    return target
