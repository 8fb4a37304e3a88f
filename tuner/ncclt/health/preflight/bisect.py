"""Bisection of a slow fabric: its slow parts and links in few launches. Parts are nodes, or the GPUs of one node.

Halving finds slow parts among many (two launches a level), pairs with good partners find them among few, and each
candidate is launched again before it is named. A pair runs as fast as the weakest of three: one part, the other, the
link between them. So a part that is slow with every partner is at fault itself, and a pair that is slow although both
of its parts are fast with others is a link.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

Pair = tuple[str, str]
"""Two parts, in the order in which all parts are listed."""

_MOSTLY = 0.75
"""Share of a part's pairs that must be slow before the part is suspected: its partners have links of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCandidates:
    """Parts and links that would explain the slow pairs.

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


def _ordered(first: str, second: str, order: Mapping[str, int]) -> Pair:
    return (first, second) if order[first] < order[second] else (second, first)


def usual_level(shares: Mapping[Pair, float], good: Collection[str] = ()) -> float:
    """Return the share that a pair without a fault reaches.

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
) -> FaultCandidates:
    """Find the fewest parts that explain most slow pairs; the links are what is left.

    A part that was measured with one partner only, slowly, is suspected, and so is its partner: which of them it is,
    or whether it is their link, needs other partners. So is a part with two slow links.

    Args:
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
    return FaultCandidates(parts=(*suspected, *unclear), links=links)


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


Group = tuple[str, ...]

Measure = Callable[[Sequence[Group]], Sequence[float]]
"""Launches groups of parts, disjoint ones perhaps at once; returns each one's share of what is expected of it, 0 where
the launch failed. It may raise to end the whole."""

LAUNCHES = 3
"""Of a suspect before it is named: the median of three tolerates one bad launch, and one good one."""

_FEW = 4
"""Parts of a group that halving leaves to pairs."""

_TOURNAMENT = 8
"""Parts that are paired at once: halving them would save little and mistakes two faults for one between the halves."""

_ROUNDS = 3
"""Rounds of pairs for few parts: three partners distinguish a slow part from a slow link."""

_SAMPLE = 16
"""Pairs that are sampled where everything looks alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPart:
    """A part or link that was found slow.

    Attributes:
        parts: one part, or the two ends of a link.
        share: median of its launches, as a share of what is expected.
        partners: that it was measured with; for a link its two ends.
        launches: how many there were.
    """

    parts: Group
    share: float
    partners: Group
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionResult:
    """Result of a bisection.

    Attributes:
        named: slow parts and links, the slowest first.
        level: share that pairs without a fault reach.
        even: nothing stood out: all pairs were alike.
        good: parts that were seen to be fast.
        halves: what the two halves reached, as shares; empty where there was no halving.
        acquitted: suspects that were fast when they were launched again.
    """

    named: tuple[SlowPart, ...] = ()
    level: float
    even: bool = False
    good: Group = ()
    halves: tuple[float, ...] = ()
    acquitted: tuple[Group, ...] = ()


class Bisection:
    """One narrowing-down.

    Args:
        parts: all of them, in the order of the ranks; at least three.
        share: what all of them together reached.
        measure: launches groups.
        cut: share by which a part may fall short of its peers.
        known: shares of pairs that were measured before.
    """

    def __init__(
        self,
        parts: Sequence[str],
        share: float,
        measure: Measure,
        *,
        cut: float,
        known: Mapping[Pair, Sequence[float]] | None = None,
    ) -> None:
        self._parts = tuple(parts)
        self._order = {part: index for index, part in enumerate(self._parts)}
        self._share = share
        self._measure = measure
        self._cut = cut
        self._pairs: dict[Pair, list[float]] = {pair: list(shares) for pair, shares in (known or {}).items()}
        self._good: dict[str, None] = {}
        self._halves: tuple[float, ...] = ()

    def run(self) -> BisectionResult:
        """Halve where there are many parts, then pair."""
        if len(self._parts) <= _TOURNAMENT:
            # The links that a ring over all passes, and a third partner that is no neighbour.
            found = self.run_rounds([*neighbours(self._parts), *rounds(self._parts, most=1)])
            return self.run_rounds(rounds(self._parts)) if self._hides_more(found) else found
        groups = self._halved()
        if groups is not None:
            self._pair_with_good(groups)
            return self._confirmed()
        turns = 1 if len(self._parts) > _SAMPLE else _ROUNDS
        found = self.run_rounds(rounds(self._parts, most=turns), most=_SAMPLE)
        return self.run_rounds(rounds(self._parts, most=1)) if self._hides_more(found) else found

    def _hides_more(self, found: BisectionResult) -> bool:
        """Return True if nothing stood out although some pairs are better than the whole: then many parts are slow."""
        return found.even and max(self._medians().values()) * (1 - self._cut) > self._share

    def run_rounds(self, played: Sequence[Sequence[Pair]], *, most: int | None = None) -> BisectionResult:
        """Measure the pairs of some rounds, `most` of each, and name the slow parts and links."""
        for pairs in played:
            # Spread over all pairs, because neighbours share switches.
            step = 1 if most is None else -(-len(pairs) // most)
            self._add([pair for pair in pairs[::step] if pair not in self._pairs])
        suspects = self._suspects()
        slow = slow_pairs(self._medians(), level=self._level(), cut=self._cut)
        self._praise(part for pair in self._pairs if pair not in slow for part in pair if part not in suspects.parts)
        return self._confirmed()

    # --- halving ---

    def _halved(self) -> list[Group] | None:
        """Return the small groups that hold the faults; None where no group is better than another."""
        slow: list[tuple[Group, float]] = [(self._parts, self._share)]
        for level in range(len(self._parts).bit_length()):
            large = [group for group, _ in slow if len(group) > _FEW]
            if not large:
                break
            halves = [half for group in large for half in (group[: len(group) // 2], group[len(group) // 2 :])]
            shares = self._measure(halves)
            self._halves = self._halves or tuple(shares)
            measured = list(zip(halves, shares, strict=True))
            slow = [each for each in slow if len(each[0]) <= _FEW]
            for first, second in zip(measured[::2], measured[1::2], strict=True):
                slow += self._slow_halves(first, second, max(shares))
            suspected = {group for group, _ in slow}
            self._praise(part for half in halves if half not in suspected for part in half)
            if level == 1 and not self._good:
                return None
        return [group for group, _ in slow] if self._good else None

    def _slow_halves(
        self, first: tuple[Group, float], second: tuple[Group, float], best: float
    ) -> list[tuple[Group, float]]:
        """Return the halves of a slow group that are slow themselves.

        Only groups of the same level are compared: the expectation errs by other amounts for smaller groups. Where both
        are alike, either both hold a fault or it is between them, at the seams of the ring over both.
        """
        slow = [(half, share) for half, share in (first, second) if share < (1 - self._cut) * best]
        if slow:
            return slow
        left, right = first[0], second[0]
        seams = [self._pair(left[-1], right[0]), self._pair(right[-1], left[0])]
        # Each end of a seam is also paired with its neighbour inside: a slow end is not a slow seam.
        inside = [self._pair(*ends) for half in (left, right) for ends in (half[:2], half[-2:])]
        for pair in dict.fromkeys((*inside, *seams)):
            if pair not in self._pairs:
                self._add([pair])
        fine = min(statistics.median(self._pairs[pair]) for pair in inside)
        if any(statistics.median(self._pairs[pair]) < (1 - self._cut) * fine for pair in seams):
            return []
        return [first, second]

    # --- pairs ---

    def _pair_with_good(self, groups: Sequence[Group]) -> None:
        """Pair every part of the slow groups with a good one; where none is slow, the links inside may be."""
        good = list(self._good)
        # Pairs of good parts in the same round serve as the reference.
        reference = [self._pair(a, b) for a, b in zip(good[:4:2], good[1:4:2], strict=False)]
        spare = good[4:] or good
        parts = [part for group in groups for part in group]
        tests = [self._pair(part, spare[index % len(spare)]) for index, part in enumerate(parts)]
        self._add([pair for pair in (*reference, *tests) if pair not in self._pairs])
        slow = slow_pairs(self._medians(), level=self._level(), cut=self._cut)
        suspected = {part for part, pair in zip(parts, tests, strict=True) if pair in slow}
        for group in groups:
            if not set(group) & suspected and len(group) > 1:
                inside = [pair for each in rounds(group) for pair in each]
                self._add([pair for pair in inside if pair not in self._pairs])
        self._praise(part for part in parts if part not in suspected)

    def _confirmed(self) -> BisectionResult:
        """Launch suspects again, with other partners if there are any, and name those that stay slow."""
        named: dict[Group, SlowPart] = {}
        acquitted: list[Group] = []
        while fresh := [part for part in self._suspects(named, acquitted).parts if (part,) not in named]:
            for part in fresh:
                found = self._judged_part(part, excluded=fresh)
                if found is not None:
                    named[(part,)] = found
                    self._good.pop(part, None)
                else:
                    acquitted.append((part,))
                    self._praise([part])
        for pair in self._suspects(named, acquitted).links:
            while len(shares := self._pairs[pair]) < LAUNCHES:
                self._add([pair])
            if (share := statistics.median(shares)) >= (1 - self._cut) * self._level():
                acquitted.append(pair)
            else:
                named[pair] = SlowPart(parts=pair, share=share, partners=pair, launches=len(shares))
        return BisectionResult(
            named=tuple(sorted(named.values(), key=lambda one: one.share)),
            level=self._level(),
            even=not named and not acquitted,
            good=tuple(self._good),
            halves=self._halves,
            acquitted=tuple(acquitted),
        )

    def _suspects(self, named: Iterable[Group] = (), acquitted: Iterable[Group] = ()) -> FaultCandidates:
        blamed = [group[0] for group in named if len(group) == 1]
        innocent = [group[0] for group in acquitted if len(group) == 1]
        return eliminate(
            self._medians(),
            level=self._level(),
            cut=self._cut,
            blamed=blamed,
            innocent=innocent,
            trusted=self._good,
        )

    def _judged_part(self, part: str, *, excluded: Sequence[str]) -> SlowPart | None:
        """Launch a part with good partners until it has three launches; None = it is not slow."""
        others = [one for one in self._parts if one != part]
        partners = (
            [one for one in self._good if one not in (part, *excluded)]
            or [one for one in others if one not in excluded]
            or others
        )
        known = [one for one in partners if self._pair(part, one) in self._pairs]
        # Partners not met yet first, in an order that starts elsewhere for every part, so that no partner meets all.
        turn = self._order[part] % len(partners)
        fresh = [one for one in (*partners[turn:], *partners[:turn]) if one not in known]
        for number in range(max(0, LAUNCHES - len(known))):
            self._add([self._pair(part, fresh[number] if number < len(fresh) else partners[number % len(partners)])])
        met = {one: self._pairs[self._pair(part, one)] for one in partners if self._pair(part, one) in self._pairs}
        share = statistics.median(value for values in met.values() for value in values)
        if share >= (1 - self._cut) * self._level():
            return None
        return SlowPart(parts=(part,), share=share, partners=tuple(met), launches=sum(map(len, met.values())))

    # --- pairs and their shares ---

    def _pair(self, first: str, second: str) -> Pair:
        return (first, second) if self._order[first] < self._order[second] else (second, first)

    def _add(self, pairs: Sequence[Pair]) -> None:
        for pair, share in zip(pairs, self._measure(pairs) if pairs else (), strict=True):
            self._pairs.setdefault(pair, []).append(share)

    def _medians(self) -> dict[Pair, float]:
        return {pair: statistics.median(values) for pair, values in self._pairs.items()}

    def _level(self) -> float:
        return usual_level(self._medians(), self._good)

    def _praise(self, parts: Iterable[str]) -> None:
        self._good.update(dict.fromkeys(parts))
