"""Prefixes that launchers and log collectors put in front of the lines of a text, and the colours in it.

Forms: mpirun, srun, mpiexec, pdsh, torchrun and Ray; kubectl, stern, docker, containerd, CloudWatch, syslog, journald,
GitHub Actions and `ts`; quotes of mails. Several may be in front of one line (`2025-01-06T10:00:00Z [1,0]<stdout>:`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_DAY = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = rb"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_ISO = rb"\d{4}[-/]\d\d[-/]\d\d[T _]" + _CLOCK + rb"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_SYSLOG = _MONTH + rb" [ \d]\d " + _CLOCK
_CTIME = _DAY + rb" " + _MONTH + rb" [ \d]\d " + _CLOCK + rb"(?: [A-Z]{2,5})? \d{4}"  # mpirun --timestamp-output
_EPOCH = rb"\d{10}\.\d{3,9}"  # ts %.s
_STAMP = rb"(?:" + rb"|".join((_ISO, _CTIME, _SYSLOG, _EPOCH, _CLOCK)) + rb")"  # the last one by ts -s
_SYSLOG_OR_ISO = rb"(?:" + _SYSLOG + rb"|" + _ISO + rb") "
_HOST = rb"[A-Za-z0-9][\w.-]{0,253}"

# Recognised wherever they occur. A group `rank` is the rank whose line it is.
_CERTAIN = tuple(
    re.compile(pattern)
    for pattern in (
        rb"(?:> ?)+",  # a quoted mail
        rb"[ \t]{0,4}\|[ \t]+" + _ISO + rb"[ \t]+\|[ \t]?",  # a table of CloudWatch Logs Insights
        rb"<\d{1,3}>1 " + _ISO + rb"(?: \S{1,255}){4} (?:-|\[[^\]]{0,400}\])(?:[ ]|$)",  # syslog, RFC 5424
        _SYSLOG_OR_ISO + _HOST + rb" [\w./@()-]{1,80}(?:\[\d{1,10}\])?:(?:[ ]|$)",  # RFC 3164
        rb"[^\t\n]{1,100}\t[^\t\n]{1,100}\t" + _ISO + rb"(?:[ ]|$)",  # gh run view --log
        _STAMP + rb"(?:[ \t]|$|(?=[\[<]))",
        rb"\[" + _STAMP + rb"\](?:[ \t]|$|(?=[\[<]))",
        rb"std(?:out|err) [FP](?:[ ]|$)",  # containerd, after its time stamp
        rb"(?:\[(?:[^\]\s]{0,200}@)?\d{1,9},(?P<rank>\d{1,7})\])?<std\w{2,5}>:[ ]?",  # mpirun --tag-output, prterun
        rb"\[(?:pod|job|deployment|statefulset)/[^\]\s]{1,400}\](?:[ ]|$)",  # kubectl logs --prefix
        rb"\[[a-z][a-z_]{0,40}(?P<rank>\d{1,7})\]:[ ]?",  # torchrun --redirects, --tee
        rb"\([^()]{0,120}(?:\([^()]{0,60}\)[^()]{0,60})?\bpid=\d{1,10}[^()]{0,120}\)(?:[ ]|$)",  # Ray
        rb"[ \t]{0,7}(?P<rank>\d{1,7}):(?:[ \t]|$)",  # srun --label
        rb"\[(?P<rank>\d{1,7})\](?:[ ](?!NCCL )|$)",  # mpiexec -prepend-rank; NCCL writes its device so
    )
)

# Only where most lines have it: single lines of any text look like that.
_LIKELY = tuple(
    re.compile(pattern)
    for pattern in (
        _HOST + rb":(?:[ ](?!opCount |\d+ Bytes )|$)",  # pdsh, clush; NCCL names a collective so
        _HOST + rb"[ \t]+\|(?:[ ]|$)",  # docker compose
        rb"[a-z0-9][a-z0-9.]*-[a-z0-9.-]{1,250} [a-z0-9][a-z0-9-]{0,62}(?:[ ]|$)",  # stern: pod and container
        rb"[\w.-]{1,200}(?:/[\w.$\[\]-]{1,200})+(?:[ ]|$)",  # aws logs tail: a stream, after its time stamp
        rb"\[[A-Za-z0-9][^\]\s]{0,200}\]:?(?:[ ](?!NCCL )|$)",  # kubetail
    )
)
_LIKELY_SHARE = 0.6

# Beginnings of a line's content, in front of which anything that most lines share is a prefix.
_ANCHOR = re.compile(
    rb"#\s{1,8}(?:nThread\s|size\s{1,40}count\s|Using devices|nccl-tests version|Collective test starting)"
    rb"|Comm\. Op\s{1,40}Message Size|GPU0\s|comm_type,|collective,|(?:rank,)?(?:Process Group Name|Collective name),"
    rb"|(?:\[\s{0,8})?\{\"[\w ]{1,60}\"\s?:"
)
_CONTENT = re.compile(rb"NCCL |Params for bucket ")
"""Content that stands in front of an anchor, and is no prefix."""

_MOST_ANCHORS = 5
_LONGEST_PREFIX = 400
_MOST_LEVELS = 6
_LOOKED_AT = 2000
"""Lines of the beginning that decide."""
_LOOKED_INTO = 1024
"""Bytes of each line."""

_COLOUR = re.compile(
    rb"(?:\x1b|\^\[|\xe2\x90\x9b)\[[\d;:?]{0,30}[A-Za-z]"  # as bytes, by `cat -v`, and copied from a page
    rb"|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]"
    rb"|\[\d{1,3}(?:;\d{1,3}){0,4}m"  # the escape was lost on the way
)
_FIELDS = ("log", "message", "MESSAGE", "textPayload", "msg", "line", "@message")
"""Fields of a line of JSON that hold the text: docker, fluentd, journald, Google Cloud, Loki, CloudWatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Prefixes of the lines of one text.

    Attributes:
        levels: outermost first; of each at most one form is removed.
        has_colours: whether colours have to be removed.
        field: of the JSON object around each line; empty = there is none.
    """

    levels: tuple[tuple[re.Pattern[bytes], ...], ...] = ()
    has_colours: bool = False
    field: str = ""

    def __bool__(self) -> bool:
        return bool(self.levels or self.has_colours or self.field)

    def strip(self, line: bytes) -> tuple[int | None, bytes]:
        """Return a line without its prefixes, and the rank that they name."""
        if self.field:
            line = _unwrapped(line, self.field)
        if self.has_colours and b"[" in line:
            line = _COLOUR.sub(b"", line)
        rank = None
        for level in self.levels:
            for form in level:
                if match := form.match(line):
                    line = line[match.end() :]
                    if "rank" in form.groupindex and match["rank"] is not None:
                        rank = int(match["rank"])
                    break
        return rank, line


NO_PREFIXES = Prefixes()


def find_prefixes(beginning: bytes) -> Prefixes:
    """Return the prefixes that the beginning of a file shows; none where it is no text."""
    if b"\0" in beginning[:4096] or beginning[:1] == b"\x80":  # an archive, a database, a pickle
        return NO_PREFIXES
    raw_lines = beginning.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:_LOOKED_AT]
    lines = [line[:_LOOKED_INTO].rstrip(b"\r") for line in raw_lines]
    first = [line for line in raw_lines if line.strip()][:3]
    field = ""  # of the JSON objects that the lines are; empty = they are something else
    if first and first[0].startswith(b"{"):
        field = next((name for name in _FIELDS if all(_unwrapped(line, name) is not line for line in first)), "")
    if field:
        lines = [part for line in raw_lines for part in _unwrapped(line, field).splitlines()]
    has_colours = any(_COLOUR.search(line) for line in lines)
    if has_colours:
        lines = [_COLOUR.sub(b"", line) for line in lines]
    return Prefixes(
        levels=tuple(_levels([line for line in lines if line.strip()])), has_colours=has_colours, field=field
    )


def clean_text(text: str) -> str:
    r"""Return a text without prefixes and colours.

    >>> clean_text("[1,0]<stdout>:# Rank 0\n[1,0]<stdout>:# Rank 1")
    '# Rank 0\n# Rank 1'
    """
    content = text.encode(errors="surrogateescape")
    if not (prefixes := find_prefixes(content)):
        return text
    lines = (prefixes.strip(line)[1] for line in content.splitlines())
    return b"\n".join(line.rstrip(b"\n") for line in lines).decode(errors="surrogateescape")


def _levels(lines: Sequence[bytes]) -> Iterator[tuple[re.Pattern[bytes], ...]]:
    for _ in range(_MOST_LEVELS):
        level = [form for form in _CERTAIN if any(map(form.match, lines))]
        if not level:
            before = [line[: match.start()] for line in lines if (match := _ANCHOR.search(line, 0, _LONGEST_PREFIX))]
            forms = [form for prefix in before[:_MOST_ANCHORS] if (form := _form(prefix))]
            if all(prefix.strip() for prefix in before):
                forms += _LIKELY
            needed = max(1, _LIKELY_SHARE * len(lines))
            level = [form for form in forms if sum(map(bool, map(form.match, lines))) >= needed][:1]
        if not level:
            return
        yield tuple(level)
        prefixes = Prefixes(levels=(tuple(level),))
        lines = [content for line in lines if (content := prefixes.strip(line)[1]).strip()]


def _form(prefix: bytes) -> re.Pattern[bytes] | None:
    """Return the pattern of a prefix with other numbers; None = it is none, but the content's own beginning."""
    if not prefix.strip() or prefix[-1:].isalnum() or b'{"' in prefix or _CONTENT.search(prefix):
        return None
    form = re.sub(rb"\d+", rb"\\d+", re.escape(prefix))
    return re.compile(re.sub(rb"(?i)(\brank(?:\\ |[:=])?)\\d\+", rb"\1(?P<rank>\\d+)", form, count=1))


def _unwrapped(line: bytes, field: str) -> bytes:
    try:
        text = json.loads(line).get(field)
    except (ValueError, AttributeError, RecursionError):
        return line
    if not isinstance(text, str):
        return line
    # docker's `log` ends with its line feed, and without one where the line goes on.
    return (text if field == "log" else text.rstrip("\n") + "\n").encode(errors="replace")
