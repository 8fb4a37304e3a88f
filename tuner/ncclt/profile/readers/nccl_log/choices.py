"""Which algorithm, protocol and number of channels NCCL chose for each message, in a short readable form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ncclt.core.message import Collective, format_bytes

MOST_SHOWN = 40
"""Most messages listed, those with the most bytes first: the others hardly matter."""

MOST_KEPT = 64
"""Most different choices kept per message: more than algorithms x protocols; channels vary little."""


@dataclass(slots=True, kw_only=True)
class Choices:
    """Counts choices per collective and size.

    Attributes:
        counts: (collective, size in bytes, whether that size is of one rank's part) -> choice -> calls.
    """

    counts: dict[tuple[Collective, int, bool], Counter[str]] = field(default_factory=dict)

    def add(self, collective: Collective, size_bytes: int, choice: str, calls: int, *, per_rank: bool = False) -> None:
        """Count `calls` of a message under a choice such as `RING/SIMPLE/24`."""
        chosen = self.counts.setdefault((collective, size_bytes, per_rank), Counter())
        chosen[choice if choice in chosen or len(chosen) < MOST_KEPT else "other"] += calls

    def text(self) -> str:
        """Return for example `all_reduce 8 GiB: RING/SIMPLE/24; broadcast 1 KiB: RING/LL/1`, largest bytes first.

        A choice is algorithm, protocol and, if the source has it, channels. Several choices for one message carry their
        calls, as in `TREE/LL/2 x7, RING/LL/2 x1`.
        """
        ordered = sorted(self.counts.items(), key=lambda item: (-item[0][1] * item[1].total(), item[0]))
        shown = [_row(*item) for item in ordered[:MOST_SHOWN]]
        if len(ordered) > MOST_SHOWN:
            shown.append(f"and {len(ordered) - MOST_SHOWN} more messages")
        return "; ".join(shown)


def _row(message: tuple[Collective, int, bool], choices: Counter[str]) -> str:
    collective, size_bytes, per_rank = message
    size = format_bytes(size_bytes) + (" per rank" if per_rank else "")
    ranked = sorted(choices.items(), key=lambda item: (-item[1], item[0]))
    chosen = ranked[0][0] if len(ranked) == 1 else ", ".join(f"{choice} x{calls}" for choice, calls in ranked)
    return f"{collective} {size}: {chosen}"
