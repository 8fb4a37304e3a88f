"""NCCL's statements in the lines of logs that may be gigabytes long, and checks of the input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from ncclt.errors import TraceError
from ncclt.nccl.log.lines import ORIGIN
from ncclt.profile.source import LINE_BYTES, Document, lines

MOST_KINDS = 500_000
"""Most different calls per file: 4096 ranks in one log have some 100 each, random bytes have one per line."""

LOGGED_CALL = re.compile(rb": opCount [0-9a-f]{1,16} sendbuff ")
"""A call as NCCL itself logs it. Such calls are exact, so they are preferred to everything else in a log."""

_MARK = b"] NCCL "

# `host:pid:tid [device] NCCL INFO `, preceded by nothing, a blank, or the colon of a launcher's prefix.
_START = re.compile(rf"(?<![^\s:]){ORIGIN} NCCL ".encode())

# The ends of COLL and TUNING lines, followed by more than a blank (or an escaped line feed).
_GLUED = re.compile(
    rb"(?:\bstream 0x[0-9a-f]{1,16}|\btime \d[\d.]{0,20}|Hi\}=\{\d{1,4}\.\.\d{1,4}\}|\bglobalrank \d{1,7})"
    rb"[^\s\\:]{1,255}:\d{1,10}:\d{1,10} \["
)


class Statements:
    """The lines of a log of NCCL, split again where line feeds were lost between them.

    Attributes:
        glued: statements that run into the next one without even a blank, so that its host is uncertain.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self.glued = 0

    def __iter__(self) -> Iterator[str]:
        for statement in self._split():
            yield statement.decode("utf-8", errors="replace")

    def _split(self) -> Iterator[bytes]:
        rest = b""
        for line in lines(self._document):
            is_part = len(line) >= LINE_BYTES and not line.endswith(b"\n")
            if not rest and not is_part and line.count(_MARK) < 2:
                yield line
                continue
            parts = self._separated(rest + line)
            # The last one may continue in the next piece of the line, unless it is longer than any that NCCL writes.
            rest = parts.pop() if is_part and len(parts[-1]) <= LINE_BYTES else b""
            yield from parts
        if rest:
            yield rest

    def _separated(self, text: bytes) -> list[bytes]:
        if _MARK not in text:
            return [text]
        self.glued += len(_GLUED.findall(text))
        parts = []
        for line in text.replace(b"\\n", b"\n").split(b"\n"):  # as JSON writes a line feed
            starts = [0, *(match.start() for match in _START.finditer(line)), len(line)]
            parts += [line[start:end] for start, end in pairwise(starts) if start < end]
        return parts or [text]


def check_distinct(paths: Sequence[Path]) -> None:
    """Raise if one file is given twice.

    Raises:
        TraceError: a path occurs twice.
    """
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise TraceError(f"{path} was given twice", hint="name every file once")
        seen.add(path.resolve())


def check_bounded(kinds: int, label: str) -> None:
    """Raise if a log has more different calls than any job makes.

    Raises:
        TraceError: more than `MOST_KINDS`.
    """
    if kinds > MOST_KINDS:
        raise TraceError(
            f"{label} shows more than {MOST_KINDS} different calls: this is not a log of a training job",
            hint="is the file damaged? otherwise cut it to some of the ranks",
        )
