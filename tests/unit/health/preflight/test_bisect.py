"""Bisection: the right culprits in few launches, and nobody else."""

import random
from itertools import chain, combinations, pairwise, product

import pytest

from ncclt.health.preflight.bisect import LAUNCHES, Bisection, eliminate, find_usual_level, plan_rounds


class Fleet:
    """Groups as fast as their weakest part, or link of the ring over them, with noise of its own per launch."""

    def __init__(self, count, parts=None, links=None, *, sigma=0.0, seed=0, together=1.0):
        self.names = tuple(f"n{index:03d}" for index in range(count))
        self.parts = {self.names[index]: share for index, share in (parts or {}).items()}
        self.links = {frozenset((self.names[a], self.names[b])): share for (a, b), share in (links or {}).items()}
        self.draw, self.sigma, self.together = random.Random(seed), sigma, together
        self.launches = []

    def share(self, group):
        self.launches.append(tuple(group))
        ring = [*pairwise(group), (group[-1], group[0])]
        weakest = min([self.parts.get(p, 1.0) for p in group] + [self.links.get(frozenset(p), 1.0) for p in ring])
        return weakest * self.draw.lognormvariate(0, self.sigma) * (self.together if len(group) > 2 else 1.0)

    def measure(self, groups):
        return [self.share(group) for group in groups]

    def bisect(self, cut=0.075):
        return Bisection(self.names, self.share(self.names), self.measure, cut=cut).run()


def named(result):
    return {slow.parts: round(slow.share, 2) for slow in result.named}


def test_one_slow_part_is_named_alone():
    """Whether it is slow or fails, in few launches."""
    for count, where, share in product((3, 4, 5, 8, 9, 16, 33, 128), (0, 1, -1), (0.6, 0.0)):
        fleet = Fleet(count, {where % count: share})
        assert named(fleet.bisect()) == {(fleet.names[where],): share}, (count, where)
        assert len(fleet.launches) <= 30


def test_one_slow_link_of_the_ring_is_named_alone_also_between_the_halves():
    for count, where in [*product((4, 8, 9, 16, 33, 128), (0, 3, -2)), (8, 3), (16, 7), (128, 63)]:
        a, b = where % count, (where + 1) % count
        fleet = Fleet(count, links={(a, b): 0.5})
        assert named(fleet.bisect()) == {tuple(sorted((fleet.names[a], fleet.names[b]))): 0.5}, (count, where)


@pytest.mark.parametrize(("count", "slow"), [(16, {2: 0.7, 9: 0.7}), (32, {1: 0.6, 30: 0.6}), (8, {3: 0.7, 4: 0.7})])
def test_equal_faults_in_both_halves_are_found(count, slow):
    fleet = Fleet(count, slow)
    assert named(fleet.bisect()) == {(fleet.names[index],): share for index, share in slow.items()}


def test_a_milder_fault_in_another_half_is_no_reference():
    """The half with the milder fault is faster, and still not good: its parts speak against nobody."""
    for count, part, link in ((32, 19, 29), (32, 1, 27), (64, 5, 40)):
        fleet = Fleet(count, {part: 0.75}, links={(link, link + 1): 0.5})
        faults = {(fleet.names[part],), (fleet.names[link], fleet.names[link + 1])}
        assert named(fleet.bisect()).keys() <= faults, (count, part, link)


def test_a_suspect_is_launched_three_times_with_different_partners():
    fleet = Fleet(32, {20: 0.6})
    (slow,) = fleet.bisect().named
    assert (slow.launches, len(set(slow.partners))) == (LAUNCHES, LAUNCHES)


def test_one_bad_launch_names_nobody():
    fleet = Fleet(8)
    spoilt = iter([0, 0, 0, 0.5])  # the fourth pair is slow once
    usual = fleet.measure
    fleet.measure = lambda groups: [next(spoilt, 0) or share for share in usual(groups)]

    result = Bisection(fleet.names, 0.5, fleet.measure, cut=0.075).run()

    assert result.named == ()
    assert len(result.acquitted) >= 1


def test_where_all_are_alike_nobody_is_named():
    for count in (8, 64):
        fleet = Fleet(count, dict.fromkeys(range(count), 0.5))
        result = fleet.bisect()
        assert (result.named, result.acquitted) == ((), ())
        assert result.level == pytest.approx(0.5)
        assert len(fleet.launches) < 40


def test_slow_only_all_together_names_nobody():
    """An oversubscribed switch: every pair is fine."""
    result = Fleet(16, together=0.5).bisect()
    assert result.named == ()
    assert result.level == pytest.approx(1.0)


def test_known_pairs_are_not_measured_again():
    fleet = Fleet(4, {1: 0.5})
    known = {pair: [fleet.share(pair)] for pairs in plan_rounds(fleet.names) for pair in pairs}
    fleet.launches.clear()
    result = Bisection(fleet.names, 0.5, fleet.measure, cut=0.075, measured=known).run()
    assert named(result) == {("n001",): 0.5}
    assert fleet.launches == []


def test_noise_of_a_few_per_cent_leads_nobody_astray():
    right = wrong = 0
    for seed in range(40):
        fleet = Fleet(32, {seed % 32: 0.7}, sigma=0.025, seed=seed)
        parts = {slow.parts for slow in fleet.bisect().named}
        right += (fleet.names[seed % 32],) in parts
        wrong += len(parts - {(fleet.names[seed % 32],)})
    assert right >= 39
    assert wrong <= 1


def names(count):
    return [f"n{index}" for index in range(count)]


def shares(pairs, weak_parts=None, weak_links=None):
    """A pair is as fast as the weakest of its parts and its link."""
    weak_parts, weak_links = weak_parts or {}, weak_links or {}
    return {(a, b): min(weak_parts.get(a, 1.0), weak_parts.get(b, 1.0), weak_links.get((a, b), 1.0)) for a, b in pairs}


def test_a_tournament_meets_every_pair_once_in_rounds_of_disjoint_pairs():
    for count in (2, 3, 4, 7, 8, 33):
        rounds = plan_rounds(names(count))
        assert sorted(chain(*rounds)) == sorted(combinations(names(count), 2))
        assert all(len(set(chain(*pairs))) == 2 * len(pairs) == count // 2 * 2 for pairs in rounds), count


def test_elimination_blames_slow_parts_and_links_and_nobody_beside_them():
    every_pair, few = list(combinations(names(8), 2)), list(chain(*plan_rounds(names(8))[:3]))
    for pairs, slow_parts, slow_links in [
        (every_pair, {"n5": 0.6}, {}),
        (few, {"n5": 0.6}, {}),
        (every_pair, {"n1": 0.6, "n2": 0.5}, {}),
        (every_pair, {}, {("n1", "n4"): 0.5}),
    ]:
        parts, links = eliminate(shares(pairs, slow_parts, slow_links), limit=0.9)
        assert (set(parts), links) == (set(slow_parts), list(slow_links))


def test_one_round_cannot_tell_a_part_from_its_partner():
    parts, _ = eliminate(shares(plan_rounds(names(6))[0], {"n0": 0.5}), limit=0.9)
    assert "n0" in parts
    assert len(parts) == 2


def test_what_is_known_of_parts_counts():
    measured = shares([("a", "b"), ("b", "c"), ("a", "c")], {"b": 0.5})
    assert eliminate(measured, limit=0.9, blamed=["b"])[0] == []
    assert set(eliminate(measured, limit=0.9, innocent=["b"])[1]) == {("a", "b"), ("b", "c")}


def test_the_usual_level_is_not_that_of_the_pairs_with_a_slow_part():
    """Three of eight parts are slow: 18 of 28 pairs are, yet the level is that of the others."""
    measured = shares(combinations(names(8), 2), {"n0": 0.5, "n1": 0.6, "n2": 0.7})
    assert find_usual_level(measured) == 1.0
    assert find_usual_level(measured, good=["n1", "n2"]) == 0.6
