"""Narrowing down: the right culprits in few launches, and nobody else."""

import random
from itertools import pairwise

import pytest

from ncclt.health.preflight.elimination import rounds
from ncclt.health.preflight.localise import LAUNCHES, Localiser


class Fleet:
    """Groups as fast as their weakest part, or link of the ring over them, with noise of its own per launch."""

    def __init__(self, count, parts=None, links=None, *, sigma=0.0, seed=0, whole=1.0):
        self.names = tuple(f"n{index:03d}" for index in range(count))
        self.parts = {self.names[index]: share for index, share in (parts or {}).items()}
        self.links = {frozenset((self.names[a], self.names[b])): share for (a, b), share in (links or {}).items()}
        self.draw, self.sigma, self.whole = random.Random(seed), sigma, whole
        self.launches = []

    def share(self, group):
        self.launches.append(tuple(group))
        ring = [*pairwise(group), (group[-1], group[0])]
        weakest = min([self.parts.get(p, 1.0) for p in group] + [self.links.get(frozenset(p), 1.0) for p in ring])
        return weakest * self.draw.lognormvariate(0, self.sigma) * (self.whole if len(group) > 2 else 1.0)

    def measure(self, groups):
        return [self.share(group) for group in groups]

    def localise(self, cut=0.075):
        whole = self.share(self.names)
        return Localiser(self.names, whole, self.measure, cut=cut).run()


def named(found):
    return {one.parts: round(one.share, 2) for one in found.named}


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9, 16, 33, 128])
@pytest.mark.parametrize("where", [0, 1, -1])
def test_one_slow_part_is_named_alone(count, where):
    fleet = Fleet(count, {where % count: 0.6})
    assert named(fleet.localise()) == {(fleet.names[where],): 0.6}


@pytest.mark.parametrize("count", [4, 8, 9, 16, 33, 128])
@pytest.mark.parametrize("where", [0, 3, -2])
def test_one_slow_link_of_the_ring_is_named_alone(count, where):
    a, b = where % count, (where + 1) % count
    fleet = Fleet(count, links={(a, b): 0.5})
    assert named(fleet.localise()) == {tuple(sorted((fleet.names[a], fleet.names[b]))): 0.5}


@pytest.mark.parametrize("count", [8, 16, 128])
def test_a_link_between_the_halves_is_no_fault_of_either(count):
    fleet = Fleet(count, links={(count // 2 - 1, count // 2): 0.5})
    assert named(fleet.localise()) == {(fleet.names[count // 2 - 1], fleet.names[count // 2]): 0.5}


@pytest.mark.parametrize(("count", "slow"), [(16, {2: 0.7, 9: 0.7}), (32, {1: 0.6, 30: 0.6}), (8, {3: 0.7, 4: 0.7})])
def test_equal_faults_in_both_halves_are_found(count, slow):
    fleet = Fleet(count, slow)
    assert named(fleet.localise()) == {(fleet.names[index],): share for index, share in slow.items()}


def test_few_launches_suffice_among_many():
    fleet = Fleet(128, {77: 0.6})
    fleet.localise()
    assert len(fleet.launches) < 30


def test_a_suspect_is_launched_three_times_with_different_partners():
    fleet = Fleet(32, {20: 0.6})
    found = fleet.localise().named[0]
    assert found.launches == LAUNCHES
    assert len(set(found.partners)) == LAUNCHES


def test_a_failing_part_counts_as_slow():
    fleet = Fleet(16, {5: 0.0})
    assert named(fleet.localise()) == {("n005",): 0.0}


def test_one_bad_launch_names_nobody():
    fleet = Fleet(8)
    spoilt = iter([0, 0, 0, 0.5])  # the fourth pair is slow once
    usual = fleet.measure
    fleet.measure = lambda groups: [next(spoilt, 0) or share for share in usual(groups)]

    found = Localiser(fleet.names, 0.5, fleet.measure, cut=0.075).run()

    assert found.named == ()
    assert len(found.acquitted) >= 1


@pytest.mark.parametrize("count", [8, 64])
def test_where_all_are_alike_nobody_is_named(count):
    fleet = Fleet(count, dict.fromkeys(range(count), 0.5))
    found = fleet.localise()
    assert (found.named, found.even) == ((), True)
    assert found.level == pytest.approx(0.5)
    assert len(fleet.launches) < 40


def test_slow_only_all_together_names_nobody():
    """An oversubscribed switch: every pair is fine."""
    found = Fleet(16, whole=0.5).localise()
    assert found.named == ()
    assert found.level == pytest.approx(1.0)


def test_known_pairs_are_not_measured_again():
    fleet = Fleet(4, {1: 0.5})
    known = {pair: [fleet.share(pair)] for pairs in rounds(fleet.names) for pair in pairs}
    fleet.launches.clear()
    found = Localiser(fleet.names, 0.5, fleet.measure, cut=0.075, known=known).run()
    assert named(found) == {("n001",): 0.5}
    assert fleet.launches == []


def test_noise_of_a_few_per_cent_leads_nobody_astray():
    right = wrong = 0
    for seed in range(40):
        fleet = Fleet(32, {seed % 32: 0.7}, sigma=0.025, seed=seed)
        found = {one.parts for one in fleet.localise().named}
        right += (fleet.names[seed % 32],) in found
        wrong += len(found - {(fleet.names[seed % 32],)})
    assert right >= 39
    assert wrong <= 1
