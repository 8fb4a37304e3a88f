"""Bisection of a slow fabric: its slow parts and links in few launches. Parts are nodes, or the GPUs of one node.

Among many parts, a ring over them is cut into halves that share their ends, so that every link of the ring lies in one
of them; slow halves are cut again until few links remain, and those are measured as pairs. A pair runs as fast as the
weakest of three: one part, the other, the link between them. So a part that is slow with every partner is at fault
itself, and a pair that is slow although both of its parts are fast with others is a link. Each candidate is launched
again before it is named.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, pairwise

Group = tuple[str, ...]

Pair = tuple[str, str]
"""Two parts, in the order in which all parts are listed."""

Measure = Callable[[Sequence[Group]], Sequence[float]]
"""Launches groups of parts, disjoint ones perhaps at once; returns each one's share of what is expected of it, 0 where
the launch failed. It may raise to end the whole."""

LAUNCHES = 3
"""Of a suspect before it is named: the median of three tolerates one bad launch, and one good one."""

_MOSTLY = 0.75
"""Share of a part's pairs that must be slow before the part is suspected: its partners have links of their own."""

_FEW_LINKS = 4
"""Links of a group that halving leaves to pairs."""

_TOURNAMENT = 8
"""Parts that are paired at once: halving them would save little."""

_SAMPLE = 16
"""Pairs that are sampled where everything looks alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPart:
    """A slow part or link.

    Attributes:
        parts: one part, or the two ends of a link.
        share: median of its launches, as a share of what is expected.
        pairs: in which it was launched.
        launches: how many there were.
    """

    parts: Group
    share: float
    pairs: tuple[Pair, ...]
    launches: int

    @property
    def partners(self) -> Group:
        """Return the parts that a single part was launched with."""
        return tuple(part for pair in self.pairs for part in pair if part not in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionResult:
    """Result of a bisection.

    Attributes:
        named: slow parts and links, the slowest first.
        level: share that pairs without a fault reach.
        good: parts that were seen to be fast.
        acquitted: suspects that were fast when they were launched again.
    """

    named: tuple[SlowPart, ...] = ()
    level: float
    good: Group = ()
    acquitted: tuple[Group, ...] = ()


def plan_rounds(parts: Sequence[str]) -> list[list[Pair]]:
    """Return the rounds of a tournament: in each, every part meets one partner, and over all rounds every other one.

    The circle method: the first stays, the others rotate. Pairs of a round are disjoint, so they can run at once.

    Args:
        parts: at least two.
    """
    order = {part: index for index, part in enumerate(parts)}
    seats: list[str | None] = [*parts, *([None] if len(parts) % 2 else [])]
    rounds = []
    for turn in range(len(seats) - 1):
        table = [seats[0], *seats[1:][turn:], *seats[1:][:turn]]
        meetings = [(table[seat], table[-1 - seat]) for seat in range(len(table) // 2)]
        rounds.append([_ordered(a, b, order) for a, b in meetings if a is not None and b is not None])
    return rounds


def _ordered(first: str, second: str, order: Mapping[str, int]) -> Pair:
    return (first, second) if order[first] < order[second] else (second, first)


def find_usual_level(shares: Mapping[Pair, float], good: Collection[str] = ()) -> float:
    """Return the share that a pair without a fault reaches.

    Where pairs of parts known to be good were measured, it is their median. Otherwise each part is taken by its better
    pairs, those that do not suffer from a partner, and the level is the median of all parts: right as long as half of
    them are fine.
    """
    if reference := [share for (a, b), share in shares.items() if a in good and b in good]:
        return statistics.median(reference)
    by_part: dict[str, list[float]] = {}
    for pair, share in shares.items():
        for part in pair:
            by_part.setdefault(part, []).append(share)
    better = [sorted(values)[math.ceil(0.75 * (len(values) - 1))] for values in by_part.values()]
    return statistics.median_high(better)


def eliminate(
    shares: Mapping[Pair, float],
    *,
    limit: float,
    blamed: Collection[str] = (),
    innocent: Collection[str] = (),
    good: Collection[str] = (),
) -> tuple[list[str], list[Pair]]:
    """Return the fewest parts that explain most slow pairs, and the slow links between parts that are fast with others.

    A part that was measured with one partner only, slowly, is suspected, and so is its partner: which of them it is,
    or whether it is their link, needs other partners. So is a part with two slow links.

    Args:
        limit: share below which a pair is slow.
        blamed: parts that are known to be slow; the pairs that they explain are ignored.
        innocent: parts that are known to be fine.
        good: parts that are probably fine, so that a single slow pair speaks against the other part.
    """
    slow = {pair for pair, share in shares.items() if share < limit}
    suspects: list[str] = []
    while worst := _find_worst(shares, slow, blamed=(*blamed, *suspects), innocent=innocent):
        suspects.append(worst)
    unexplained = [pair for pair in sorted(slow) if not set(pair) & {*suspects, *blamed}]
    fast = {*good, *chain(*(shares.keys() - slow))}
    ends = Counter(part for part in chain(*unexplained) if part not in innocent)
    unclear = [part for part, count in ends.items() if part not in fast or count > 1]
    return [*suspects, *unclear], [pair for pair in unexplained if not set(pair) & set(unclear)]


def _find_worst(
    pairs: Iterable[Pair], slow: Collection[Pair], *, blamed: Collection[str], innocent: Collection[str]
) -> str:
    """Return the part that explains the most slow pairs with partners that are not blamed; empty = none does."""
    slow_pairs: Counter[str] = Counter()
    all_pairs: Counter[str] = Counter()
    for pair in pairs:
        if not set(pair) & set(blamed):
            all_pairs.update(pair)
            slow_pairs.update(pair if pair in slow else ())
    ranked = [
        (count / all_pairs[part], count, part)
        for part, count in slow_pairs.items()
        if part not in innocent and count >= max(2, _MOSTLY * all_pairs[part])
    ]
    return max(ranked, default=(0, 0, ""))[2]


class Bisection:
    """One narrowing-down.

    Args:
        parts: all of them, in the order of the ranks; at least three.
        share: what all of them together reached.
        measure: launches groups.
        cut: share by which a part may fall short of its peers.
        measured: shares of pairs that were measured before.
    """

    def __init__(
        self,
        parts: Sequence[str],
        share: float,
        measure: Measure,
        *,
        cut: float,
        measured: Mapping[Pair, Sequence[float]] | None = None,
    ) -> None:
        self._parts = tuple(parts)
        self._order = {part: index for index, part in enumerate(self._parts)}
        self._share = share
        self._measure = measure
        self._cut = cut
        self._pairs: dict[Pair, list[float]] = {pair: list(shares) for pair, shares in (measured or {}).items()}
        self._good: dict[str, None] = {}

    def run(self, *, all_pairs: bool = False) -> BisectionResult:
        """Halve where there are many parts, pair the few that remain, and name the slow parts and links.

        Args:
            all_pairs: measure every pair instead.
        """
        every_round = plan_rounds(self._parts)
        ring = self._link_pairs([*self._parts, self._parts[0]])
        if all_pairs:
            self._add_new(chain(*every_round))
        elif len(self._parts) <= _TOURNAMENT:
            # The links that a ring over all passes, and a third partner that is no neighbour.
            self._add_new([*ring[::2], *ring[1::2], *every_round[0]])
        else:
            self._add_new(self._halve() or self._sample(every_round[0]))
        is_even = min(self._medians().values()) >= self._limit()
        if is_even and max(self._medians().values()) * (1 - self._cut) > self._share:
            # Nothing stands out, although pairs are better than the whole: many parts are slow, or few pairs were met.
            self._add_new(chain(*every_round) if len(self._parts) <= _TOURNAMENT else self._sample(every_round[1]))
        (suspects, _), limit = self._find_candidates(), self._limit()
        fast = [pair for pair, share in self._medians().items() if share >= limit]
        self._praise(part for part in chain(*fast) if part not in suspects)
        return self._confirm()

    def _sample(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """Return some pairs, spread over all of them, because neighbours share switches."""
        return pairs[:: -(-len(pairs) // _SAMPLE)]

    def _halve(self) -> list[Pair]:
        """Return the pairs that hold the faults, and good ones to compare with; empty if no group beats another."""
        segments: list[Group] = [(*self._parts, self._parts[0])]
        pairs: list[Pair] = []
        faster: list[tuple[Group, float]] = []
        level = 0
        while segments:
            halves = [half for links in segments for half in (links[: len(links) // 2 + 1], links[len(links) // 2 :])]
            # In the order of the ranks: a ring may start anywhere.
            shares = self._measure([tuple(sorted(half, key=self._order.__getitem__)) for half in halves])
            segments = []
            # Only groups of the same level are compared: the expectation errs by other amounts for smaller groups.
            limit = (1 - self._cut) * max(shares)
            for first in range(0, len(halves), 2):
                slow = [halves[at] for at in (first, first + 1) if shares[at] < limit]
                # Where both are alike, both hold a fault, or none does.
                segments += slow or halves[first : first + 2]
            faster += [(half, share) for half, share in zip(halves, shares, strict=True) if half not in segments]
            level += 1
            if level == 2 and not faster:
                return []
            pairs += [pair for links in segments if len(links) <= _FEW_LINKS + 1 for pair in self._link_pairs(links)]
            segments = [links for links in segments if len(links) > _FEW_LINKS + 1]
        # A group that is only less slow than others is left to the next look, when those have been found.
        best = max(share for _, share in faster)
        good = [half for half, share in faster if share >= (1 - self._cut) * best]
        self._praise(chain(*good))
        reference = [pair for half in good for pair in self._link_pairs(half)[::2]]
        return [*reference[:2], *pairs]

    def _confirm(self) -> BisectionResult:
        """Launch suspects again, with other partners if there are any, and name those that stay slow."""
        named: dict[Group, SlowPart] = {}
        acquitted: list[Group] = []
        while suspects := self._find_candidates(named, acquitted)[0]:
            for part in suspects:
                slow = self._judge(part, suspects=suspects)
                if slow is not None:
                    named[(part,)] = slow
                    self._good.pop(part, None)
                else:
                    acquitted.append((part,))
                    self._praise([part])
        for pair in self._find_candidates(named, acquitted)[1]:
            while len(self._pairs[pair]) < LAUNCHES:
                self._add([pair])
            share = statistics.median(self._pairs[pair])
            if share >= self._limit():
                acquitted.append(pair)
            else:
                named[pair] = SlowPart(parts=pair, share=share, pairs=(pair,), launches=len(self._pairs[pair]))
        return BisectionResult(
            named=tuple(sorted(named.values(), key=lambda slow: slow.share)),
            level=find_usual_level(self._medians(), self._good),
            good=tuple(self._good),
            acquitted=tuple(acquitted),
        )

    def _find_candidates(
        self, named: Iterable[Group] = (), acquitted: Iterable[Group] = ()
    ) -> tuple[list[str], list[Pair]]:
        return eliminate(
            self._medians(),
            limit=self._limit(),
            blamed=[group[0] for group in named if len(group) == 1],
            innocent=[group[0] for group in acquitted if len(group) == 1],
            good=self._good,
        )

    def _judge(self, part: str, *, suspects: Sequence[str]) -> SlowPart | None:
        """Launch a part with good partners until it has three launches; None = it is not slow."""
        peers = [peer for peer in self._parts if peer != part]
        partners = (
            [peer for peer in self._good if peer not in (part, *suspects)]
            or [peer for peer in peers if peer not in suspects]
            or peers
        )
        # Partners not met yet first, in an order that starts elsewhere for every part, so that no partner meets all.
        turn = self._order[part] % len(partners)
        pairs = [self._pair(part, partner) for partner in (*partners[turn:], *partners[:turn])]
        new = [pair for pair in pairs if pair not in self._pairs]
        for pair in islice(chain(new, cycle(pairs)), max(0, LAUNCHES - (len(pairs) - len(new)))):
            self._add([pair])
        measured = {pair: self._pairs[pair] for pair in pairs if pair in self._pairs}
        shares = list(chain(*measured.values()))
        share = statistics.median(shares)
        if share >= self._limit():
            return None
        return SlowPart(parts=(part,), share=share, pairs=tuple(measured), launches=len(shares))

    # --- pairs and their shares ---

    def _pair(self, first: str, second: str) -> Pair:
        return _ordered(first, second, self._order)

    def _link_pairs(self, chain_of_parts: Sequence[str]) -> list[Pair]:
        return [self._pair(first, second) for first, second in pairwise(chain_of_parts)]

    def _add_new(self, pairs: Iterable[Pair]) -> None:
        self._add([pair for pair in dict.fromkeys(pairs) if pair not in self._pairs])

    def _add(self, pairs: Sequence[Pair]) -> None:
        for pair, share in zip(pairs, self._measure(pairs) if pairs else (), strict=True):
            self._pairs.setdefault(pair, []).append(share)

    def _medians(self) -> dict[Pair, float]:
        return {pair: statistics.median(values) for pair, values in self._pairs.items()}

    def _limit(self) -> float:
        return (1 - self._cut) * find_usual_level(self._medians(), self._good)

    def _praise(self, parts: Iterable[str]) -> None:
        self._good.update(dict.fromkeys(parts))
