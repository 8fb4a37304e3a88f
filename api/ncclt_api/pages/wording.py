"""Numbers, times, states and names as text: the filters of the templates."""

from __future__ import annotations

import math
import re
import shlex
from datetime import datetime, timedelta
from decimal import Decimal

from markupsafe import Markup, escape

from ncclt.core.cluster import Cluster, Fingerprint
from ncclt.core.message import Message, format_bytes
from ncclt.core.policy import Rule
from ncclt.core.recommendation import Verdict
from ncclt.core.study import Phase
from ncclt.core.tuning_job import JobState, JobStatus, describe_worker

NONE = "–"
"""Shown where there is no value."""

PHASES = {Phase.SEARCH: "search", Phase.CONFIRM: "confirmation", Phase.PROVE: "A/B test"}
"""Phases of a study as text."""

_GOOD = ("active", "done", "healthy", "ok", "promoted", "took-effect", "won")
_BAD = ("crashed", "degraded", "invalid", "lost", "not-at-all", "stale", "substituted", "timeout", "wrong_result")
_NEUTRAL = ("cancelled", "candidate", "ended", "futile", "paused", "queued", "retired", "unknown", "unmeasured")
_BADGES = {
    **dict.fromkeys(_GOOD, "tuned"),
    **dict.fromkeys(_BAD, "failed"),
    **dict.fromkeys(_NEUTRAL, "open"),
    "partly": "simulated",
}
"""State -> class of its badge; any other state is a class of its own."""


def format_time(time_us: float | None) -> str:
    """Write a time with the unit that keeps it short, three significant digits.

    >>> format_time(7.126), format_time(812.4), format_time(34210.0)
    ('7.13 µs', '812 µs', '34.2 ms')
    """
    if time_us is None:
        return NONE
    value, unit = time_us, "µs"
    for larger in ("ms", "s"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    if value >= 99.95:
        return f"{value:,.0f} {unit}".replace(",", "\u202f")
    return f"{value:.1f} {unit}" if value >= 9.995 else f"{value:.2f} {unit}"


def format_us(time_us: float | None) -> str:
    """Write a time in µs for a column of them: one decimal below 1000 µs, thin spaces above.

    >>> format_us(7.126)
    '7.13'
    """
    if time_us is None:
        return NONE
    if time_us < 10:
        return f"{time_us:.2f}"
    return f"{time_us:.1f}" if time_us < 1000 else f"{time_us:,.0f}".replace(",", "\u202f")


def format_speedup(speedup: float | None) -> str:
    """Write a speed-up as a factor.

    >>> format_speedup(1.0834)
    '1.083×'
    """
    return NONE if speedup is None else f"{speedup:.3f}×"


def format_interval(interval: tuple[float, float] | None) -> str:
    """Write a 95 % interval; one without bound is unknown: too little was measured.

    >>> format_interval((1.0612, 1.104)), format_interval(None)
    ('1.061–1.104', 'unknown')
    """
    if interval is None or not math.isfinite(interval[1]):
        return "unknown"
    return f"{interval[0]:.3f}–{interval[1]:.3f}"


def format_saving(verdict: Verdict) -> str:
    """Write how much communication time per step the policy saves: 1 - policy / default.

    >>> v = Verdict(decision="tuned", reason="", speedup=1.25, interval=(1, 2), blocks=4, default_us=100, policy_us=80)
    >>> format_saving(v)
    '20.0 %'
    """
    return f"{100 * (1 - 1 / verdict.speedup):.1f} %"


def format_bandwidth(busbw_gbps: float) -> str:
    """Write a bandwidth in 1e9 bytes/s: one decimal, more below 1.

    >>> format_bandwidth(31.02), format_bandwidth(0.0267)
    ('31.0', '0.027')
    """
    return f"{busbw_gbps:.1f}" if busbw_gbps >= 0.995 else f"{busbw_gbps:.2g}"


def format_count(value: float) -> str:
    """Write a number of calls: whole where it is whole.

    >>> format_count(4.0), format_count(2.5)
    ('4', '2.5')
    """
    return f"{value:g}"


def format_range(rule: Rule) -> str:
    """Write the sizes of a rule, both ends inclusive.

    >>> from ncclt.core.message import Collective
    >>> format_range(Rule(collective=Collective.ALL_REDUCE, min_bytes=1024, max_bytes=65536))
    'from 1 KiB to 64 KiB'
    """
    if rule.min_bytes == 0 and rule.max_bytes is None:
        return "every size"
    if rule.min_bytes == 0:
        return f"up to {format_bytes(rule.max_bytes or 0)}"
    before = format_bytes(rule.min_bytes - 1)
    # A rule that begins one byte after a round size reads better by that size: `above 1 MiB`.
    is_after_round = "." not in before and "." in format_bytes(rule.min_bytes)
    start = f"above {before}" if is_after_round else f"from {format_bytes(rule.min_bytes)}"
    return start if rule.max_bytes is None else f"{start} to {format_bytes(rule.max_bytes)}"


def format_figure(value: float, digits: int = 3) -> str:
    """Write a number with few digits, and without an exponent.

    >>> format_figure(0.0000123456), format_figure(1234.5), format_figure(2.0)
    ('0.0000123', '1230', '2')
    """
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def format_hours(hours: float) -> str:
    """Write hours of training or of GPUs, two digits where they are few.

    >>> format_hours(0.000034), format_hours(7.26), format_hours(18012.0)
    ('0.000034 h', '7.3 h', '18\u202f012 h')
    """
    return f"{format_figure(hours, 2)} h" if hours < 100 else f"{hours:,.0f} h".replace(",", "\u202f")


def format_change(share: float) -> str:
    """Write by how much something changed; less than can be written has no sign.

    >>> format_change(0.0312), format_change(-0.0104), format_change(-0.0002)
    ('+3.1 %', '−1.0 %', '0.0 %')
    """
    percent = f"{100 * abs(share):.1f} %"
    return percent if percent == "0.0 %" else f"{'+' if share > 0 else '−'}{percent}"


def format_whole(count: int) -> str:
    """Write a whole number with thin spaces.

    >>> format_whole(10000)
    '10\u202f000'
    """
    return f"{count:,}".replace(",", "\u202f")


def format_ago(iso: str, now: datetime) -> str:
    """Write how long ago an ISO time was; empty or unreadable times give a dash.

    >>> from datetime import timezone
    >>> format_ago("2026-01-01T00:00:00+00:00", datetime(2026, 1, 1, 2, tzinfo=timezone.utc))
    '2 h ago'
    """
    try:
        then = datetime.fromisoformat(iso)
    except ValueError:
        return NONE
    age = now - (then if then.tzinfo else then.replace(tzinfo=now.tzinfo))
    if age < timedelta(minutes=1):
        return "just now"
    for unit, length in (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1))):
        if age >= length:
            return f"{age // length} {unit} ago"
    raise AssertionError("unreachable: at least a minute has passed")


def format_when(iso: str) -> str:
    """Write an ISO time to the minute; an empty one gives a dash.

    >>> format_when("2026-01-01T12:30:59.123+00:00")
    '2026-01-01 12:30'
    """
    return iso[:16].replace("T", " ") or NONE


def format_shape(place: Cluster | Fingerprint) -> str:
    """Write nodes, GPUs per node and GPU: `2 × 4 A100-SXM-64GB`."""
    return f"{place.nodes} × {place.gpus_per_node} {place.gpu}"


def format_state(state: str) -> str:
    """Write a state, an outcome or a decision as text.

    >>> format_state("keep-default"), format_state("wrong_result")
    ('keep default', 'wrong result')
    """
    return str(state).replace("-", " ").replace("_", " ")


def badge_class(state: str) -> str:
    """Return the class of a badge, which is its colour, for a state, an outcome or a decision.

    >>> badge_class("won"), badge_class("undecided")
    ('tuned', 'undecided')
    """
    return _BADGES.get(str(state), str(state))


def describe_message(message: Message) -> str:
    """Return a message as text."""
    where = {True: " across nodes", False: " in a node", None: ""}[message.spans_nodes]
    ranks = f", {message.group_size} ranks" if message.group_size else ""
    return f"{message.collective.value} {format_bytes(message.size_bytes)} {message.dtype}{ranks}{where}"


def note_job(status: JobStatus) -> str:
    """Write the result of a tuning job, or what it waits for."""
    if status.result:
        return ": ".join(filter(None, (format_state(status.result.decision), status.result.reason)))
    if status.state is JobState.QUEUED:
        return f"waits for a worker: `ncclt admin worker --cluster {shlex.quote(status.job.cluster)}`"
    if status.cancelling:
        return "ends after its trial"
    return f"on {describe_worker(status.worker)}" if status.worker else ""


def with_code(text: str) -> Markup:
    """Write text between backticks as code, with whole options; everything is escaped.

    >>> str(with_code("`ncclt tune --quiet` <b>"))
    '<code>ncclt tune <span>--quiet</span></code> &lt;b&gt;'
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one of them has no other end
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(whole_options(part)) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def write_sentence(text: str) -> Markup:
    """Write text as of `with_code`, with a capital first letter; a command at its beginning keeps its case.

    >>> str(write_sentence("use it")), str(write_sentence("`ncclt tune` again"))
    ('Use it', '<code>ncclt tune</code> again')
    """
    return with_code(text[:1].upper() + text[1:])


def whole_options(command: str) -> Markup:
    """Write a command whose options are not broken after a hyphen at the end of a line; its text stays the same.

    >>> str(whole_options("ncclt env --model <b>"))
    'ncclt env <span>--model</span> &lt;b&gt;'
    """
    parts = re.split(r"(?<!\S)(--?\S+)", command)  # those at odd places are options
    return Markup("").join(
        Markup("<span>{}</span>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )


def cut_in_the_middle(text: str, most: int) -> str:
    """Shorten a name to `most` characters, keeping both ends.

    >>> cut_in_the_middle("a-rather-long-name-of-a-cluster", 11)
    'a-rat…uster'
    """
    if len(text) <= most:
        return text
    ahead = (most - 1) // 2
    return f"{text[: most - 1 - ahead]}…{text[len(text) - ahead :]}"
