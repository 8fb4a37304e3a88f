"""Assembling a policy from measurements, and collapsing it to what variables can say."""

import itertools
import math
from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.prove.confirm import find_uniform_policy
from ncclt.search.assemble import (
    KEPT_GAIN,
    assemble,
    build_rules,
    collect_times,
    expected_us,
    find_finalists,
    rank_settings,
)
from ncclt.search.noise import USUAL_SIGMA, launch_sigma

VERSION = NcclVersion(2, 27, 3)
SMALL, LARGE = 4096, 64 << 20
RING_LL = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)
TREE = Setting(algorithm=Algorithm.TREE, protocol=Protocol.SIMPLE)
BIG_BUFFER = Setting(parameters=(("BUFFSIZE", 8 << 20),))


def message(size, collective=Collective.ALL_REDUCE):
    return Message(collective=collective, dtype="float32", size_bytes=size, group_size=8)


def workload(*sizes, collectives=(Collective.ALL_REDUCE,), calls=1.0):
    rows = tuple(
        MessageCalls(message=message(size, collective), calls_per_step=calls)
        for size, collective in itertools.product(sizes, collectives)
    )
    return Workload(name="w", messages=rows, provenance=Provenance(source="test"))


def trial(number, setting, times, outcome=Outcome.OK):
    measurements = tuple(Measurement(message=m, samples_us=(t,)) for m, t in times.items())
    return Trial(
        number=number,
        phase=Phase.SEARCH,
        setting=setting,
        repeat=0,
        result=TrialResult(outcome=outcome, measurements=measurements),
        score_us=sum(times.values()) if outcome is Outcome.OK else None,
    )


def measured(*rows):
    return collect_times([trial(n, s, t) for n, (s, t) in enumerate(rows)])


def test_groups_of_one_size_are_tuned_by_placement_and_the_whole_job_is_not():
    inside = message(LARGE)
    across, whole = replace(inside, spans_nodes=True), replace(inside, spans_nodes=True, group_size=32)
    times = measured(
        (DEFAULT, dict.fromkeys((inside, across, whole), 1000.0)),
        (TREE, {inside: 1200.0, across: 700.0, whole: 700.0}),
        (RING_LL, {inside: 700.0, across: 1200.0, whole: 1200.0}),
    )
    rows = tuple(MessageCalls(message=m, calls_per_step=1.0) for m in (inside, across, whole))
    jobs = Workload(name="w", messages=rows, provenance=Provenance(source="test"))

    policy = assemble(times, jobs, version=VERSION)

    found = {(rule.group_size, rule.spans_nodes): rule.algorithm for rule in policy.rules}
    assert found == {(8, False): Algorithm.RING, (8, True): Algorithm.TREE, (32, None): Algorithm.TREE}


def test_the_largest_groups_are_tuned_by_placement_where_they_have_two():
    """Eight ranks of one node, and as many of eight nodes: neither group is the whole job."""
    inside = message(LARGE)
    across = replace(inside, spans_nodes=True)

    policy = Policy(rules=build_rules({inside: RING_LL, across: TREE}))

    assert (policy.setting_for(inside), policy.setting_for(across)) == (RING_LL, TREE)


def test_the_noise_is_what_repeated_launches_show():
    """A setting that was launched once says nothing of it, whatever its times are."""
    once = [(RING_LL, {message(SMALL): 1.0, message(LARGE): 9000.0})]
    repeats = [(DEFAULT, {message(SMALL): time, message(LARGE): 1000.0}) for time in (20.0, 24.0, 21.0)]
    assert measured(*repeats, *once).sigma == launch_sigma([[20.0, 24.0, 21.0], [1000.0] * 3])
    assert measured(*repeats[:1], *once).sigma == USUAL_SIGMA


def test_each_size_gets_its_own_best_setting():
    times = measured(
        (DEFAULT, {message(SMALL): 20.0, message(LARGE): 1000.0}),
        (RING_LL, {message(SMALL): 10.0, message(LARGE): 3000.0}),
        (TREE, {message(SMALL): 30.0, message(LARGE): 900.0}),
    )

    policy = assemble(times, workload(SMALL, LARGE), version=VERSION)

    assert policy.setting_for(message(SMALL)) == RING_LL
    assert policy.setting_for(message(LARGE)) == TREE
    assert expected_us(policy, times, workload(SMALL, LARGE), version=VERSION) == 910.0


def test_a_gain_of_half_a_percent_gets_a_rule(subtests):
    cases = [(995.0, True), (995.1, False)]
    for time_us, has_rule in cases:
        with subtests.test(time_us=time_us, has_rule=has_rule):
            times = table_of((SMALL,), [(DEFAULT, [1000.0]), (RING_LL, [time_us])])

            assert assemble(times, workload(SMALL), version=VERSION).is_default != has_rule


def test_a_process_wide_parameter_must_bring_more_than_half_a_percent(subtests):
    cases = [(994.0, True), (995.0, False)]
    for time_us, changed in cases:
        with subtests.test(time_us=time_us, changed=changed):
            times = table_of((SMALL,), [(DEFAULT, [1000.0]), (BIG_BUFFER, [time_us])])

            assert assemble(times, workload(SMALL), version=VERSION).is_default != changed


def test_a_setting_that_was_launched_often_enough_counts():
    slow, fast = {message(SMALL): 20.0}, {message(SMALL): 5.0}
    times = collect_times([trial(0, DEFAULT, slow), trial(1, RING_LL, fast), trial(2, RING_LL, fast)])

    for launches, has_rule in ((2, True), (3, False)):
        policy = assemble(times, workload(SMALL), version=VERSION, min_launches=launches)
        assert policy.is_default != has_rule


def test_of_equal_settings_the_one_that_forces_least_is_chosen():
    ring = Setting(algorithm=Algorithm.RING)
    times = table_of((SMALL,), [(DEFAULT, [20.0]), (RING_LL, [10.0]), (ring, [10.0])])

    assert assemble(times, workload(SMALL), version=VERSION).setting_for(message(SMALL)) == ring


def test_sizes_far_from_every_measured_one_are_left_to_nccl():
    times = measured((DEFAULT, {message(SMALL): 20.0}), (RING_LL, {message(SMALL): 10.0}))

    policy = assemble(times, workload(SMALL), version=VERSION)

    assert policy.setting_for(message(SMALL + 100)) == RING_LL
    assert policy.setting_for(message(SMALL * 2)).is_default
    assert policy.setting_for(message(SMALL // 2)).is_default


def test_neighbouring_sizes_with_one_choice_become_one_rule():
    sizes = (4096, 6000)
    times = measured((DEFAULT, {message(s): 20.0 for s in sizes}), (RING_LL, {message(s): 10.0 for s in sizes}))

    assert len(assemble(times, workload(*sizes), version=VERSION).rules) == 1


@pytest.mark.parametrize(
    "forced",
    [{"channels": 8}, {"protocol": Protocol.LL}, {"algorithm": Algorithm.TREE}],
    ids=lambda forced: next(iter(forced)),
)
def test_whatever_a_setting_forces_alone_is_a_rule(forced):
    (rule,) = build_rules({message(LARGE): Setting(**forced)})
    assert (rule.algorithm, rule.protocol, rule.channels) == tuple(
        forced.get(name) for name in ("algorithm", "protocol", "channels")
    )
    assert build_rules({message(LARGE): DEFAULT}) == ()


def test_a_process_wide_parameter_is_shared_by_all_rules_or_by_none():
    """BUFFSIZE helps the large message and hurts the small one: only the sum over a step decides."""
    sizes = (SMALL, LARGE)
    helps = measured(
        (DEFAULT, dict(zip(map(message, sizes), (20.0, 1000.0), strict=True))),
        (BIG_BUFFER, dict(zip(map(message, sizes), (30.0, 800.0), strict=True))),
    )
    hurts = measured(
        (DEFAULT, dict(zip(map(message, sizes), (20.0, 1000.0), strict=True))),
        (BIG_BUFFER, dict(zip(map(message, sizes), (300.0, 800.0), strict=True))),
    )

    assert assemble(helps, workload(*sizes), version=VERSION).parameters == BIG_BUFFER.parameters
    assert assemble(hurts, workload(*sizes), version=VERSION).is_default


def test_a_setting_that_once_gave_wrong_data_is_out_for_good():
    good, bad = {message(SMALL): 20.0}, {message(SMALL): 5.0}
    times = collect_times(
        [trial(0, DEFAULT, good), trial(1, RING_LL, bad), trial(2, RING_LL, {}, Outcome.WRONG_RESULT)]
    )

    assert assemble(times, workload(SMALL), version=VERSION).is_default


def test_another_failure_may_be_the_fault_of_a_node(subtests):
    cases = [(1, 0, False), (1, 1, False), (1, 2, True), (3, 3, False)]
    for failures, good_launches, kept in cases:
        with subtests.test(failures=failures, good_launches=good_launches, kept=kept):
            slow, fast = {message(SMALL): 20.0}, {message(SMALL): 5.0}
            trials = [trial(0, DEFAULT, slow)]
            trials += [trial(n, RING_LL, {}, Outcome.CRASHED) for n in range(1, failures + 1)]
            trials += [trial(n + failures, RING_LL, fast) for n in range(1, good_launches + 1)]

            assert assemble(collect_times(trials), workload(SMALL), version=VERSION).is_default != kept


def test_send_recv_and_all_to_all_never_get_a_rule():
    kinds = (Collective.SEND_RECV, Collective.ALL_TO_ALL)
    messages = [message(SMALL, kind) for kind in kinds]
    times = measured((DEFAULT, dict.fromkeys(messages, 20.0)), (RING_LL, dict.fromkeys(messages, 5.0)))

    assert assemble(times, workload(SMALL, collectives=kinds), version=VERSION).is_default


def test_an_algorithm_that_a_collective_lacks_makes_no_rule_for_it():
    gather = message(SMALL, Collective.ALL_GATHER)
    times = measured((DEFAULT, {gather: 20.0}), (TREE, {gather: 5.0}))

    policy = assemble(times, workload(SMALL, collectives=(Collective.ALL_GATHER,)), version=VERSION)

    assert policy.is_default


def test_finalists_are_the_best_per_message_and_others_the_best_alone():
    times = measured(
        (DEFAULT, {message(SMALL): 20.0, message(LARGE): 1000.0}),
        (RING_LL, {message(SMALL): 10.0, message(LARGE): 3000.0}),
        (TREE, {message(SMALL): 30.0, message(LARGE): 900.0}),
        (BIG_BUFFER, {message(SMALL): 90.0, message(LARGE): 9000.0}),
    )

    both = workload(SMALL, LARGE)
    assert set(find_finalists(times, both, version=VERSION)) == {RING_LL, TREE}
    assert rank_settings(times, both) == [TREE, DEFAULT, RING_LL, BIG_BUFFER]


def test_a_policy_shows_for_each_setting_what_its_messages_took_unless_it_failed():
    policy = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, max_bytes=SMALL, protocol=Protocol.LL),))
    small, large, ll = message(SMALL), message(LARGE), Setting(protocol=Protocol.LL)
    trials = [
        trial(0, DEFAULT, {small: 20.0, large: 1000.0}),
        trial(1, ll, {small: 10.0, large: 2000.0}),
        replace(trial(2, DEFAULT, {small: 10.2, large: 1020.0}), policy=policy),
    ]

    found = collect_times(trials)

    assert found.by_setting[ll] == {small: pytest.approx(10.1, rel=1e-3), large: 2000.0}
    assert found.by_setting[DEFAULT] == {small: 20.0, large: pytest.approx(1010, rel=1e-3)}
    assert found.launches == {DEFAULT: {small: 1, large: 2}, ll: {small: 2, large: 1}}
    assert [found.fewest(s) for s in (DEFAULT, ll, TREE)] == [1, 1, 0]
    both = workload(SMALL, LARGE)
    assert assemble(found, both, version=VERSION, min_launches=2).setting_for(small) == ll
    assert assemble(found, both, version=VERSION, min_launches=3).is_default

    crashed = replace(trials[2], result=TrialResult(outcome=Outcome.CRASHED), score_us=None)
    assert collect_times([*trials[:2], crashed, crashed]) == collect_times(trials[:2])


def test_launches_with_the_same_effect_measured_the_same_and_their_median_counts():
    """Tree does not exist for an all_gather, so such a launch left it to NCCL, as another with LL forced it."""
    gather = message(SMALL, Collective.ALL_GATHER)
    tree_ll = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL)
    times = measured((DEFAULT, {gather: 20.0}), (TREE, {gather: 30.0}), (tree_ll, {gather: 25.0}))
    sent = workload(SMALL, collectives=(Collective.ALL_GATHER,), calls=2.0)

    assert expected_us(Policy(), times, sent, version=VERSION) == 2 * 25.0


def test_variables_confine_what_a_table_leaves_alone(subtests):
    """From 2.31 a launch that forces Tree by variables confines the all_gather, which a table does not touch."""
    cases = [(True, 30.0), (False, 20.0)]
    for by_variables, expected in cases:
        with subtests.test(by_variables=by_variables, expected=expected):
            gather, version = message(SMALL, Collective.ALL_GATHER), NcclVersion(2, 31)
            policy = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.TREE),))
            sent = workload(SMALL, collectives=(Collective.ALL_GATHER,))
            both = measured((DEFAULT, {gather: 20.0}), (TREE, {gather: 30.0}))
            only_default = measured((DEFAULT, {gather: 20.0}))

            assert expected_us(policy, both, sent, version=version, by_variables=by_variables) == expected
            assert expected_us(policy, only_default, sent, version=version, by_variables=by_variables) == 20.0


def test_a_policy_without_measurement_is_expected_to_take_for_ever():
    times = measured((DEFAULT, {message(SMALL): 20.0}))
    policy = Policy(parameters=BIG_BUFFER.parameters)

    assert math.isinf(expected_us(policy, times, workload(SMALL), version=VERSION))


class TestCollapse:
    """One choice per collective for all sizes."""

    def test_it_gives_nothing_when_every_single_setting_loses(self):
        """The trap of the recorded 8-GPU data: best per size, and yet every global one slower than the default."""
        times = measured(
            (DEFAULT, {message(SMALL): 20.0, message(LARGE): 1000.0}),
            (RING_LL, {message(SMALL): 10.0, message(LARGE): 3000.0}),
        )

        assert find_uniform_policy(times, workload(SMALL, LARGE), version=VERSION, expressible=lambda _: True) is None

    def test_it_mixes_settings_over_collectives(self):
        reduce_, gather = message(SMALL), message(SMALL, Collective.ALL_GATHER)
        ring = Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE)
        times = measured(
            (DEFAULT, {reduce_: 20.0, gather: 20.0}),
            (TREE, {reduce_: 10.0, gather: 20.0}),
            (RING_LL, {reduce_: 30.0, gather: 8.0}),
            (ring, {reduce_: 30.0, gather: 30.0}),
        )
        both = workload(SMALL, collectives=(Collective.ALL_REDUCE, Collective.ALL_GATHER))

        policy = find_uniform_policy(times, both, version=VERSION, expressible=lambda _: True)

        assert policy is not None
        assert (policy.setting_for(reduce_), policy.setting_for(gather)) == (TREE, RING_LL)

    def test_ll128_is_never_proposed_for_variables(self):
        ll128 = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL128)
        times = measured((DEFAULT, {message(SMALL): 20.0}), (ll128, {message(SMALL): 5.0}))

        assert find_uniform_policy(times, workload(SMALL), version=VERSION, expressible=lambda _: True) is None

    def test_what_this_nccl_cannot_say_is_passed_over(self):
        times = measured(
            (DEFAULT, {message(SMALL): 20.0}), (RING_LL, {message(SMALL): 5.0}), (TREE, {message(SMALL): 6.0})
        )

        def without_ll(policy):
            return all(rule.protocol is not Protocol.LL for rule in policy.rules)

        policy = find_uniform_policy(times, workload(SMALL), version=VERSION, expressible=without_ll)

        assert policy is not None
        assert policy.setting_for(message(SMALL)) == TREE


@pytest.mark.parametrize("sizes", [(1, 2, 3), (4096, 4097), (1, 1 << 34)])
def test_rules_never_overlap_and_hold_their_own_sizes(sizes):
    times = measured(
        (DEFAULT, {message(s): 20.0 for s in sizes}),
        (RING_LL, {message(s): 10.0 if i % 2 else 30.0 for i, s in enumerate(sizes)}),
        (TREE, {message(s): 30.0 if i % 2 else 10.0 for i, s in enumerate(sizes)}),
    )

    policy = assemble(times, workload(*sizes), version=VERSION)

    for i, size in enumerate(sizes):
        assert policy.setting_for(message(size)) == (RING_LL if i % 2 else TREE)


def table_of(sizes, rows):
    """Return times by setting: one figure per size."""
    return measured(*((s, {message(size): us for size, us in zip(sizes, row, strict=True)}) for s, row in rows))


def test_two_settings_that_keep_98_percent_of_what_six_win_are_the_policy():
    sizes = tuple(4096 * 2**i for i in range(6))
    own = [Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, channels=c) for c in range(1, 7)]
    rows = [(DEFAULT, [100.0] * 6)]
    rows += [
        (s, [70.0 if i == j else 70.3 if (i < 3) == (j < 3) else 120.0 for j in range(6)]) for i, s in enumerate(own)
    ]
    times = table_of(sizes, rows)

    assert len(assemble(times, workload(*sizes), version=VERSION).rules) == 6
    policy = assemble(times, workload(*sizes), version=VERSION, keep=KEPT_GAIN)
    assert len(policy.rules) == 2
    assert policy.rules[0].max_bytes + 1 == policy.rules[1].min_bytes
    assert expected_us(policy, times, workload(*sizes), version=VERSION) <= 600 - 0.98 * 180


def test_a_message_that_brings_almost_nothing_keeps_the_default():
    times = table_of((704, LARGE), [(DEFAULT, [20.0, 9000.0]), (TREE, [19.0, 9500.0]), (RING_LL, [25.0, 8000.0])])

    policy = assemble(times, workload(704, LARGE), version=VERSION, keep=KEPT_GAIN)

    assert policy.setting_for(message(704)).is_default
    assert policy.setting_for(message(LARGE)) == RING_LL


def test_no_message_is_made_slower_to_save_a_rule():
    sizes = (4096, 8192, 16384)
    times = table_of(sizes, [(DEFAULT, [100.0, 1.0, 100.0]), (RING_LL, [50.0, 1.1, 50.0])])

    policy = assemble(times, workload(*sizes), version=VERSION, keep=0.9)

    assert [policy.setting_for(message(s)) for s in sizes] == [RING_LL, DEFAULT, RING_LL]


def test_two_rules_meet_in_the_middle_between_near_sizes():
    times = table_of((1000, 4000), [(DEFAULT, [20.0, 20.0]), (RING_LL, [10.0, 30.0]), (TREE, [30.0, 10.0])])

    low, high = assemble(times, workload(1000, 4000), version=VERSION).rules

    assert (low.min_bytes, low.max_bytes, high.min_bytes, high.max_bytes) == (708, 2000, 2001, 5656)


def test_sizes_within_a_factor_of_eight_share_a_rule(subtests):
    cases = [(8 * SMALL, 1), (8 * SMALL + 1, 2)]
    for size, rules in cases:
        with subtests.test(size=size, rules=rules):
            times = table_of((SMALL, size), [(DEFAULT, [20.0, 20.0]), (RING_LL, [10.0, 10.0])])

            assert len(assemble(times, workload(SMALL, size), version=VERSION).rules) == rules
            assert len(assemble(times, workload(SMALL, size), version=VERSION, keep=0.9).rules) == rules


def test_between_measured_sizes_that_are_near_there_is_no_gap():
    sizes = (4096, 32768, 1 << 24)
    times = table_of(sizes, [(DEFAULT, [20.0] * 3), (RING_LL, [10.0] * 3)])

    near, far = assemble(times, workload(*sizes), version=VERSION).rules

    assert near.matches(message(12000))
    assert near.max_bytes < far.min_bytes
