"""Kineto's JSON as a stream: of gigabytes of events only those that may matter are parsed, the rest is skipped.

What is skipped is not checked: damage inside an event that is not read goes unnoticed. The structure
around the events is checked to the last byte, so that a document that was cut off is never taken for a whole one.

Two ways to find the end of an element agree on every valid document. `value_end` reads token by token and is right for
any JSON value. `skipper` jumps over whole events and looks at their braces alone, six times as fast; it rests on three
facts about valid JSON:

1. `{`, white space, `"`, then a letter: the quote is not escaped (no backslash stands before it) and does not close a
   string (a letter never follows a closing quote). So it opens a key, and `{` and all white space, commas and braces
   directly before it lie outside strings.
2. An object behind a colon is the value of a member; it is never an element of an array.
3. `}` `,` `{` outside strings closes an element of an array, and opens the next.

So if an event begins at `{`, and every later `{` up to a `}`, `,` and the beginning of fact 1 stands behind a colon,
then this `}` closes an element (3), which none of the later ones can be (2): it closes the event itself. Braces inside
strings do no harm, whether balanced or not. Events of other shapes are left to the tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from ncclt.errors import TraceError
from ncclt.profile.source import Document, read_block

_ANY_SPACE = rb"[ \t\n\r]*+"
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_BEHIND_COLON = rb"(?:(?<=: )|(?<=:))"
_KEY_AHEAD = rb"(?=\{" + _ANY_SPACE + rb'"\w)'
_LONGEST_SEPARATOR = 64


def _every(alternatives: bytes) -> bytes:
    """Return a pattern for as many of some alternatives as there are, none of them given back.

    `(?:...)*+` would do, but before Python 3.11.5 its last attempt moves on by what it has not matched (gh-106052).
    """
    return rb"(?>(?:" + alternatives + rb")*)"


def _object(levels: int) -> bytes:
    """Return a pattern for an object with at most so many levels of objects in it."""
    inner = rb'[^"{}]++|' + _STRING + (rb"|" + _object(levels - 1) if levels else b"")
    return rb"\{" + _every(inner) + rb"\}"


_OBJECT = _object(3)
# A number or word is complete only where something ends it.
_SCALAR = _STRING + rb'|[^ \t\n\r"{}\[\],:]++(?=[ \t\n\r\]},:])'
_VALUE = re.compile(_OBJECT + rb"|" + _SCALAR, re.DOTALL)
_TOKEN = re.compile(rb'[\[{]|([\]}])|"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_BOUNDARY = re.compile(rb"\}" + _ANY_SPACE + rb"," + _ANY_SPACE + _KEY_AHEAD)


def value_end(data: bytes, start: int) -> int | None:
    """Return the end of the JSON value that begins at `start`, None where `data` ends before it.

    Brackets are counted and not compared: whether the value is well formed is for its parser to say.
    """
    if match := _VALUE.match(data, start):
        return match.end()
    if data[start : start + 1] not in (b"{", b"["):
        return None
    depth = 0
    for token in _TOKEN.finditer(data, start):
        closing, quote = token.groups()
        if quote is not None:
            if not quote:
                return None
            continue
        depth += -1 if closing else 1
        if not depth:
            return token.end()
    return None


Skip = Callable[[bytes, int, int], int]


def skipper(sample: bytes, start: int) -> Skip:
    """Return a function that skips complete elements of an array, each with the comma behind it.

    It takes the bytes, the beginning of an element, and a position that it must not pass, and returns the beginning of
    the first element that it did not skip: one that passes the position, the last of the array, or one too deep.

    Args:
        sample: bytes of the array; the separator of its first two objects shows how the document is laid out. Where
            other separators follow, skipping is slower and as right.
        start: where in `sample` the elements begin.
    """
    boundary = _BOUNDARY.search(sample, start)
    separator = boundary[0] if boundary and len(boundary[0]) <= _LONGEST_SEPARATOR else b"},"
    match = _run(separator).match

    def skip(data: bytes, at: int, limit: int) -> int:
        skipped = match(data, at, limit)
        return skipped.end() if skipped else at

    return skip


@lru_cache(maxsize=16)
def _run(separator: bytes) -> re.Pattern[bytes]:
    # Every loop over characters excludes one character alone: `re` runs those ten times as fast as `[^{}]`.
    event = (
        rb"\{" + _ANY_SPACE + rb'"\w[^{]*+'
        rb"(?:" + _BEHIND_COLON + rb"\{[^{]*+)*+"
        rb"(?<=" + re.escape(separator) + rb")" + _KEY_AHEAD
    )
    slowly = rb"(?:" + _OBJECT + rb"|" + _SCALAR + rb")" + _ANY_SPACE + rb"," + _ANY_SPACE
    return re.compile(_every(event + rb"|" + slowly), re.DOTALL)


BLOCK_BYTES = 256 * 1024
"""Bytes looked at in one go; small enough for the processor's cache, where twice as much reads no faster."""

LONGEST_BYTES = 64 * 1024 * 1024
"""Longest event or member of the head that is accepted; the longest of a real trace have some 100 KiB."""

ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")
"""An ASCII character escaped by its number, behind which any key or value can hide."""

Find = Callable[[bytes, int], Iterable[int]]
"""Takes bytes and a position, returns in rising order the positions from there on that an event of interest covers.

It may point at events that turn out to be of no interest, and more than once at the same. What it points at must lie
inside one event and be at least two bytes long.
"""

Take = Callable[[Any], None]

Glance = Callable[[bytes, Callable[[], list[Any]]], None]
"""Is shown the bytes of all events, each once, many at a time; gets with them a function that parses all of them."""

_SPACE = re.compile(rb"[ \t\n\r]*+")
_STARTERS = frozenset(b'{["-0123456789tfnNI')
_DECODER = json.JSONDecoder(strict=False)  # control characters in strings: profilers write them


def stream_trace(document: Document, find: Find, take: Take, glance: Glance | None = None) -> dict[str, Any]:
    """Read a trace from its beginning, and hand the parsed events that `find` points at to `take`, in their order.

    What is to be known of too many events for that, `glance` reads off the bytes.

    Bytes that are no UTF-8 are replaced, as in `ncclt.profile.source.load_json`.

    Returns:
        The other members of the document.

    Raises:
        TraceError: the document is damaged, cut off, no JSON, or no trace.
    """
    document.stream.seek(0)
    window = _Window(document)
    if window.peek() != b"{":
        raise _no_trace(document.label) if window.peek() == b"[" else window.no_json("it does not begin with {")
    window.at += 1
    members: dict[str, Any] = {}
    has_events = False
    closed = window.skip_byte(b"}")
    while not closed:
        key = window.value()
        if not isinstance(key, str) or not window.skip_byte(b":"):
            raise window.no_json("a member without a name")
        if key != "traceEvents":
            members[key] = window.value()
        elif has_events or window.peek() not in (b"[", b""):
            raise _no_trace(document.label)
        elif not window.skip_byte(b"["):
            raise window.no_json("it ends in the middle")
        else:
            has_events = True
            _read_events(window, find, take, glance)
        closed = window.skip_byte(b"}")
        if not closed and not window.skip_byte(b","):
            raise window.no_json("a comma is missing")
    if window.peek():
        raise window.no_json("something follows its end")
    if not has_events:
        raise _no_trace(document.label)
    return members


def _read_events(window: _Window, find: Find, take: Take, glance: Glance | None) -> None:
    """Read the elements of an array and its closing bracket; the opening one is behind us."""
    if window.skip_byte(b"]"):
        return
    skip = skipper(window.data, window.at)
    while True:
        start = window.at
        closed = _read_complete(window, skip, find, take)
        read = window.data[start : window.at - closed]
        if glance and read:
            glance(read, partial(window.parsed_elements, read))
        if closed:
            return
        window.more()


def _read_complete(window: _Window, skip: Skip, find: Find, take: Take) -> bool:
    """Read the elements that are completely in memory; return True if the array ended with them."""
    data = window.data
    # The end of the data counts as a last hit: everything before it is skipped.
    for hit in chain(find(data, window.at), (len(data),)):
        while window.at <= hit:
            window.at = skip(data, window.at, hit + 2)
            end = window.value_end()
            ending = len(data) if end is None else _skipped_space(data, end)
            if end is None or ending == len(data):
                return False
            if hit < end:
                take(window.parsed(data[window.at : end]))
            window.at = ending + 1
            match data[ending : ending + 1]:
                case b"]":
                    return True
                case b",":
                    window.at = _skipped_space(data, window.at)
                case _:
                    raise window.no_json("a comma is missing between events")
    return False


class _Window:
    """The part of a document that is in memory; `at` is the first byte not yet read."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.data = read_block(document, BLOCK_BYTES)
        self.at = 3 if self.data.startswith(b"\xef\xbb\xbf") else 0

    def more(self) -> None:
        """Drop what was read and add what follows: at least as much as was left, so that no byte is moved often."""
        unread = self.data[self.at :]
        if len(unread) > LONGEST_BYTES:
            raise self.no_json(f"an event or member is longer than {LONGEST_BYTES // 2**20} MiB")
        block = read_block(self._document, max(BLOCK_BYTES, len(unread)))
        if not block:
            raise self.no_json("it ends in the middle")
        self.data = unread + block
        self.at = _skipped_space(self.data, 0)

    def peek(self) -> bytes:
        """Skip white space and return the byte that follows, empty at the end of the document."""
        self.at = _skipped_space(self.data, self.at)
        while self.at == len(self.data):
            self.data, self.at = read_block(self._document, BLOCK_BYTES), 0
            if not self.data:
                return b""
            self.at = _skipped_space(self.data, 0)
        return self.data[self.at : self.at + 1]

    def skip_byte(self, byte: bytes) -> bool:
        """Skip white space, and this byte if it follows; return True if it did."""
        follows = self.peek() == byte
        self.at += follows
        return follows

    def value(self) -> Any:
        """Read one value."""
        self.peek()
        while (end := self.value_end()) is None:
            self.more()
        value = self.parsed(self.data[self.at : end])
        self.at = end
        return value

    def value_end(self) -> int | None:
        """Return the end of the value that begins here, None where that is not yet in memory."""
        if self.at < len(self.data) and self.data[self.at] not in _STARTERS:
            raise self.no_json(f"no value begins with {self.data[self.at : self.at + 1]!r}")
        return value_end(self.data, self.at)

    def parsed_elements(self, data: bytes) -> list[Any]:
        """Return parsed elements of an array; a comma may follow the last."""
        elements: list[Any] = self.parsed(b"[" + data.rstrip(b" \t\n\r").removesuffix(b",") + b"]")
        return elements

    def parsed(self, data: bytes) -> Any:
        """Return a parsed value."""
        try:
            return _DECODER.decode(data.decode(errors="replace"))
        except (ValueError, RecursionError) as error:
            raise self.no_json(str(error)) from error

    def no_json(self, why: str) -> TraceError:
        """Return the error for a document that cannot be parsed."""
        hint = "the profiler may have been stopped while it wrote; export the trace again"
        return TraceError(f"{self._document.label} is cut off or not JSON: {why}", hint=hint)


def _skipped_space(data: bytes, at: int) -> int:
    match = _SPACE.match(data, at)
    return match.end() if match else at


def _no_trace(label: str) -> TraceError:
    hint = "export it with torch.profiler's export_chrome_trace or tensorboard_trace_handler"
    return TraceError(f"{label} is not a Kineto trace: it has no list `traceEvents`, or more than one", hint=hint)
