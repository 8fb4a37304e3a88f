"""Reason why a run of nccl-tests has no result, from its output and its launcher's."""

from __future__ import annotations

import re

_MAX_REASON = 300
"""Characters of a reason; the rest of such a line is rarely useful."""

# In this order: lines that name the cause come before those that only report that something failed.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"(?i)\binvalid option\b|^\s*usage:|^USAGE\b"),
        "it does not know one of the options and printed its usage",
    ),
    (re.compile(r"(?i)no algorithm/protocol"), ""),
    (re.compile(r"(?i)\bout of memory\b"), ""),
    (re.compile(r"(?i)error while loading shared libraries"), ""),
    (re.compile(r"(?i)invalid number of gpus|not enough gpus"), ""),
    (re.compile(r"(?i)\binvalid (?:minbytes|maxbytes|sizes? )"), ""),
    (re.compile(r"Test (?:NCCL|CUDA) failure"), ""),
    (re.compile(r"^\s*#\s*error:"), ""),
    (re.compile(r"NCCL WARN"), ""),
    (re.compile(r"(?i)^\s*(?:srun|mpirun|mpiexec|prterun|slurmstepd)\b.*error"), ""),
    (re.compile(r"(?i)\b(?:segmentation fault|bus error|aborted|killed)\b"), ""),
    (re.compile(r"Test failure"), ""),
    (re.compile(r"^cannot start "), ""),
)


def failure_reason(text: str) -> str:
    """Return the line that best explains why nothing was measured, shortened, or that nothing was printed."""
    if named := named_reason(text):
        return named
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("#", "+"))]
    if said:
        return _short(f"last line: {said[-1]}")
    return "it ended before its first row" if lines else "it printed nothing"


def named_reason(text: str) -> str:
    """Return the first line that is known to name a cause, shortened; empty = no such line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern, meaning in _PATTERNS:
        for line in lines:
            if pattern.search(line):
                return _short(f"{meaning} ({line})" if meaning else line)
    return ""


def _short(line: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in line)
    return printable if len(printable) <= _MAX_REASON else printable[: _MAX_REASON - 1] + "…"
