"""What each change costs, by NCCL's version and with or without the plugin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.setting import DEFAULT, Setting
from ncclt.errors import SettingError
from ncclt.nccl.compile import variables_for_setting
from ncclt.nccl.parameters import CATALOGUE, Granularity
from ncclt.nccl.switching import (
    ForcedState,
    SwitchCost,
    initial_state,
    list_reread_variables,
    plan_transition,
    split_setting,
    start_variables,
    switch_cost,
)

OLD, BEFORE, SINCE, NEW = (NcclVersion.parse(text) for text in ("2.28.9", "2.29.6", "2.29.7", "2.31.2"))
VERSIONS = (OLD, BEFORE, SINCE, NEW)
RING_LL = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)
TREE = Setting(algorithm=Algorithm.TREE, protocol=Protocol.SIMPLE, channels=4)
LL128 = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL128, channels=8)
REDUCE_ALONE = (Collective.ALL_REDUCE,)
WITH_GATHER = (Collective.ALL_REDUCE, Collective.ALL_GATHER)


def force(setting, *, version=OLD, plugin=False, collectives=REDUCE_ALONE):
    rules, rest = split_setting(setting, version=version, collectives=collectives, plugin=plugin)
    variables = variables_for_setting(rest, version=version, collectives=collectives).variables
    return ForcedState(rules=rules, variables=variables)


def test_every_parameter_takes_the_level_at_which_nccl_reads_it(subtests):
    for version in VERSIONS:
        with subtests.test(version=version):
            for row in CATALOGUE:
                of_the_network = row.name.split("_")[0] in ("IB", "SOCKET", "NSOCKS")
                refreshed = row.safe and row.granularity is Granularity.REFRESHED and not of_the_network
                listed = refreshed and version >= SINCE and version >= row.since
                communicator = row.granularity is Granularity.COMMUNICATOR or listed

                expected = SwitchCost.COMMUNICATOR if communicator else SwitchCost.PROCESS
                assert switch_cost(row.variable, version) is expected, row.name
                assert (row.variable in list_reread_variables(version)) is listed, row.name
            assert switch_cost("NCCL_SOMETHING_NEW", version) is SwitchCost.PROCESS


def test_the_way_there_and_back_is_the_cheapest_that_is_right(subtests):
    for setting, version, plugin, cost in [
        (RING_LL, OLD, False, SwitchCost.COMMUNICATOR),
        (RING_LL, OLD, True, SwitchCost.CALL),
        (RING_LL, NEW, True, SwitchCost.CALL),
        (RING_LL, NcclVersion(2, 20), True, SwitchCost.COMMUNICATOR),  # no tuner API of ours
        (TREE, OLD, False, SwitchCost.PROCESS),  # channels are kept for life there
        (TREE, BEFORE, False, SwitchCost.PROCESS),
        (TREE, SINCE, False, SwitchCost.COMMUNICATOR),
        (TREE, OLD, True, SwitchCost.CALL),
        (TREE, SINCE, True, SwitchCost.CALL),
        (TREE, NEW, True, SwitchCost.COMMUNICATOR),  # a tuner's number is but a limit
        (LL128, OLD, True, SwitchCost.CALL),
        (Setting(algorithm=Algorithm.RING), OLD, True, SwitchCost.COMMUNICATOR),  # a table needs both
        (Setting(protocol=Protocol.LL), OLD, True, SwitchCost.COMMUNICATOR),
        (Setting(channels=4), SINCE, True, SwitchCost.COMMUNICATOR),
        (Setting(channels=4), BEFORE, True, SwitchCost.PROCESS),
        (Setting(parameters=(("BUFFSIZE", 1 << 20),)), BEFORE, True, SwitchCost.PROCESS),
        (Setting(parameters=(("BUFFSIZE", 1 << 20),)), SINCE, True, SwitchCost.COMMUNICATOR),
    ]:
        with subtests.test(setting=setting, version=version, plugin=plugin, cost=cost):
            default, wanted = (
                force(DEFAULT, version=version, plugin=plugin),
                force(setting, version=version, plugin=plugin),
            )

            there, back = plan_transition(default, wanted, version), plan_transition(wanted, default, version)

            assert default == ForcedState()
            assert (there.cost, back.cost) == (cost, cost)
            assert dict(there.set_variables) == dict(wanted.variables)
            assert back.unset_variables == tuple(name for name, _ in wanted.variables)
            assert back.set_variables == ()
            assert back.rules == (() if wanted.rules else None)


def test_nothing_changes_where_the_same_is_wanted_again():
    again = plan_transition(force(TREE), force(TREE), OLD)
    assert (again.cost, again.rules, again.set_variables, again.unset_variables) == (SwitchCost.CALL, None, (), ())


def test_the_dearest_change_counts():
    both = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, parameters=(("NTHREADS", 128),))
    step = plan_transition(force(TREE, plugin=True), force(both, plugin=True), OLD)
    assert step.cost is SwitchCost.PROCESS
    assert step.rules == force(RING_LL, plugin=True).rules


def test_rules_say_what_the_setting_does():
    rules = {rule.collective: rule for rule in force(TREE, plugin=True).rules}
    assert set(rules) == {Collective.ALL_REDUCE}
    rule = rules[Collective.ALL_REDUCE]
    assert (rule.algorithm, rule.protocol, rule.channels, rule.covers_all_sizes) == ("tree", "simple", 4, True)
    assert len(force(RING_LL, plugin=True).rules) == 5


def test_a_setting_that_spares_reductions_is_a_table_without_them_and_without_variables(subtests):
    spared = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, channels=4, spares_reductions=True)
    for version in VERSIONS:
        with subtests.test(version=version):
            wanted = force(spared, plugin=True, version=version, collectives=WITH_GATHER)
            assert {rule.collective for rule in wanted.rules} == {Collective.ALL_GATHER, Collective.BROADCAST}
            assert {rule.channels for rule in wanted.rules} == {4}
            assert wanted.variables == ()
    for version, plugin in ((OLD, False), (NcclVersion(2, 20), True)):
        with pytest.raises(SettingError, match="only a tuner table"):
            split_setting(spared, version=version, collectives=WITH_GATHER, plugin=plugin)


def test_channels_that_a_table_would_not_give_to_everybody_are_said_by_variables():
    """`Setting.applied_to` says that they reach a collective that lacks the pair."""
    wanted = force(TREE, plugin=True, collectives=WITH_GATHER)
    assert [rule.channels for rule in wanted.rules] == [None]
    assert dict(wanted.variables) == {"NCCL_MAX_CTAS": "4"}


def test_a_pair_that_confines_the_others_is_said_by_variables_alone():
    """From 2.31 on a measurement of all_gather stands for `confined`, which no table does."""
    wanted = force(TREE, plugin=True, version=NEW, collectives=WITH_GATHER)
    assert wanted.rules == ()
    assert "NCCL_ALGO" in dict(wanted.variables)
    lacking = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL128)
    assert force(lacking, plugin=True, version=NEW, collectives=WITH_GATHER).variables == ()


@pytest.mark.parametrize(("version", "plugin"), [(OLD, False), (NEW, False), (NcclVersion(2, 21, 5), True)])
def test_ll128_is_never_forced_by_variables(version, plugin):
    with pytest.raises(SettingError, match="LL128"):
        split_setting(LL128, version=version, collectives=REDUCE_ALONE, plugin=plugin)


def test_ranks_start_with_what_is_fixed_for_life_and_the_list():
    wanted = force(TREE)
    assert start_variables(wanted, OLD) == {"NCCL_MAX_CTAS": "4"}
    assert dict(initial_state(wanted, OLD).variables) == start_variables(wanted, OLD)
    again = start_variables(force(TREE, version=SINCE), SINCE)
    assert set(again) == {"NCCL_NO_CACHE"}
    assert {"NCCL_MAX_CTAS", "NCCL_BUFFSIZE"} <= set(again["NCCL_NO_CACHE"].split(","))
    assert initial_state(force(TREE, version=SINCE), SINCE) == ForcedState()


SETTINGS = st.builds(
    Setting,
    algorithm=st.sampled_from([None, Algorithm.RING, Algorithm.TREE]),
    protocol=st.sampled_from([None, Protocol.LL, Protocol.SIMPLE]),
    channels=st.sampled_from([None, 1, 8]),
    parameters=st.sampled_from([(), (("BUFFSIZE", 1 << 20),), (("NTHREADS", 128),)]),
)


@given(
    settings=st.lists(SETTINGS, min_size=1, max_size=8),
    version=st.sampled_from(VERSIONS),
    plugin=st.booleans(),
    collectives=st.sampled_from([REDUCE_ALONE, WITH_GATHER]),
)
def test_whatever_the_way_ranks_arrive_where_they_should(settings, version, plugin, collectives):
    """Playing the ranks: new ones get what is fixed, those that live get the difference; nothing of before is left."""
    now, environment, table = ForcedState(), {}, ()
    for setting in [*settings, DEFAULT]:
        wanted = force(setting, version=version, plugin=plugin, collectives=collectives)
        if plan_transition(now, wanted, version).cost is SwitchCost.PROCESS:
            now = initial_state(wanted, version)
            environment, table = dict(now.variables), ()
        step = plan_transition(now, wanted, version)
        assert step.cost is not SwitchCost.PROCESS
        assert step.cost is SwitchCost.COMMUNICATOR or not (step.set_variables or step.unset_variables)
        environment.update(step.set_variables)
        for name in step.unset_variables:
            del environment[name]
        table = table if step.rules is None else step.rules
        now = wanted
        assert (environment, table) == (dict(wanted.variables), wanted.rules)
    assert (environment, table) == ({}, ())
