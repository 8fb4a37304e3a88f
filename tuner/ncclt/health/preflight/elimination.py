"""Which part is slow, by elimination: rounds of pairs, and the fewest parts and links that explain the slow ones.

A pair runs as fast as the weakest of three: one part, the other, the link between them. So a part that is slow with
every partner is at fault itself, and a pair that is slow although both of its parts are fast with others is a link.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ncclt.errors import UsageError

Pair = tuple[str, str]
"""Two parts, in the order in which all parts are listed."""

_MOSTLY = 0.75
"""Share of a part's pairs that must be slow before the part is suspected: its partners have links of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """What would explain the slow pairs.

    Attributes:
        parts: the first explains the most.
        links: pairs of parts that are fast with others.
    """

    parts: tuple[str, ...] = ()
    links: tuple[Pair, ...] = ()


def rounds(parts: Sequence[str], *, most: int | None = None) -> list[list[Pair]]:
    """Return the rounds of a tournament: in each, every part meets one partner, and over all rounds every other one.

    The circle method: the first stays, the others rotate. Pairs of a round are disjoint, so they can run at once.

    Args:
        parts: at least two.
        most: rounds; None = all. A few are spread over all of them, so that partners are near and far.
    """
    order = {part: index for index, part in enumerate(parts)}
    seats: list[str | None] = [*parts, *([None] if len(parts) % 2 else [])]
    count = len(seats) - 1
    wanted = count if most is None else min(most, count)
    found = []
    for number in (index * count // wanted for index in range(wanted)):
        ring = seats[1:][number:] + seats[1:][:number]
        table = [seats[0], *ring]
        met = [(table[i], table[-1 - i]) for i in range(len(table) // 2)]
        found.append([_ordered(a, b, order) for a, b in met if a is not None and b is not None])
    return found


def neighbours(parts: Sequence[str]) -> list[list[Pair]]:
    """Return the pairs of a ring in rounds of disjoint ones: every part meets its predecessor and its successor."""
    order = {part: index for index, part in enumerate(parts)}
    ring = [_ordered(a, b, order) for a, b in zip(parts, [*parts[1:], parts[0]], strict=True)]
    if len(parts) <= 2:
        return [ring[:1]]
    closing = [ring.pop()] if len(parts) % 2 else []
    return [each for each in (ring[::2], ring[1::2], closing) if each]


def pair_rounds(plan: str, parts: Sequence[str]) -> list[list[Pair]] | None:
    """Return the rounds of pairs of a plan; None = adaptive, decided by the results, as it is with one pair.

    Args:
        plan: `adaptive`, `ring`, `all`, or `rotate:K` with K rounds of a tournament.
        parts: in order.

    Raises:
        UsageError: there is no such plan.
    """
    word, _, number = plan.partition(":")
    turns = int(number) if word == "rotate" and number.isdecimal() else 0
    if plan not in ("adaptive", "ring", "all") and turns < 1:
        raise UsageError(f"no plan of pairs {plan!r}", hint="adaptive, ring, all, or rotate:K with K rounds")
    if plan == "adaptive" or len(parts) < 3:
        return None
    return neighbours(parts) if plan == "ring" else rounds(parts, most=turns or None)


def _ordered(first: str, second: str, order: Mapping[str, int]) -> Pair:
    return (first, second) if order[first] < order[second] else (second, first)


def usual_level(shares: Mapping[Pair, float], good: Collection[str] = ()) -> float:
    """Return what a pair without a fault reaches.

    Where pairs of parts known to be good were measured, it is their median. Otherwise each part is taken by its better
    pairs, those that do not suffer from a partner, and the level is the median of all parts: right as long as half of
    them are fine.
    """
    known = [share for (a, b), share in shares.items() if a in good and b in good]
    if known:
        return statistics.median(known)
    by_part: dict[str, list[float]] = {}
    for pair, share in shares.items():
        for part in pair:
            by_part.setdefault(part, []).append(share)
    better = [sorted(values)[math.ceil(0.75 * (len(values) - 1))] for values in by_part.values()]
    return statistics.median_high(better)


def slow_pairs(shares: Mapping[Pair, float], *, level: float, cut: float) -> set[Pair]:
    """Return the pairs that fall short of the level by more than `cut`, a share."""
    return {pair for pair, share in shares.items() if share < (1 - cut) * level}


def eliminate(
    shares: Mapping[Pair, float],
    *,
    level: float,
    cut: float,
    blamed: Collection[str] = (),
    innocent: Collection[str] = (),
    trusted: Collection[str] = (),
) -> Suspects:
    """Find the fewest parts that explain most slow pairs; the links are what is left.

    A part that was measured with one partner only, slowly, is suspected, and so is its partner: which of them it is,
    or whether it is their link, needs other partners. So is a part with two slow links.

    Args:
        shares: of each pair that was measured.
        level: what a pair without a fault reaches.
        cut: share by which it may fall short.
        blamed: parts that are known to be slow; the pairs that they explain are ignored.
        innocent: parts that are known to be fine.
        trusted: parts that are probably fine, so that a single slow pair speaks against the other one.
    """
    slow = slow_pairs(shares, level=level, cut=cut)
    partners: dict[str, set[str]] = {}
    for a, b in shares:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    suspected: list[str] = []
    while worst := _worst(partners, slow, {*blamed, *suspected}, innocent):
        suspected.append(worst)
    left = [pair for pair in sorted(slow) if not set(pair) & {*suspected, *blamed}]
    fast = {part for pair in shares if pair not in slow for part in pair}
    ends = [part for pair in left for part in pair if part not in innocent]
    unclear: dict[str, None] = {}
    for pair in left:
        doubtful = [part for part in pair if part in ends and (part not in fast or ends.count(part) > 1)]
        blameable = [part for part in doubtful if part not in trusted or ends.count(part) > 1]
        unclear |= dict.fromkeys(blameable or doubtful)
    links = tuple(pair for pair in left if not set(pair) & set(unclear))
    return Suspects(parts=(*suspected, *unclear), links=links)


def _worst(
    partners: Mapping[str, set[str]], slow: Collection[Pair], blamed: Collection[str], innocent: Collection[str]
) -> str:
    """Return the part that explains the most slow pairs with partners that are not blamed; empty = none does."""
    best: tuple[float, int, str] | None = None
    for part, met in partners.items():
        if part in blamed or part in innocent:
            continue
        others = met.difference(blamed)
        count = sum((part, other) in slow or (other, part) in slow for other in others)
        if count >= 2 and count >= _MOSTLY * len(others) and (best is None or (count / len(others), count) > best[:2]):
            best = (count / len(others), count, part)
    return best[2] if best else ""
