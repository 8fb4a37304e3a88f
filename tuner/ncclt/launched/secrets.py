"""Takes secrets out of the output that a failed trial keeps: it ends up in a store, on pages and in tickets."""

from __future__ import annotations

import re

_REMOVED = "[removed]"

_NAMED = re.compile(
    r"(?i)(\b[\w-]*(?:token|secret|passw|passphrase|api_?key|access_?key|private_?key|credential)[\w-]*[\"']?\s*[=:]\s*"
    r"|--[\w-]*(?:token|secret|password)[\w-]*\s+)(\"[^\"]*\"|'[^']*'|[^\s,;\"']+)"
)
_AUTHORIZATION = re.compile(r"(?i)(\bauthorization\s*[=:]\s*(?:\w+\s+)?)\S+")
_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+(?=@)")

# Forms that give themselves away: Hugging Face, GitHub, GitLab, Slack, AWS, W&B-like and OpenAI-like keys, JWTs.
_SHAPED = re.compile(
    r"\b(?:hf_\w{8,}|gh[opsur]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{12,}"
    r"|sk-[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)


def without_secrets(text: str) -> str:
    """Return a text with everything that looks like a password, key or token replaced."""
    text = _NAMED.sub(rf"\1{_REMOVED}", text)
    text = _AUTHORIZATION.sub(rf"\1{_REMOVED}", text)
    text = _IN_ADDRESS.sub(_REMOVED, text)
    return _SHAPED.sub(_REMOVED, text)
