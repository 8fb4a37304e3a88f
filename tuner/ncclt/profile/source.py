"""The front door for everything that is read: files, pipes, archives, and the lines of texts.

A file is looked at more than once, first for its kind and then for its content, and a pipe can be read only once. So a
FIFO, a shell's `<(...)` and standard input are copied to a temporary file before anything else is done with them.
Nothing that can block forever or never ends is opened: no FIFO without a writer, no socket, no device. Compressed
input may grow only so much while it is unpacked. A file holds one document, plain or gzipped, or several in a tar
archive; prefixes of launchers and collectors are removed from the lines of each, so that no reader sees them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import select
import shutil
import stat
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from ncclt.errors import InputError, TraceError
from ncclt.launch.prefixes import NO_PREFIXES, Prefixes, find_prefixes

STDIN = Path("-")
"""Standard input on the command line."""

WRITER_S = 5.0
"""Max time without a writer of a FIFO; a shell starts both ends of a pipe at the same time."""

SILENCE_S = 120.0
"""Max silence of a writer: decompressing or fetching a file takes a while until its first byte."""

MOST_COPIED_BYTES = 64 * 2**30
"""Largest copy of a pipe; traces of one job have up to some GiB per rank."""

MOST_RATIO = 250
"""Unpacked bytes per packed one that are accepted. JSON traces shrink to a tenth, logs of equal lines to a hundredth;
deflate can reach 1 : 1032, and does for zeros alone."""

_FREE_BYTES = 256 * 2**20
"""Unpacked in any case, whatever the ratio."""

HEAD_BYTES = 256 * 1024
"""Enough of a document to see its kind: the process groups of a large job alone can fill tens of KiB."""

MOST_MEMBERS = 50_000
"""Files in one archive: a job has one per rank."""

LOOK_DOCUMENTS = 64
"""Members of an archive that are looked at to see its kind."""

LOOK_BYTES = 256 * 1024 * 1024
"""Bytes unpacked for that: the members behind a larger one are not looked at."""

_HEADER_BYTES = 256 * 1024 * 1024
"""Longest header of an archive's member; tarfile takes the length from the file and reads it in one go."""

LINE_BYTES = 64 * 1024
"""Longer lines are read in pieces, so that a file without line ends does not fill the memory."""

_BLOCK_BYTES = 256 * 1024
_SHARE_OF_DISK = 0.9

# What gzip, zlib and tarfile raise for data that are cut off or garbled.
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)


@contextmanager
def regular_files(paths: Sequence[Path], *, error: type[InputError] = InputError) -> Iterator[list[Path]]:
    """Yield the paths with every pipe, and `-` for standard input, replaced by a file that holds what came out of it.

    The copies bear the name of their pipe and are removed at the end of the `with` block. Folders and missing files
    are left to the caller.

    Args:
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


def list_files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield every file once, those of folders at any depth, and whether it was named itself rather than by its folder.

    Hidden files are left out.
    """
    places: set[str] = set()
    for path in paths:
        for file in sorted(_visible_files(path)) if path.is_dir() else [path]:
            place = os.path.realpath(file)  # unlike `Path.resolve`, it takes a link to itself
            if place not in places:
                places.add(place)
                yield file, file is path


def _visible_files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (file for name in names if not name.startswith(".") and (file := Path(place, name)).is_file())


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
    return io.BufferedReader(io.FileIO(descriptor), _BLOCK_BYTES)  # so that `peek` shows a beginning


class ReadLimitReached(Exception):  # noqa: N818 -- ends a look at a file and is no failure
    """As much was unpacked as the caller wanted to look at."""


class Meter:
    """Counts the bytes that come out of one file on disk, on all levels of packing, and stops where they are too many.

    Args:
        raw: the file on disk.
        enough: bytes after which `ReadLimitReached` is raised; None = the caller wants all.
        error: what is raised where the content is out of proportion to the file.
    """

    def __init__(self, raw: BinaryIO, *, enough: int | None = None, error: type[InputError] = InputError) -> None:
        self._most = max(_FREE_BYTES, MOST_RATIO * os.fstat(raw.fileno()).st_size)
        self._enough, self._error, self._unpacked = enough, error, 0

    def count(self, size_bytes: int, label: str) -> None:
        """Add bytes; below 0 where they will be read again.

        Raises:
            InputError: more came out than any recording holds.
            ReadLimitReached: see above.
        """
        self._unpacked += size_bytes
        if self._unpacked > self._most:
            raise self._error(
                f"{label} unpacks to more than {MOST_RATIO} times its size, as no recording does",
                hint="is it damaged? otherwise unpack it yourself and name what is in it",
            )
        if self._enough is not None and self._unpacked > self._enough:
            raise ReadLimitReached


def unpack(stream: io.BufferedReader, meter: Meter, label: str) -> io.BufferedReader:
    """Return a stream of the content, whether it is gzipped or not; `label` names it in errors."""
    if stream.peek(2)[:2] != b"\x1f\x8b":
        return stream
    return meter_stream(cast("BinaryIO", gzip.GzipFile(fileobj=stream)), meter, label)


def meter_stream(source: BinaryIO, meter: Meter, label: str) -> io.BufferedReader:
    """Return a stream whose bytes are counted."""
    return io.BufferedReader(_Metered(source, meter, label), buffer_size=_BLOCK_BYTES)


class _ForwardStream(io.RawIOBase):
    """Stream that reads forward; it goes back by starting again, and its end is not known."""

    _position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence != os.SEEK_SET:
            raise io.UnsupportedOperation("the end of unpacked data is not known")
        if offset < self._position:
            self._go_back(offset)
        while self._position < offset and self.read(min(offset - self._position, _BLOCK_BYTES)):
            pass
        return self._position

    def _go_back(self, offset: int) -> None:
        """Go to an earlier place, or to any before it."""
        raise NotImplementedError


class _Metered(_ForwardStream):
    def __init__(self, source: BinaryIO, meter: Meter, label: str) -> None:
        self._source, self._meter, self._label = source, meter, label

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        block = self._source.read(min(len(buffer), _BLOCK_BYTES))
        buffer[: len(block)] = block
        self._position += len(block)
        self._meter.count(len(block), self._label)
        return len(block)

    def _go_back(self, offset: int) -> None:
        self._source.seek(offset)
        self._meter.count(offset - self._position, self._label)
        self._position = offset

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document, uncompressed and without prefixes.

    Attributes:
        label: the file's name, followed by the member's name in an archive.
        stream: its bytes; valid until the next document is requested.
        raw: the same with prefixes, for `ranked_lines`; None = there are none.
        prefixes: of its lines.
    """

    label: str
    stream: io.BufferedReader
    raw: io.BufferedReader | None = None
    prefixes: Prefixes = NO_PREFIXES


def documents(path: Path, *, enough: int | None = None) -> Iterator[Document]:
    """Yield the documents of a file, recognised by content alone.

    Args:
        enough: unpacked bytes after which to stop; None = read all.

    Raises:
        TraceError: the file cannot be opened or unpacked, or unpacks to more than any recording.
    """
    try:
        with _reporting_damage(path.name), open_regular(path, error=TraceError) as raw:
            meter = Meter(raw, enough=enough, error=TraceError)
            stream = unpack(raw, meter, path.name)
            # POSIX tar: the magic of the first header is at offset 257 (pax, ustar and GNU alike).
            if stream.peek(512)[257:262] != b"ustar":
                yield read_document(path.name, stream)
                return
            with tarfile.open(fileobj=cast("IO[bytes]", _Headers(stream)), mode="r:") as archive:
                yield from _members(archive, path, meter)
            # To the end, where gzip keeps its checksum: a cut archive could lack ranks and look whole.
            while stream.read(HEAD_BYTES):
                pass
    except ReadLimitReached:
        return
    except OSError as error:
        hint = "check the path and who may read it"
        raise TraceError(f"{path} cannot be read: {error.strerror or error}", hint=hint) from error


def _members(archive: tarfile.TarFile, path: Path, meter: Meter) -> Iterator[Document]:
    for number, member in enumerate(archive):
        if number == MOST_MEMBERS:
            raise TraceError(f"{path.name} holds more than {MOST_MEMBERS} files", hint="pack those of one job alone")
        content = archive.extractfile(member) if member.isfile() else None
        if content is not None:
            label = f"{path.name}:{Path(member.name).name}"
            # Counted also where it is not compressed: a sparse member has any length that its header claims.
            inner = meter_stream(cast("BinaryIO", content), meter, label)
            yield read_document(label, unpack(inner, meter, label))


def read_document(label: str, raw: io.BufferedReader) -> Document:
    """Return a stream at its beginning as a document."""
    prefixes = find_prefixes(raw.peek(HEAD_BYTES))
    if not prefixes:
        return Document(label=label, stream=raw)
    stream: io.BufferedReader = io.BufferedReader(_Stripped(raw, prefixes), buffer_size=_BLOCK_BYTES)
    return Document(label=label, stream=stream, raw=raw, prefixes=prefixes)


def _stripped(raw: io.BufferedReader, prefixes: Prefixes) -> Iterator[tuple[int | None, bytes]]:
    """Yield the lines without prefixes, in pieces of at most `LINE_BYTES`, and the ranks that the prefixes name."""
    rank, is_start = None, True
    while piece := raw.readline(LINE_BYTES):
        ends = piece.endswith(b"\n")
        if is_start:
            rank, piece = prefixes.strip(piece)
        yield rank, piece
        is_start = ends


class _Stripped(_ForwardStream):
    """Stream without the prefixes of its lines."""

    def __init__(self, raw: io.BufferedReader, prefixes: Prefixes) -> None:
        self._raw, self._prefixes = raw, prefixes
        self._pieces, self._remainder = _stripped(raw, prefixes), b""

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        parts, size = [self._remainder], len(self._remainder)
        while size < len(buffer) and (piece := next(self._pieces, None)) is not None:
            parts.append(piece[1])
            size += len(piece[1])
        block = b"".join(parts)
        count = min(size, len(buffer))
        buffer[:count], self._remainder = block[:count], block[count:]
        self._position += count
        return count

    def _go_back(self, _offset: int) -> None:
        self._raw.seek(0)
        self._pieces, self._remainder, self._position = _stripped(self._raw, self._prefixes), b"", 0


class _Headers:
    """Bounded reader for the headers of tar members."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int) -> bytes:
        if size > _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._stream.read(size)


def read_heads(path: Path) -> tuple[bytes, ...]:
    """Return the beginning of each document of a file; of a long archive, those of the first members.

    Raises:
        TraceError: the file cannot be opened, or breaks where it is looked at.
    """
    beginnings = islice(documents(path, enough=LOOK_BYTES), LOOK_DOCUMENTS)
    return tuple(read_block(document, HEAD_BYTES) for document in beginnings)


def strip_mark(beginning: bytes) -> bytes:
    """Return the beginning of a text without byte order mark and blanks."""
    return beginning.removeprefix(b"\xef\xbb\xbf").lstrip()


def check_readable(path: Path) -> tuple[bytes, ...]:
    """Return the beginnings of a file's documents, as `read_heads`; raise unless it exists and has content.

    Raises:
        TraceError: it is missing, a directory, empty or damaged.
    """
    if path.is_dir():
        raise TraceError(f"{path} is a directory", hint="name the trace files in it, one per rank")
    if not path.exists():
        raise TraceError(f"{path} does not exist", hint="check the path; shell patterns must match at least one file")
    heads = read_heads(path)
    if not any(head.strip() for head in heads):
        raise TraceError(f"{path.name} is empty", hint="was the profiler still writing? export the trace again")
    return heads


def read_block(document: Document, size_bytes: int) -> bytes:
    """Return the next bytes of a document, fewer than asked for only at its end.

    Raises:
        TraceError: the compressed data end or break there.
    """
    with _reporting_damage(document.label):
        return document.stream.read(size_bytes)


def read_line(document: Document, size_bytes: int) -> bytes:
    """Return the next line of a document, at most `size_bytes` of it; empty at its end.

    Raises:
        TraceError: the compressed data end or break there.
    """
    with _reporting_damage(document.label):
        return document.stream.readline(size_bytes)


def is_text(beginning: bytes) -> bool:
    """Return True if the beginning of a document is of a text, and not of JSON or of binary data."""
    return b"\0" not in beginning and strip_mark(beginning)[:1] not in (b"{", b"[", b"\x80", b"")


def ends_within_line(path: Path) -> bool:
    """Return True if the last line of a file that is not packed has no end."""
    with open_regular(path, error=TraceError) as raw:
        if raw.peek(2)[:2] == b"\x1f\x8b" or not raw.seek(0, os.SEEK_END):
            return False
        raw.seek(-1, os.SEEK_END)
        return raw.read(1) not in (b"\n", b"\0")


def lines(document: Document) -> Iterator[bytes]:
    """Yield the lines of a document, which end in a line feed or a carriage return, in pieces of at most `LINE_BYTES`.

    Raises:
        TraceError: the compressed data are damaged or cut off.
    """
    return (line for _rank, line in _split(document.label, _stripped(document.stream, NO_PREFIXES)))


def ranked_lines(document: Document) -> Iterator[tuple[int | None, bytes]]:
    """Yield the lines of a document whose stream was not touched, each with the rank that its prefix names.

    Raises:
        TraceError: the compressed data are damaged or cut off.
    """
    return _split(document.label, _stripped(document.raw or document.stream, document.prefixes))


def _split(label: str, pieces: Iterator[tuple[int | None, bytes]]) -> Iterator[tuple[int | None, bytes]]:
    remainder, rank = b"", None
    with _reporting_damage(label):
        for rank, line in pieces:
            # Carriage returns alone: progress bars, and logs from a terminal or a serial line.
            if not remainder and line.find(b"\r", 0, -2) < 0:
                yield rank, line
                continue
            *parts, remainder = (remainder + line).split(b"\r")
            if line.endswith(b"\n") or len(remainder) > LINE_BYTES:
                parts, remainder = [*parts, remainder], b""
            for part in parts:
                yield rank, part
        if remainder:
            yield rank, remainder


def load_json(document: Document) -> Any:
    """Return the document as JSON.

    Control characters inside strings and bytes that are no UTF-8 are accepted: profilers write both.

    Raises:
        TraceError: the data are cut off, or no JSON.
    """
    text = io.TextIOWrapper(document.stream, encoding="utf-8-sig", errors="replace")
    try:
        with _reporting_damage(document.label):
            return json.load(text, strict=False)
    except (ValueError, RecursionError) as error:
        hint = "the profiler may have been stopped while it wrote; export the trace again"
        raise TraceError(f"{document.label} is cut off or not JSON: {error}", hint=hint) from error
    finally:
        text.detach()  # the stream belongs to `documents`, which closes it


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; None for null and for invalid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@contextmanager
def _reporting_damage(label: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise TraceError(
            f"{label} is damaged or cut off: {str(error).rstrip('.') or type(error).__name__}",
            hint="copy the file again; check it with `gzip -t` or `tar -t`",
        ) from error
