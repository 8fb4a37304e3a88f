"""The line that a fact comes from, so that findings can show it."""

from __future__ import annotations

from dataclasses import dataclass

from ncclt.core.documents import Documented

_MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(Documented):
    """One line of one source.

    Attributes:
        source: file name, or the command that printed it.
        line: counted from 1; None = the source has no lines.
        text: of the line, shortened if it is long.
    """

    source: str
    line: int | None = None
    text: str

    def __str__(self) -> str:
        """Write it as compilers do: `node7.log:12: text`."""
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable that NCCL reads, and where it comes from."""

    name: str
    value: str
    evidence: Evidence


def shortened(text: str) -> str:
    """Return a line without its end and control characters, cut if it is too long to be shown."""
    clean = "".join(c if c.isprintable() else " " for c in text.rstrip())
    return clean if len(clean) <= _MOST_CHARACTERS else f"{clean[: _MOST_CHARACTERS - 3]}..."
