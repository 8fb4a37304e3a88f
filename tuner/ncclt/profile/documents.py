"""The JSON documents inside a file: plain, gzipped, or several in a tar archive."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from ncclt.errors import TraceError
from ncclt.profile.inputs import EnoughError, Meter, metered, open_regular, unpacked

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

# What gzip, zlib and tarfile raise for data that are cut off or garbled.
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document, uncompressed.

    Attributes:
        label: the file's name, followed by the member's name in an archive.
        stream: its bytes; valid until the next document is requested.
    """

    label: str
    stream: io.BufferedReader


def documents(path: Path, *, enough: int | None = None) -> Iterator[Document]:
    """Yield the documents of a file, recognised by content alone.

    Args:
        path: the file.
        enough: unpacked bytes after which to stop; None = read all.

    Raises:
        TraceError: the file cannot be opened or unpacked, or unpacks to more than any recording.
    """
    try:
        with open_regular(path, error=TraceError) as raw:
            meter = Meter(raw, enough=enough, error=TraceError)
            stream = unpacked(raw, meter, path.name)
            # POSIX tar: the magic of the first header is at offset 257 (pax, ustar and GNU alike).
            if stream.peek(512)[257:262] != b"ustar":
                yield Document(label=path.name, stream=stream)
                return
            with tarfile.open(fileobj=cast(IO[bytes], _Headers(stream)), mode="r:") as archive:
                yield from _members(archive, path, meter)
            # To the end, where gzip keeps its checksum: a cut archive could lack ranks and look whole.
            while stream.read(HEAD_BYTES):
                pass
    except EnoughError:
        return
    except _DAMAGE as error:
        raise _damaged(path.name, error) from error
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read: {error.strerror or error}", hint="check the path and who may read it"
        ) from error


def _members(archive: tarfile.TarFile, path: Path, meter: Meter) -> Iterator[Document]:
    for number, member in enumerate(archive):
        if number == MOST_MEMBERS:
            raise TraceError(f"{path.name} holds more than {MOST_MEMBERS} files", hint="pack those of one job alone")
        content = archive.extractfile(member) if member.isfile() else None
        if content is not None:
            label = f"{path.name}:{Path(member.name).name}"
            # Counted also where it is not compressed: a sparse member has any length that its header claims.
            inner = metered(cast(BinaryIO, content), meter, label)
            yield Document(label=label, stream=unpacked(inner, meter, label))


class _Headers:
    """What tarfile reads from: no header, however long it claims to be, fills the memory."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int) -> bytes:
        if size > _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._stream.read(size)


_looks: ContextVar[dict[Path, tuple[bytes, ...]] | None] = ContextVar("looks", default=None)


@contextmanager
def one_look() -> Iterator[None]:
    """Within the block `heads` reads and unpacks each file once, however many readers ask whether it is theirs."""
    token = _looks.set({})
    try:
        yield
    finally:
        _looks.reset(token)


def heads(path: Path) -> tuple[bytes, ...]:
    """Return the beginning of each document of a file; of a long archive, those of the first members.

    Raises:
        TraceError: the file cannot be opened, or breaks where it is looked at.
    """
    looks = _looks.get()
    if looks is not None and path in looks:
        return looks[path]
    found: list[bytes] = []
    for document in documents(path, enough=LOOK_BYTES):
        found.append(read_block(document, HEAD_BYTES))
        if len(found) == LOOK_DOCUMENTS:
            break
    if looks is not None:
        looks[path] = tuple(found)
    return tuple(found)


def any_head(path: Path, is_ours: Callable[[bytes], object]) -> bool:
    """Return whether the beginning of any document of a file is of a kind; False where it cannot be read."""
    try:
        return any(is_ours(one) for one in heads(path))
    except TraceError:
        return False


def unmarked(beginning: bytes) -> bytes:
    """Return the beginning of a text without byte order mark and blanks."""
    return beginning.removeprefix(b"\xef\xbb\xbf").lstrip()


def check_readable(path: Path) -> None:
    """Raise unless a file exists, has content, and can be unpacked at its beginning.

    Raises:
        TraceError: it is missing, a directory, empty or damaged.
    """
    if path.is_dir():
        raise TraceError(f"{path} is a directory", hint="name the trace files in it, one per rank")
    if not path.exists():
        raise TraceError(f"{path} does not exist", hint="check the path; shell patterns must match at least one file")
    if not any(one.strip() for one in heads(path)):
        raise TraceError(f"{path.name} is empty", hint="was the profiler still writing? export the trace again")


def read_block(document: Document, size_bytes: int) -> bytes:
    """Return the next bytes of a document, fewer than asked for only at its end.

    Raises:
        TraceError: the compressed data end or break there.
    """
    try:
        return document.stream.read(size_bytes)
    except _DAMAGE as error:
        raise _damaged(document.label, error) from error


def read_line(document: Document, size_bytes: int) -> bytes:
    """Return the next line of a document, at most `size_bytes` of it; empty at its end.

    Raises:
        TraceError: the compressed data end or break there.
    """
    try:
        return document.stream.readline(size_bytes)
    except _DAMAGE as error:
        raise _damaged(document.label, error) from error


def load_json(document: Document) -> Any:
    """Return the document as JSON.

    Control characters inside strings and bytes that are no UTF-8 are accepted: profilers write both.

    Raises:
        TraceError: the data are cut off, or no JSON.
    """
    text = io.TextIOWrapper(document.stream, encoding="utf-8-sig", errors="replace")
    try:
        return json.load(text, strict=False)
    except _DAMAGE as error:
        raise _damaged(document.label, error) from error
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{document.label} is cut off or not JSON: {error}",
            hint="the profiler may have been stopped while it wrote; export the trace again",
        ) from error
    finally:
        text.detach()  # the stream belongs to `documents`, which closes it


def _damaged(label: str, error: Exception) -> TraceError:
    return TraceError(
        f"{label} is damaged or cut off: {str(error).rstrip('.') or type(error).__name__}",
        hint="copy the file again; check it with `gzip -t` or `tar -t`",
    )
