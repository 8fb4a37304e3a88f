"""Text of answers: stored text may contain bytes that were not Unicode, and no answer may fail because of them."""

from __future__ import annotations

from typing import Any


def readable(value: Any) -> Any:
    r"""Return a JSON value that can be encoded as UTF-8: lone surrogates become escapes.

    They come from file names, arguments and JSON that were not Unicode (PEP 383; RFC 8259, section 8.2).

    >>> readable({"notes": ["ok", "broken \udc80"]})
    {'notes': ['ok', 'broken \\udc80']}
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {readable(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    return value
