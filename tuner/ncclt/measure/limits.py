"""Limits of a launch: its timeout, and the time per call after which a slow message has samples enough.

Both follow the time of the default. A hang costs every GPU of the job until it is noticed, and a setting that needs
several times as long for the same work will not be chosen anyway.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ncclt.core.message import Message


@dataclass(slots=True, kw_only=True)
class Timeouts:
    """Time limits of commands, which follow from how long the default took; several runners of one study may share it.

    Attributes:
        start_s: loading CUDA and connecting all ranks; minutes on a large cluster, seconds on one node.
        slowest_gbps: algorithm bandwidth below which waiting is not worth it, 1e9 bytes/s.
        calls: of each message in one command: warm-up, timed and checked, out of place and in place.
        floor_s: the least time that a command gets once the default is known; start-up varies, and a file system or
            scheduler that stutters must not look like a hang.
        factor: how many times the default's own time a command gets.
        most_s: no command gets more; None = no such limit.
    """

    start_s: float = 120.0
    slowest_gbps: float = 0.5
    calls: int = 64
    floor_s: float = 60.0
    factor: float = 5.0
    most_s: float | None = None
    _commands: dict[frozenset[Message], float] = field(init=False, default_factory=dict)  # whatever their order
    _launches: dict[frozenset[Message] | None, float] = field(init=False, default_factory=dict)

    def calibrate(self, wall_s: float, messages: Sequence[Message] | None = None) -> None:
        """Remember how long the default took for a whole launch.

        No command for some of its messages can take longer than that, so it limits every command that the default
        has not been seen to run by itself.

        Args:
            wall_s: from the start to the end, seconds.
            messages: what was measured; None = all that the study will ever measure, as a stored default has.
        """
        key = None if messages is None else frozenset(messages)
        self._launches[key] = max(wall_s, self._launches.get(key, 0.0))

    def learn(self, messages: Sequence[Message], wall_s: float) -> None:
        """Remember how long the default took for one command; of several times the longest counts."""
        key = frozenset(messages)
        self._commands[key] = max(wall_s, self._commands.get(key, 0.0))

    def limit_s(self, messages: Sequence[Message]) -> float:
        """Return the time limit of a command for some messages, seconds."""
        limit_s = self.start_s + self.calls * sum(m.size_bytes for m in messages) / (self.slowest_gbps * 1e9)
        wholes = [wall_s for key, wall_s in self._launches.items() if key is None or key.issuperset(messages)]
        default_s = self._commands.get(frozenset(messages), min(wholes, default=None))
        if default_s is not None:
            limit_s = min(limit_s, max(self.floor_s, self.factor * default_s))
        return limit_s if self.most_s is None else min(limit_s, self.most_s)


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
            medians_us = {m: statistics.median(self._default_us[m]) for m in messages if m in self._default_us}
        return tuple(ENOUGH_FACTOR * medians_us[m] if m in medians_us else None for m in messages)
