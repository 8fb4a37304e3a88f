"""Writes manifests as YAML for people and kubectl, from plain data; nothing is read back here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

Node = str | int | bool | Sequence["Node"] | Mapping[str, "Node"]
"""What a manifest is made of."""

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS_WITH_A_MEANING = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})  # YAML 1.1, 10.2
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")


def to_yaml(documents: Sequence[Mapping[str, Node]]) -> str:
    """Return documents as one YAML text."""
    return "---\n".join("\n".join(_block(document, 0)) + "\n" for document in documents)


def _block(node: Node, indent: int) -> list[str]:
    """Return the lines of a mapping or a sequence that is not empty."""
    margin = " " * indent
    lines: list[str] = []
    if isinstance(node, Mapping):
        for key, value in node.items():
            lines += _entry(f"{margin}{_scalar(key)}:", value, indent + 2)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for value in node:
            if _is_nested(value):
                first, *others = _block(value, indent + 2)
                lines += [f"{margin}- {first[indent + 2 :]}", *others]
            else:
                lines += _entry(f"{margin}-", value, indent + 2)
    return lines


def _entry(head: str, value: Node, indent: int) -> list[str]:
    if _is_nested(value):
        return [head, *_block(value, indent)]
    if isinstance(value, str) and _fits_literal(value):
        return [f"{head} |", *(f"{' ' * indent}{line}" if line else "" for line in value[:-1].split("\n"))]
    return [f"{head} {_scalar(value)}"]


def _is_nested(node: Node) -> bool:
    return isinstance(node, Mapping | Sequence) and not isinstance(node, str) and bool(node)


def _fits_literal(text: str) -> bool:
    """Tell whether a text of several lines can stand as it is, its one last line feed included."""
    lines = text.split("\n")
    return (
        len(lines) > 1
        and lines[-1] == ""
        and lines[-2] != ""
        and not lines[0].startswith((" ", "\t"))
        and lines[0] != ""
        and all(line.replace("\t", "").isprintable() for line in lines)
    )


def _scalar(value: Node) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        return "{}" if isinstance(value, Mapping) else "[]"
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS_WITH_A_MEANING:
        return value
    # A JSON string is a double-quoted one of YAML, except for how other than ASCII characters are escaped.
    return _NOT_ASCII.sub(_escaped, json.dumps(value, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
