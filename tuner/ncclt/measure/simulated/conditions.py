"""Tells in the free text of `other_env` what changes a measurement from what only describes it."""

from __future__ import annotations

import re

_ANNOTATIONS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"spread\s+[\d.]+\s*%?",
        r"(?:repeat|run|rep|trial|iteration)?[\s_]*(?:iteration|run|rep|trial|repeat)[_\s#-]*\d+",
        r"r\d+\s+(?:avg|mean|median|min|max)",
        r"(?:avg|average|mean|median|p\d\d|min)(?:\s+(?:of|over)\s+[\w/]+(?:\s+(?:runs?|iters?|iterations?|busbw|samples?))?)?",
        r"p\d\d\s+median\s+multi-run\b.*",
        r"defaults?(?:\s+chose\b.*)?",
        r"automatic(?:\s+choice)?|default\s+choice|nccl(?:'s)?\s+(?:own\s+)?choice|rccl\s+default|forced",
        r"gpu\s+compute\s+contention(?:\s+none)?",
    )
)
"""Pieces that say how a figure was taken or what the library chose: no condition. From the public tables; anything else
is taken as a condition, which is the safe side: it splits a landscape and never mixes two."""

_WRONG = re.compile(r"\bWRONG\s*=\s*(\d+)", re.IGNORECASE)


def condition_of(other_env: str) -> str:
    """Return what of the text is a condition; empty where all of it describes the figure.

    >>> condition_of("default chose TREE/LL; spread 0.4%"), condition_of("GPU compute contention low")
    ('', 'GPU compute contention low')
    """
    kept = []
    for part in re.split(r"\s*[;|]\s*", other_env.strip()):
        pieces = [piece for piece in re.split(r"\s*,\s+", part) if not _is_annotation(piece)]
        if pieces:
            kept.append(", ".join(pieces))
    return "; ".join(kept)


def is_wrong(other_env: str) -> bool:
    """Tell whether the row says that its result failed validation (`WRONG=n`, n above 0)."""
    found = _WRONG.search(other_env)
    return found is not None and int(found[1]) > 0


def _is_annotation(piece: str) -> bool:
    text = piece.strip()
    return not text or any(pattern.fullmatch(text) for pattern in _ANNOTATIONS) or bool(_WRONG.fullmatch(text))
