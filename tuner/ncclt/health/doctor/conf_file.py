"""NCCL's configuration files, read exactly as NCCL reads them (setEnvFile in src/misc/param.cc of 2.30.7).

NCCL reads a line as a name up to the first `=` and a value after it, both including blanks and quotes; `#` begins a
comment only in the first column, and values are cut at 1023 bytes. So a line that looks right is often misread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ncclt.health.doctor.variables import shown_value
from ncclt.nccl.log.evidence import Evidence, Variable, shortened

MOST_VALUE_BYTES = 1023
_MEANT = re.compile(r"[NR]CCL_[A-Z0-9_]+")
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfFile:
    """One configuration file.

    Attributes:
        source: its path.
        assignments: literal, in the order of the file; the first of a name counts.
        errors: lines that NCCL does not read as intended: the consequence, a sentence without a full stop, and the
            line.
    """

    source: str
    assignments: tuple[Variable, ...]
    errors: tuple[tuple[str, Evidence], ...]


def parse_conf_file(lines: Iterable[str], source: str) -> ConfFile:
    """Read a file as NCCL does; NCCL rejects nothing, so neither does this."""
    assignments: list[Variable] = []
    errors: list[tuple[str, Evidence]] = []
    for number, raw in enumerate(lines, start=1):
        line = raw.rstrip("\n")
        if line.startswith("#") or not line.strip():
            continue
        name, equals, value = line.partition("=")
        meant = _MEANT.search(name)
        text = f"{name}={shown_value(meant[0] if meant else name, value)}" if equals else line
        evidence = Evidence(source=source, line=number, text=shortened(text))
        errors += [(error, evidence) for error in _find_errors(name, equals, value)]
        if equals:
            cut = _bytes(value)[:MOST_VALUE_BYTES].decode(errors="ignore")
            assignments.append(Variable(name=name, value=cut, evidence=evidence))
    return ConfFile(source=source, assignments=tuple(assignments), errors=tuple(errors))


def _find_errors(name: str, equals: str, value: str) -> Iterator[str]:
    if name.lstrip().startswith("#"):
        if equals:
            yield "`#` is a comment in the first column alone: NCCL sets a variable with this odd name"
        return
    if not equals:
        yield "without `=` NCCL skips the line"
        return
    if name.strip().startswith("export "):
        yield "`export` becomes part of the name, so the variable is not set"
    elif name != name.strip():
        yield "the blank at the name becomes part of it, so the variable is not set"
    elif not _NAME.fullmatch(name):
        yield "the name is not a variable's name"
    if value[:1] in "\"'" and value:
        yield "quotes become part of the value"
    elif value != value.strip():
        yield "the blank or carriage return at the value becomes part of it"
    if re.search(r"\s#", value):
        yield "the comment after the value becomes part of it"
    if len(_bytes(value)) > MOST_VALUE_BYTES:
        yield f"NCCL cuts values at {MOST_VALUE_BYTES} bytes, this one has {len(_bytes(value))}"


def _bytes(value: str) -> bytes:
    """Return the bytes that NCCL counts, also of text with surrogates, as read from broken files."""
    return value.encode(errors="surrogatepass")
