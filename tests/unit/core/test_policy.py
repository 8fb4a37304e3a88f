"""Rules by size range: order, overlap, which one applies, and documents."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule, uniform_policy
from ncclt.core.setting import DEFAULT, Setting
from ncclt.errors import SettingError

V = NcclVersion.parse("2.28.9")
AR, AG = Collective.ALL_REDUCE, Collective.ALL_GATHER


def message(size_bytes, collective=AR, group_size=8):
    return Message(collective=collective, dtype="float32", size_bytes=size_bytes, group_size=group_size)


@st.composite
def policies(draw):
    """Disjoint rules over some collectives and groups."""
    rules = []
    for collective in draw(st.sets(st.sampled_from([c for c in Collective if c.is_tunable]))):
        for group_size in draw(st.sets(st.sampled_from([0, 2, 8]))):
            cuts = sorted(draw(st.sets(st.integers(1, 2**30), max_size=3)))
            for low, high in zip([0, *cuts], [*(cut - 1 for cut in cuts), None], strict=True):
                rule = Rule(
                    collective=collective,
                    group_size=group_size,
                    min_bytes=low,
                    max_bytes=high,
                    algorithm=draw(st.none() | st.sampled_from(Algorithm)),
                    protocol=draw(st.none() | st.sampled_from(Protocol)),
                    channels=draw(st.none() | st.integers(1, 64)),
                )
                rules.append(rule)
    return Policy(rules=tuple(draw(st.permutations(rules))), parameters=(("BUFFSIZE", 8388608),))


@given(policies())
def test_a_policy_survives_its_document(policy):
    assert Policy.from_document(policy.to_document()) == policy
    assert Policy.from_document(policy.to_document()).digest() == policy.digest()


@given(policies(), st.integers(1, 2**31), st.sampled_from(list(Collective)), st.sampled_from([2, 4, 8]))
def test_the_rule_that_applies_is_the_one_of_the_exact_group_else_of_any(policy, size_bytes, collective, group_size):
    sent = message(size_bytes, collective, group_size)
    here = [r for r in policy.rules if r.collective is collective and r.min_bytes <= size_bytes]
    here = [r for r in here if r.max_bytes is None or size_bytes <= r.max_bytes]
    expected = [r for r in here if r.group_size == group_size] or [r for r in here if r.group_size == 0]

    setting = policy.setting_for(sent)

    assert len(expected) <= 1
    assert setting.parameters == policy.parameters
    chosen = (setting.algorithm, setting.protocol, setting.channels)
    assert chosen == ((expected[0].algorithm, expected[0].protocol, expected[0].channels) if expected else (None,) * 3)


@given(policies(), st.lists(st.integers(1, 2**31), unique=True, max_size=8))
def test_by_setting_loses_and_repeats_no_message(policy, sizes):
    messages = [message(size) for size in sizes]

    groups = policy.by_setting(messages)

    assert sorted(m for group in groups.values() for m in group) == sorted(messages)
    assert all(policy.setting_for(m) == setting for setting, group in groups.items() for m in group)


def test_both_ends_of_a_range_belong_to_it():
    rule = Rule(collective=AR, min_bytes=1024, max_bytes=2048, channels=2)

    assert [rule.matches(message(size)) for size in (1023, 1024, 2048, 2049)] == [False, True, True, False]


@pytest.mark.parametrize(("first", "second"), [((0, 1024), (1024, None)), ((0, None), (4096, 8192))])
def test_rules_that_overlap_are_refused(first, second):
    rules = [Rule(collective=AR, min_bytes=low, max_bytes=high) for low, high in (second, first)]

    with pytest.raises(SettingError, match="overlap"):
        Policy(rules=tuple(rules))


def test_rules_of_different_groups_may_cover_the_same_sizes():
    policy = Policy(rules=(Rule(collective=AR, channels=4), Rule(collective=AR, group_size=8, channels=8)))

    assert [policy.setting_for(message(1, group_size=g)).channels for g in (2, 8)] == [4, 8]


def test_a_policy_is_uniform_if_plain_variables_could_say_the_same(subtests):
    for rules, uniform in [
        ((), True),
        ((Rule(collective=AR, channels=4), Rule(collective=AG, channels=4)), True),
        ((Rule(collective=AR, channels=4), Rule(collective=AG, channels=8)), False),
        ((Rule(collective=AR, channels=4), Rule(collective=AG, protocol=Protocol.LL)), False),
        ((Rule(collective=AR, max_bytes=9),), False),
        ((Rule(collective=AR, min_bytes=1),), False),
        ((Rule(collective=AR, group_size=2),), False),
    ]:
        with subtests.test(rules=rules, uniform=uniform):
            assert Policy(rules=rules).is_uniform is uniform


@pytest.mark.parametrize("collective", [Collective.SEND_RECV, Collective.ALL_TO_ALL])
def test_there_is_no_rule_for_what_nccl_lets_nobody_choose(collective):
    with pytest.raises(SettingError, match="can be chosen"):
        Rule(collective=collective)


def test_a_digest_stays_the_same_in_every_release():
    rule = Rule(collective=AR, max_bytes=1024, channels=4)
    assert Policy(rules=(rule,), parameters=(("NTHREADS", 256),)).digest() == "d05e843a948d"


@pytest.mark.parametrize(("version", "confined"), [("2.30.7", False), ("2.31.0", True)])
def test_by_variables_what_is_not_forced_is_confined_from_2_31(version, confined):
    policy, parsed = Policy(rules=(Rule(collective=AR, protocol=Protocol.LL),)), NcclVersion.parse(version)

    assert policy.setting_by_variables(message(8), version=parsed) == Setting(protocol=Protocol.LL)
    assert policy.setting_by_variables(message(8, AG), version=parsed) == Setting(confined=confined)
    assert policy.setting_by_variables(message(8, Collective.SEND_RECV), version=parsed) == DEFAULT
    channels = Policy(rules=(Rule(collective=AR, channels=4),))
    assert channels.setting_by_variables(message(8, AG), version=parsed) == DEFAULT
    tree = Policy(rules=(Rule(collective=AR, algorithm=Algorithm.TREE),))
    assert tree.setting_by_variables(message(8), version=parsed) == Setting(algorithm=Algorithm.TREE)
    assert tree.setting_by_variables(message(8, AG), version=parsed).confined is confined


def test_a_range_may_be_one_size_and_begin_at_nothing():
    only = Rule(collective=AR, min_bytes=2, max_bytes=2)
    assert [only.matches(message(size)) for size in (1, 2, 3)] == [False, True, False]
    assert Rule(collective=AR, min_bytes=0, max_bytes=0).max_bytes == 0


def test_rules_and_parameters_each_make_a_policy_more_than_nccls_own_choice():
    assert Policy().is_default
    assert not Policy(rules=(Rule(collective=AR, channels=2),)).is_default
    assert not Policy(parameters=(("NTHREADS", 256),)).is_default


@pytest.mark.parametrize(("low", "high"), [(-1, None), (2, 1)])
def test_an_impossible_range_is_refused(low, high):
    with pytest.raises(SettingError, match="cannot cover"):
        Rule(collective=AR, min_bytes=low, max_bytes=high)


def test_a_uniform_policy_has_rules_only_where_something_is_chosen():
    setting = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL, parameters=(("NTHREADS", 256),))

    policy = uniform_policy(setting, [AG, AR, Collective.SEND_RECV], version=V)

    assert policy.rules == (Rule(collective=AR, algorithm=Algorithm.TREE, protocol=Protocol.LL),)
    assert policy.parameters == (("NTHREADS", 256),)
    assert policy.setting_for(message(1, AG)) == Setting(parameters=(("NTHREADS", 256),))
    assert uniform_policy(DEFAULT, [AR], version=V).is_default


def test_a_document_that_is_no_policy_is_refused(subtests):
    for document in [{}, {"rules": [{}], "parameters": {}}, {"rules": 3, "parameters": {}}, []]:
        with subtests.test(document=document), pytest.raises(SettingError, match="not a policy document"):
            Policy.from_document(document)


def test_an_impossible_policy_says_what_is_impossible_about_it():
    rule = Rule(collective=AR, algorithm=Algorithm.TREE).to_document()
    with pytest.raises(SettingError, match=r"^two rules for all_reduce overlap at 0 bytes$"):
        Policy.from_document({"rules": [rule, rule], "parameters": {}})


def test_groups_of_one_size_have_rules_by_placement():
    inside = Rule(collective=AR, group_size=8, spans_nodes=False, algorithm=Algorithm.NVLS)
    across = Rule(collective=AR, group_size=8, spans_nodes=True, algorithm=Algorithm.TREE)
    either = Rule(collective=AR, group_size=8, algorithm=Algorithm.RING)
    policy = Policy(rules=(either, across, inside))

    assert policy.setting_for(replace(message(1), spans_nodes=True)).algorithm is Algorithm.TREE
    assert policy.setting_for(message(1)).algorithm is Algorithm.NVLS
    assert Policy(rules=(either, across)).setting_for(message(1)).algorithm is Algorithm.RING
    assert Policy.from_document(policy.to_document()) == policy
    assert "spans_nodes" not in either.to_document()
    with pytest.raises(SettingError, match="overlap"):
        Policy(rules=(across, replace(across, min_bytes=5)))
    with pytest.raises(SettingError, match="groups of any size"):
        Rule(collective=AR, spans_nodes=True)
