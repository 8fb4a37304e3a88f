"""How long a launch may take: a generous rule at first, then derived from the time of the default.

A hang costs every GPU of the job until it is noticed, so the limit follows the default as soon as that has run: a
setting that needs several times as long for the same work will not be chosen anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.core.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutRule:
    """How long one command may take: before the default is known, and in terms of the default.

    Attributes:
        start_s: loading CUDA and connecting all ranks; minutes on a large cluster, seconds on one node.
        slowest_gbps: algorithm bandwidth below which waiting is not worth it, 1e9 bytes/s.
        calls: of each message in one command: warm-up, timed and checked, out of place and in place.
        floor_s: the least time that a command gets once the default is known; start-up varies, and a file system or
            scheduler that stutters must not look like a hang.
        factor: how many times the default's own time a command gets.
    """

    start_s: float = 120.0
    slowest_gbps: float = 0.5
    calls: int = 64
    floor_s: float = 60.0
    factor: float = 5.0

    def generous_s(self, messages: Sequence[Message]) -> float:
        """Return the time for some messages while nothing is known, seconds."""
        return self.start_s + self.calls * sum(m.size_bytes for m in messages) / (self.slowest_gbps * 1e9)

    def from_default_s(self, default_s: float) -> float:
        """Return the time for a command that takes the default so long, seconds."""
        return max(self.floor_s, self.factor * default_s)


class Timeouts:
    """Remembers how long the default took; several runners of one study may share it.

    Args:
        rule: how a limit follows from that.
    """

    def __init__(self, rule: TimeoutRule | None = None) -> None:
        self._rule = rule or TimeoutRule()
        self._commands: dict[frozenset[Message], float] = {}  # whatever their order
        self._launches: dict[frozenset[Message] | None, float] = {}

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
        """Return how long a command for some messages may take, seconds."""
        generous = self._rule.generous_s(messages)
        wholes = [wall_s for key, wall_s in self._launches.items() if key is None or key.issuperset(messages)]
        default_s = self._commands.get(frozenset(messages), min(wholes, default=None))
        return generous if default_s is None else min(generous, self._rule.from_default_s(default_s))
