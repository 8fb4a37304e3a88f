"""Keep a text up to date with what a server recommends for one kind of job."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ncclt.core.recommendation import Request
from ncclt.deliver.offer import fetched_for, kept_answers
from ncclt.errors import NccltError, NoRecommendationError, StaleRecommendationError, UsageError, reason

MARK = "# Kept up to date by `ncclt agent`, which replaces the whole file.\n"
FORMATS = ("nccl-conf", "dotenv", "export")
"""Formats in which a comment alone sets nothing."""

_WAIT_S = 30
_PAUSE_S = 5.0
"""After what the server answers at once: a refusal, or nothing."""


def require_own(path: Path) -> None:
    """Refuse a file that no agent wrote.

    Raises:
        UsageError: it is another one, or cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            own = path.is_file() and file.read(len(MARK)) in (MARK, "")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}", hint="give another --render") from error
    if not own:
        raise UsageError(f"{path} was not written by an agent", hint="give another --render, or move it away")


def keep_up_to_date(
    request: Request,
    server: str,
    *,
    format: str,
    timeout_s: float,
    write: Callable[[str], None],
    say: Callable[[str], None],
    once: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Write the text whenever it changes, for ever.

    An answer stands until the server gives another, so what cannot be fetched changes nothing. A refusal (nothing fits
    any more, or it is stale) leaves a text that sets nothing.

    Args:
        request: the kind of job.
        server: its address.
        format: one of `FORMATS`.
        timeout_s: for each request.
        write: receives each new text.
        say: receives a line for the user, not the same one twice in a row.
        once: return after the first answer.
        pause: waits for some seconds.

    Raises:
        NccltError: `once`, and the server did not answer; or the request itself is wrong.
    """
    written: str | None = None
    said, wait_s = "", 0
    while True:
        try:
            fetched = fetched_for(request, server, format=format, timeout_s=timeout_s, wait_s=wait_s, **kept_answers())
            text: str | None = MARK + fetched.text
            news = fetched.warning
        except (NoRecommendationError, StaleRecommendationError) as refusal:
            text, news = f"{MARK}# Nothing is set: NCCL's own choice stays.\n", refusal.message
        except UsageError:
            raise
        except NccltError as failure:
            if once:
                raise
            text, news = written, f"{failure.message}; the file stays as it is"
        if text is not None and text != written:
            write(text)
            written = text
        if news and news != said:
            say(f"ncclt: {news}")
        said = news
        if once:
            return
        # A server that has answered holds the next request until there is news.
        wait_s = 0 if news else _WAIT_S
        if news:
            pause(_PAUSE_S)
