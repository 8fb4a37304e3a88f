"""Reason why a run of nccl-tests has no result, from its output and its launcher's."""

from __future__ import annotations

import re

_MAX_REASON = 300
"""Characters of a reason; the rest of such a line is rarely useful."""

# In this order: lines that name the cause come before those that only report that something failed.
_USAGE = re.compile(r"(?i:\binvalid option\b|^\s*usage:)|^USAGE\b")
_PATTERNS = (
    _USAGE,
    *map(
        re.compile,
        (
            r"(?i)no algorithm/protocol",
            r"(?i)\bout of memory\b",
            r"(?i)error while loading shared libraries",
            r"(?i)invalid number of gpus|not enough gpus",
            r"(?i)\binvalid (?:minbytes|maxbytes|sizes? )",
            r"Test (?:NCCL|CUDA) failure",
            r"^\s*#\s*error:",
            r"NCCL WARN",
            r"(?i)^\s*(?:srun|mpirun|mpiexec|prterun|slurmstepd)\b.*error",
            r"(?i)\b(?:segmentation fault|bus error|aborted|killed)\b",
            r"Test failure",
            r"^cannot start ",
        ),
    ),
)


def failure_reason(text: str) -> str:
    """Return the line that best explains why nothing was measured, shortened, or that nothing was printed."""
    if named := named_reason(text):
        return named
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if printed := [line for line in lines if not line.startswith(("#", "+"))]:
        return _short(f"last line: {printed[-1]}")
    return "it ended before its first row" if lines else "it printed nothing"


def named_reason(text: str) -> str:
    """Return the first line that is known to name a cause, shortened; empty = no such line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    pattern, line = next(((p, line) for p in _PATTERNS for line in lines if p.search(line)), (None, ""))
    meaning = "it does not know one of the options and printed its usage"
    return _short(f"{meaning} ({line})" if pattern is _USAGE else line)


def _short(line: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in line)
    return printable if len(printable) <= _MAX_REASON else printable[: _MAX_REASON - 1] + "…"
