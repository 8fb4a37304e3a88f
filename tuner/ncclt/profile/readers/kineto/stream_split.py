"""Where the elements of a JSON array end: found by regular expressions over bytes, without parsing them.

Two ways that agree on every valid document. `value_end` reads token by token and is right for any JSON value. `skipper`
jumps over whole events and looks at their braces alone, six times as fast; it rests on three facts about valid JSON:

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

import re
from collections.abc import Callable
from functools import lru_cache

_SPACE = rb"[ \t\n\r]*+"
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_BEHIND_COLON = rb"(?:(?<=: )|(?<=:))"
_KEY_AHEAD = rb"(?=\{" + _SPACE + rb'"\w)'
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
_BOUNDARY = re.compile(rb"\}" + _SPACE + rb"," + _SPACE + _KEY_AHEAD)


def value_end(data: bytes, start: int) -> int | None:
    """Return where the JSON value that begins at `start` ends, None where `data` ends before it.

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
        found = match(data, at, limit)
        return found.end() if found else at

    return skip


@lru_cache(maxsize=16)
def _run(separator: bytes) -> re.Pattern[bytes]:
    # Every loop over characters excludes one character alone: `re` runs those ten times as fast as `[^{}]`.
    event = (
        rb"\{" + _SPACE + rb'"\w[^{]*+'
        rb"(?:" + _BEHIND_COLON + rb"\{[^{]*+)*+"
        rb"(?<=" + re.escape(separator) + rb")" + _KEY_AHEAD
    )
    slowly = rb"(?:" + _OBJECT + rb"|" + _SCALAR + rb")" + _SPACE + rb"," + _SPACE
    return re.compile(_every(event + rb"|" + slowly), re.DOTALL)
