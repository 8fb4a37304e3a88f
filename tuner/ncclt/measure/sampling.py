"""When a message has been sampled enough: the time of the default shows which settings cannot win.

A launch measures all messages, and a setting that is hopeless for one size is often the best for another, so no launch
is cut as a whole. But a message that a setting makes much slower than the default does will never be given to that
setting, and a few samples of it say so as well as hundreds.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence

from ncclt.core.message import Message

ENOUGH_FACTOR = 1.5
"""Median of a first batch, as a multiple of the default's time, above which no more samples are taken.

Only gains are chosen, and medians of eight calls of one launch scatter by a few per cent: 50 % is far from mattering.
"""


class SamplingLimit:
    """Remembers how long each message took under the default; all runners of one study may share it.

    The rule holds for every setting alike, the default included: launches that are compared are measured in one way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._default_us: dict[Message, list[float]] = {}

    def learn(self, times_us: Mapping[Message, float]) -> None:
        """Remember what one launch of the default took, µs per call of each message; the median of several counts."""
        with self._lock:
            for message, time_us in times_us.items():
                self._default_us.setdefault(message, []).append(time_us)

    def enough_us(self, messages: Sequence[Message]) -> tuple[float | None, ...]:
        """Return for each message the time from which on its first batch of samples is enough, µs.

        None = the default's time is not known yet, so all samples are taken.
        """
        with self._lock:
            known = {m: statistics.median(self._default_us[m]) for m in messages if m in self._default_us}
        return tuple(ENOUGH_FACTOR * known[m] if m in known else None for m in messages)
