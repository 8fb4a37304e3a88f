"""The JSON documents inside a file: plain, gzipped, or several in a tar archive."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ncclt.errors import TraceError

HEAD_BYTES = 256 * 1024
"""Enough of a document to see its kind: the process groups of a large job alone can fill tens of KiB."""

# What gzip, zlib and tarfile raise for data that are cut off or garbled.
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document, uncompressed.

    Attributes:
        label: the file's name, with the member's name behind it where it lies in an archive.
        stream: its bytes; valid until the next document is asked for.
    """

    label: str
    stream: io.BufferedReader


def documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a file, looking at its content alone.

    Raises:
        TraceError: the file cannot be opened or unpacked.
    """
    try:
        with path.open("rb") as raw:
            stream = _unzipped(raw)
            # POSIX tar: the magic of the first header lies at offset 257 (pax, ustar and GNU alike).
            if stream.peek(512)[257:262] != b"ustar":
                yield Document(label=path.name, stream=stream)
                return
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isfile() else None
                    if content is not None:
                        inner = _unzipped(cast(BinaryIO, content))
                        yield Document(label=f"{path.name}:{Path(member.name).name}", stream=inner)
            # To the end, where gzip keeps its checksum: a cut archive could lack ranks and look whole.
            while stream.read(HEAD_BYTES):
                pass
    except _DAMAGE as error:
        raise _damaged(path.name, error) from error
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read: {error.strerror or error}", hint="check the path and who may read it"
        ) from error


def check_readable(path: Path) -> None:
    """Raise unless a file exists, has content, and can be unpacked at its beginning.

    Raises:
        TraceError: it is missing, a directory, empty or damaged.
    """
    if path.is_dir():
        raise TraceError(f"{path} is a directory", hint="name the trace files in it, one per rank")
    if not path.exists():
        raise TraceError(f"{path} does not exist", hint="check the path; shell patterns must match at least one file")
    if not any(head(document).strip() for document in documents(path)):
        raise TraceError(f"{path} is empty", hint="was the profiler still writing? export the trace again")


def head(document: Document) -> bytes:
    """Return the beginning of a document.

    Raises:
        TraceError: the compressed data end or break there.
    """
    return read_block(document, HEAD_BYTES)


def read_block(document: Document, size_bytes: int) -> bytes:
    """Return the next bytes of a document, fewer than asked for only at its end.

    Raises:
        TraceError: the compressed data end or break there.
    """
    try:
        return document.stream.read(size_bytes)
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
            f"{document.label} is cut off or no JSON: {error}",
            hint="the profiler may have been stopped while it wrote; export the trace again",
        ) from error
    finally:
        text.detach()  # the stream belongs to `documents`, which closes it


def _unzipped(raw: BinaryIO) -> io.BufferedReader:
    buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, raw))
    if buffered.peek(2)[:2] != b"\x1f\x8b":
        return buffered
    return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=buffered)))


def _damaged(label: str, error: Exception) -> TraceError:
    return TraceError(
        f"{label} is damaged or cut off: {str(error).rstrip('.') or type(error).__name__}",
        hint="copy the file again; check it with `gzip -t` or `tar -t`",
    )
