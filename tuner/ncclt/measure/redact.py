"""Takes secrets out of what a command printed, before anything of it is kept: stores, pages and tickets are shared.

Every door by which output of a command reaches them goes through `without_secrets`. Three things are removed: values of
this process's own variables that are named like secrets, what detect-secrets (Yelp) knows by its form, and what it does
not know: values behind names, options and headers, forms of newer services, and words that only a generator writes.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from ncclt.core.verification import Variables

REMOVED = "[removed]"

MOST_CHARACTERS = 64 * 1024
"""Characters at the end of an output that are searched: a long one would take seconds, and only its end is kept."""

_CONTEXT = 1000
"""Characters that are left out after a cut within a line."""

# As part of a name: HF_TOKEN, db_password, GITHUB_PAT, and not tokenizer, max_tokens or NCCL_ALGO_PAT.
_NAME = (
    r"(?:token(?!i[sz]|s\b)|secret|passw|passphrase|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key"
    r"|signing[_-]?key|encryption[_-]?key|auth[_-]?key|license[_-]?key|credential|webhook|bearer|_pat\b|_pwd\b)"
)
_VALUE = r"(?:\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[^\s\"']+)"
_PLAIN = r"(?!(?:-?[\d.]+|true|false|none|null|yes|no)?[\"']?[,;)}\]]*(?:\s|$))"

_RULES = tuple(
    re.compile(f"(?i){pattern}")
    for pattern in (
        # Keys in PEM, to their end or that of the text.
        r"-----BEGIN [A-Z0-9 ]{0,60}-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,60}-----|\Z)",
        # Headers, to the end of the line: schemes and cookies hold blanks.
        r"(\b(?:proxy-)?authorization[\"']?\s*[=:]\s*)\S.*",
        r"(\b(?:set-)?cookie[\"']?\s*:\s*)\S.*",
        r"(\bx-[a-z-]{0,30}(?:key|token|auth|secret)[\"']?\s*:\s*)\S.*",
        # NAME=value, "name": "value", and options and configuration lines with a blank.
        rf"((?<![\w-])(?!NCCL_)[\w.-]{{0,60}}?{_NAME}[\w.-]{{0,60}}[\"']?\]?\s{{0,3}}(?:=>|:=|[=:])\s{{0,3}})"
        rf"{_PLAIN}{_VALUE}",
        rf"((?<![\w-])--[\w-]{{0,40}}(?:{_NAME}|auth\b|-key\b|pat\b)[\w-]{{0,40}}\s{{1,3}}){_PLAIN}(?!-){_VALUE}",
        rf"(\b\w{{0,40}}_(?:key|secret|token|password|pat)\s{{1,3}}){_PLAIN}(?=\S*[\dA-Z+/])[^\s=:]{{8,}}",
        r"(\blogin\s{1,3}\S{1,200}\s{1,3}password\s{1,3})\S+",
        r"(\bcurl\b[^\n]{0,300}?\s(?:-u|--user)[\s=]?\s{0,3})\S+",
        r"(\s(?:-u|--user)[\s=]\s{0,3})(?!\d{1,10}:\d{1,10}\b)[^\s:/]{1,100}:[^\s:/]\S*",
        r"(\bsshpass\s{1,3}-p\s{0,3})\S+",
        # Addresses: user and password or a token before the host, signed queries, and web-hooks, whose path is the key.
        r"(?<=://)(?!\[)[^\s/:@\"']{0,200}+:(?!\d{1,5}(?:[/\s]|$))(?:[^\s\"'@]{0,200}+@)*[^\s\"'@]{0,200}+(?=@)",
        r"(?<=https://)[^\s/:@\"']{8,400}+(?=@)",
        r"([?&](?:sig|signature|sas|key|code|auth|x-(?:amz|goog)-(?:signature|credential|security-token))=)[^&\s\"']+",
        r"(\bhttps://[^\s/\"']{0,200}+/)(?=[^\s\"']{0,200}?(?:hook|workflows/|(?<=/)bot\d))[^\s\"']+",
        r"(\bhttps://hooks?\.[^\s/\"']{0,200}+/)[^\s\"']+",
        # A long word of letters and digits on a line that speaks of keys.
        r"((?:\bapi\b|\bwandb\b|\bkeys?\b|\btoken\b|\bsecret\b|\blogin\b|\bpasswords?\b|\bcredentials?\b)[^\n]{0,80}?)"
        r"(?<![\w/.-])(?=[a-z_-]{0,60}\d)(?=[\d_-]{0,60}[a-z])[\w+/-]{20,}={0,2}(?![\w/.-])",
    )
)

# Forms that give themselves away and that detect-secrets does not know, or knows in one length only.
_SHAPED = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_\w{8,}|gh[opsur]_\w{16,}|github_pat_\w{16,}|gl(?:pat|dt|rt|cbt|soat|ptt|agent)-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{12,}|[srp]k[-_][\w-]{16,}"
    r"|eyJ[\w-]{8,2000}\.[\w-]{8,}\.?[\w-]*|AIza[\w-]{20,}|ya29\.[\w.-]{10,}|pypi-[\w-]{16,}|npm_[A-Za-z0-9]{20,}"
    r"|dop_v1_\w{20,}|dapi[0-9a-f]{30,}|nvapi-[\w-]{16,}|gsk_\w{20,}|xai-\w{20,}|r8_\w{20,}|pplx-\w{20,}|glsa_\w{20,}"
    r"|hv[sbr]\.[\w-]{20,}|shp(?:at|ss|ca|pa)_\w{20,}|lin_api_\w{20,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|AGE-SECRET-KEY-\w{20,}|wandb_v\d_\w{20,}|whsec_\w{16,}|tskey-[\w-]{16,})"
)

# What is left of a key whose begin was cut off, or with a rank in front of each line.
_BASE64_LINES = re.compile(
    r"(?m)(?:^[^\n]{0,60}?(?<![\w+/])[A-Za-z0-9+/]{60,76}={0,2}\s*\n){2,}[^\n]{0,60}?(?<![\w+/])[A-Za-z0-9+/=]*$"
)
# Not hashes and UUIDs, with a prefix as GPUs have it.
_WORD = re.compile(
    r"(?<![\w+/=.-])(?!(?:[A-Z]{3}-)?[0-9a-f-]+(?![\w+/-]))[A-Za-z0-9][A-Za-z0-9+/_-]{23,}={0,2}(?![\w+/-])"
)

_SECRET_VARIABLE = re.compile(rf"(?i)(?!NCCL_).*{_NAME}")
_PASSWORD_IN_URL = re.compile(r"://[^\s/:@]*:(\S+)@")
_SHORTEST_VALUE = 6

_UNWANTED = frozenset(
    {"IPPublicDetector", "KeywordDetector", "Base64HighEntropyString", "HexHighEntropyString", "PrivateKeyDetector"}
    | {"BasicAuthDetector", "ArtifactoryDetector", "NpmDetector", "JwtTokenDetector"}
)
"""Of detect-secrets: addresses, hashes and file names of every log look like these, a rule here removes more, or (npm,
JWT) the time grows with the square of a line's length."""


def without_secrets(text: str, *, environ: Mapping[str, str] | None = None) -> str:
    """Return the end of a text with everything that looks like a password, key or token replaced.

    Args:
        text: that a command printed; of more than `MOST_CHARACTERS` the begin is replaced by a mark.
        environ: whose secret-looking values are removed wherever they stand; None = of this process.
    """
    end = cut_begin(text, most=MOST_CHARACTERS)
    if len(end) < len(text):
        text = f"[{len(text) - len(end):,} characters cut]{end}"
    return _remove_secrets(text, _own_values(os.environ if environ is None else environ))


def cut_begin(text: str, *, most: int) -> str:
    """Return at most `most` characters of the end of a text, in which secrets can still be recognised.

    A secret is recognised by its line, which names it; in a single long line by the words before it.
    """
    if len(text) <= most:
        return text
    end = text[-most:]
    begin = re.search(r"[\r\n]", end) or re.compile(r"\s|$").search(end, _CONTEXT)
    return end[begin.start() :]  # type: ignore[union-attr]  # the end of the text matches


def words_without_secrets(words: Sequence[str], *, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the words of a command line, with those of secrets replaced; `environ` as for `without_secrets`."""
    values = _own_values(os.environ if environ is None else environ)
    lines = [" ".join(_remove_values(word, values).split("\n")) for word in words]
    cleaned = _remove_secrets("\n".join(lines), values).split("\n")
    if len(cleaned) == len(lines):
        return tuple(cleaned)
    # A secret of several words was removed as a whole. Up to three words before it tell what a word is: `login NAME
    # password VALUE`.
    return tuple(
        _remove_secrets("\n".join(lines[max(0, at - 3) : at + 1]), values).rpartition("\n")[2]
        for at in range(len(lines))
    )


def variables_without_secrets(variables: Variables) -> Variables:
    """Return variables that a side or launch sets, with the values of secrets replaced."""
    return tuple(
        (name, _remove_secrets(f"{name}={value}", _own_values({**os.environ, name: value})).partition("=")[2])
        for name, value in variables
    )


def _remove_values(text: str, values: Iterable[str]) -> str:
    for value in values:
        text = text.replace(value, REMOVED)
    return text


def _remove_secrets(text: str, values: Iterable[str]) -> str:
    text = _remove_values(text, values)
    for pattern in _RULES:
        text = pattern.sub(rf"\1{REMOVED}" if pattern.groups else REMOVED, text)
    text = _SHAPED.sub(REMOVED, text)
    for pattern in _library_patterns():
        text = pattern.sub(REMOVED, text)
    text = _BASE64_LINES.sub(REMOVED, text)
    return _WORD.sub(lambda word: REMOVED if _is_generated(word[0]) else word[0], text)


def _own_values(environ: Mapping[str, str]) -> list[str]:
    """Return the secret values in this process's variables, the longest first."""
    values = {value for name, value in environ.items() if _SECRET_VARIABLE.match(name) and not value.startswith("/")}
    values |= {match[1] for value in environ.values() for match in _PASSWORD_IN_URL.finditer(value)}
    plain = re.compile(r"[\d.]+|true|false", re.IGNORECASE)
    long = (value for value in values if len(value) >= _SHORTEST_VALUE and not plain.fullmatch(value))
    return sorted(long, key=len, reverse=True)


def _is_generated(word: str) -> bool:
    """Return True if upper case, lower case and digits change as often in a word as only a generator makes them.

    In a random word of letters and digits 62 % of neighbours are of two kinds; in CamelCase names, kernels' names and
    paths less than 40 %. Hashes have one case and stay: commit ids, digests and ids of communicators are wanted.
    """
    if word.startswith("_Z"):  # a mangled name of C++
        return False
    kinds = ["u" if c.isupper() else "l" if c.islower() else "d" for c in word if c.isalnum()]
    changes = sum(a != b for a, b in itertools.pairwise(kinds))
    return len(set(kinds)) == 3 and changes >= 0.45 * (len(kinds) - 1)


@cache
def _library_patterns() -> tuple[re.Pattern[str], ...]:
    """Return the patterns of detect-secrets, whose import takes most of a second and is needed by failures alone."""
    try:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    except ImportError:
        return ()  # an installation without the extra `tune`: the rules above are enough for the best known services
    detectors: Iterable[Any] = get_mapping_from_secret_type_to_class().values()
    return tuple(form for detector in detectors if detector.__name__ not in _UNWANTED for form in detector().denylist)
