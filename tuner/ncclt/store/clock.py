"""The time that rows are stamped with."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Return the current time, ISO in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
