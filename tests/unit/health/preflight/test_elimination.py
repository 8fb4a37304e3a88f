"""Rounds of pairs, and the fewest parts and links that explain the slow ones."""

from itertools import chain, combinations

import pytest

from ncclt.errors import UsageError
from ncclt.health.preflight.elimination import eliminate, neighbours, pair_rounds, rounds, usual_level


def names(count):
    return [f"n{index}" for index in range(count)]


def shares(pairs, weak_parts=None, weak_links=None):
    """A pair is as fast as the weakest of its parts and its link."""
    weak_parts, weak_links = weak_parts or {}, weak_links or {}
    return {(a, b): min(weak_parts.get(a, 1.0), weak_parts.get(b, 1.0), weak_links.get((a, b), 1.0)) for a, b in pairs}


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 33])
def test_a_tournament_meets_every_pair_once_in_rounds_of_disjoint_pairs(count):
    played = rounds(names(count))
    assert sorted(chain(*played)) == sorted(combinations(names(count), 2))
    for pairs in played:
        assert len(set(chain(*pairs))) == 2 * len(pairs) == count // 2 * 2


@pytest.mark.parametrize(("count", "most"), [(8, 3), (9, 4), (3, 9)])
def test_a_few_rounds_give_every_part_other_partners(count, most):
    played = rounds(names(count), most=most)
    assert len(played) == min(most, count - 1 + count % 2)
    assert len(set(chain(*played))) == len(list(chain(*played)))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_a_ring_meets_both_neighbours(count):
    played = neighbours(names(count))
    assert set(chain(*played)) == {tuple(sorted((f"n{i}", f"n{(i + 1) % count}"))) for i in range(count)}
    for pairs in played:
        assert len(set(chain(*pairs))) == 2 * len(pairs)


def test_plans_have_names():
    assert pair_rounds("adaptive", names(9)) is None
    assert pair_rounds("all", names(2)) is None
    assert len(pair_rounds("rotate:2", names(9))) == 2
    assert sum(map(len, pair_rounds("all", names(9)))) == 36


@pytest.mark.parametrize("plan", ["", "rotate", "rotate:0", "rotate:x", "tree", "ring:2"])
def test_other_plans_are_refused(plan):
    with pytest.raises(UsageError):
        pair_rounds(plan, names(9))


@pytest.mark.parametrize("played", [rounds(names(8)), rounds(names(8), most=3), neighbours(names(8))])
def test_a_slow_part_is_slow_with_everybody(played):
    found = eliminate(shares(chain(*played), {"n5": 0.6}), level=1.0, cut=0.1)
    assert (found.parts, found.links) == (("n5",), ())


def test_two_slow_parts_do_not_hide_each_other():
    found = eliminate(shares(combinations(names(6), 2), {"n1": 0.6, "n2": 0.5}), level=1.0, cut=0.1)
    assert (set(found.parts), found.links) == ({"n1", "n2"}, ())


def test_a_slow_link_leaves_both_of_its_parts_alone():
    found = eliminate(shares(combinations(names(6), 2), weak_links={("n1", "n4"): 0.5}), level=1.0, cut=0.1)
    assert (found.parts, found.links) == ((), (("n1", "n4"),))


def test_one_round_cannot_tell_a_part_from_its_partner():
    found = eliminate(shares(rounds(names(6), most=1)[0], {"n0": 0.5}), level=1.0, cut=0.1)
    assert "n0" in found.parts
    assert len(found.parts) == 2


def test_what_is_known_of_parts_counts():
    measured = shares([("a", "b"), ("b", "c"), ("a", "c")], {"b": 0.5})
    assert eliminate(measured, level=1.0, cut=0.1, blamed=["b"]).parts == ()
    assert set(eliminate(measured, level=1.0, cut=0.1, innocent=["b"]).links) == {("a", "b"), ("b", "c")}


def test_the_usual_level_is_not_that_of_the_pairs_with_a_slow_part():
    """Three of eight parts are slow: 18 of 28 pairs are, yet the level is that of the others."""
    measured = shares(combinations(names(8), 2), {"n0": 0.5, "n1": 0.6, "n2": 0.7})
    assert usual_level(measured) == 1.0
    assert usual_level(measured, good=["n1", "n2"]) == 0.6
