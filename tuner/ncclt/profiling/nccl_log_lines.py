"""The lines of a log that may be gigabytes long, and the check that no log is given twice."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ncclt.errors import TraceError
from ncclt.profiling.documents import Document

LINE_BYTES = 64 * 1024
"""Longer lines are read in pieces: a file without line ends must not fill the memory."""

MOST_KINDS = 500_000
"""Different calls kept per file: 4096 ranks in one log have some 100 each, random bytes have one per line."""

LOGGED_CALL = re.compile(rb": opCount [0-9a-f]{1,16} sendbuff ")
"""A call as NCCL itself logs it. Such calls are exact: a log that has them is read by them, whatever else it tells."""


def lines(document: Document) -> Iterator[bytes]:
    """Yield the lines of a document, at most `LINE_BYTES` of each at once.

    Raises:
        TraceError: the compressed data end or break there.
    """
    try:
        while line := document.stream.readline(LINE_BYTES):
            yield line
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise TraceError(
            f"{document.label} is damaged or cut off: {str(error).rstrip('.') or type(error).__name__}",
            hint="copy the file again; check it with `gzip -t` or `tar -t`",
        ) from error


def check_distinct(paths: Sequence[Path]) -> None:
    """Raise where one file is named twice.

    Raises:
        TraceError: a path occurs twice.
    """
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise TraceError(f"{path} was given twice", hint="name every file once")
        seen.add(path.resolve())


def check_bounded(kinds: int, label: str) -> None:
    """Raise where a log shows more different calls than any job makes.

    Raises:
        TraceError: more than `MOST_KINDS`.
    """
    if kinds > MOST_KINDS:
        raise TraceError(
            f"{label} shows more than {MOST_KINDS} different calls: this is no log of a training job",
            hint="is the file damaged? otherwise cut it to some of the ranks",
        )
