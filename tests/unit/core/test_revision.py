"""What a cluster may require of new revisions, and the reasons people give."""

import pytest

from ncclt.core.revision import Actor, ClusterRules, shorten_reason
from ncclt.errors import UsageError


def test_the_smallest_and_the_largest_rules_are_taken(subtests):
    for right in [{"percent": 1}, {"percent": 100}, {"loss_limit": 0.0}, {"loss_limit": 0.5}]:
        with subtests.test(right=right):
            rules = ClusterRules(cluster="c", **right)
            assert {name: getattr(rules, name) for name in right} == right


def test_rules_out_of_range_are_refused(subtests):
    for wrong in [
        {"percent": 0},
        {"percent": 101},
        {"loss_limit": -0.01},
        {"loss_limit": 0.51},
        {"loss_limit": float("nan")},
    ]:
        with (
            subtests.test(wrong=wrong),
            pytest.raises(UsageError, match="1 to 100 %" if "percent" in wrong else "0 to 0.5"),
        ):
            ClusterRules(cluster="c", **wrong)


def test_a_cluster_without_rules_gives_every_job_what_is_published_at_once():
    rules = ClusterRules(cluster="c")
    assert (rules.require_approval, rules.require_verification, rules.delivery) == (False, False, True)
    assert (rules.percent, rules.loss_limit) == (100, 0.01)


def test_a_reason_is_one_line_of_at_most_500_characters():
    assert Actor(who="ann", why="w" * 500).why == "w" * 500
    for wrong in ("w" * 501, "two\nlines"):
        with pytest.raises(UsageError, match="500 printable"):
            Actor(who="ann", why=wrong)


def test_any_text_becomes_a_reason_that_is_taken():
    assert shorten_reason("  two\n lines \x07") == "two lines ?"
    assert Actor(who="ann", why=shorten_reason("w" * 9999)).why == "w" * 500
