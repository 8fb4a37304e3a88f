"""Confirmation: what is launched again before a policy is put together."""

from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase
from ncclt.core.trial import Outcome, TrialResult
from ncclt.measure.trial import launch
from ncclt.prove.confirm import CONFIRMED_LAUNCHES, choose_arms, confirm
from ncclt.testing.fakes import FakePolicyRunner, FakeRunner, FakeTrialLog

TREE_LL = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL)


def test_finalists_are_launched_until_they_are_confirmed(cluster, workload, landscape):
    runner, trial_log = FakeRunner(cluster, landscape), FakeTrialLog()
    for setting in (DEFAULT, TREE_LL):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)

    times = confirm(runner, workload, trial_log, interrupted=lambda: False, watch=lambda *_: None)

    assert all(times.fewest(setting) == CONFIRMED_LAUNCHES for setting in (DEFAULT, TREE_LL))
    assert runner.launches[2:] == [DEFAULT, TREE_LL, DEFAULT, TREE_LL]
    assert {t.phase for t in trial_log.trials()[2:]} == {Phase.CONFIRM}


def test_a_lucky_setting_falls_back_and_the_next_one_is_confirmed(cluster, workload):
    """A single fast launch is luck: its median after confirmation decides."""
    lucky = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)

    def time_of(setting, _message, number):
        if setting == lucky:
            return 1.0 if number == 1 else 50.0
        return 9.0 if setting == TREE_LL else 10.0

    runner, trial_log = FakeRunner(cluster, time_of), FakeTrialLog()
    for setting in (DEFAULT, lucky, TREE_LL):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)

    times = confirm(runner, workload, trial_log, interrupted=lambda: False, watch=lambda *_: None)

    assert times.fewest(TREE_LL) == CONFIRMED_LAUNCHES
    assert all(time > 10.0 for time in times.by_setting[lucky].values())


class PersistentFakeRunner(FakeRunner):
    """A runner whose ranks persist, which makes everything a little faster."""

    def measure(self, setting, messages, *, repeat):
        return replace(super().measure(setting, messages, repeat=repeat), persistent=True)


def test_finalists_of_ranks_that_stayed_up_are_measured_by_fresh_ones_alone(cluster, workload):
    """Warm times, the default's too, may choose what is launched again; they never stand beside fresh ones."""

    def times(factor):
        return lambda setting, _message, _number: factor * (8.0 if setting == TREE_LL else 10.0)

    trial_log = FakeTrialLog()
    for setting in (DEFAULT, TREE_LL, DEFAULT, TREE_LL, TREE_LL):
        launch(PersistentFakeRunner(cluster, times(0.5)), workload, trial_log, setting, phase=Phase.SEARCH)
    runner = FakeRunner(cluster, times(1.0))

    found = confirm(runner, workload, trial_log, interrupted=lambda: False, watch=lambda *_: None)

    assert sorted(runner.launches, key=str) == sorted([DEFAULT] * 3 + [TREE_LL] * 3, key=str)
    assert list(found.default.values()) == pytest.approx([10.0, 10.0])
    assert list(found.by_setting[TREE_LL].values()) == pytest.approx([8.0, 8.0])


def test_no_number_of_warm_launches_of_the_default_stands_for_a_fresh_one(cluster, workload):
    """The search launches its default again where that tells most: often enough to seem confirmed."""

    def times(factor):
        return lambda setting, _message, _number: factor * (8.0 if setting == TREE_LL else 10.0)

    trial_log = FakeTrialLog()
    for setting in (DEFAULT, TREE_LL, *[DEFAULT] * CONFIRMED_LAUNCHES):
        launch(PersistentFakeRunner(cluster, times(0.5)), workload, trial_log, setting, phase=Phase.SEARCH)
    runner = FakeRunner(cluster, times(1.0))

    found = confirm(runner, workload, trial_log, interrupted=lambda: False, watch=lambda *_: None)

    assert runner.launches.count(DEFAULT) == runner.launches.count(TREE_LL) == CONFIRMED_LAUNCHES
    assert all(found.fewest(setting) == CONFIRMED_LAUNCHES for setting in (DEFAULT, TREE_LL))
    assert list(found.default.values()) == pytest.approx([10.0, 10.0])


def test_a_default_that_fails_in_fresh_ranks_leaves_something_to_compare_with(cluster, workload):
    trial_log = FakeTrialLog()
    launch(PersistentFakeRunner(cluster, lambda *_: 10.0), workload, trial_log, DEFAULT, phase=Phase.SEARCH)
    failing = FakeRunner(cluster, lambda *_: Outcome.CRASHED)

    found = confirm(failing, workload, trial_log, interrupted=lambda: False, watch=lambda *_: None)

    assert list(found.default.values()) == pytest.approx([10.0, 10.0])


RING_SIMPLE = Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE)
SEARCHED = (DEFAULT, TREE_LL, RING_SIMPLE)


def per_size(setting, message, _number):
    """Small messages like tree/ll, large ones ring/simple."""
    best = TREE_LL if message.size_bytes < 1 << 20 else RING_SIMPLE
    return 8.0 if setting == best else 10.0


def by_size(workload):
    return sorted((calls.message for calls in workload.messages), key=lambda message: message.size_bytes)


def searched(runner, workload):
    trial_log = FakeTrialLog()
    for setting in SEARCHED:
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)
    return trial_log


def confirmed(runner, workload, trial_log, **options):
    times = confirm(runner, workload, trial_log, interrupted=lambda: "", watch=lambda *_: None, **options)
    return times, [trial for trial in trial_log.trials() if trial.phase is Phase.CONFIRM]


def test_a_launch_of_the_table_confirms_all_its_settings(cluster, workload):
    runner = FakePolicyRunner(cluster, per_size)
    trial_log = searched(runner, workload)
    shown = []

    times = confirm(
        runner,
        workload,
        trial_log,
        interrupted=lambda: "",
        watch=lambda trial, done, planned: shown.append((trial.label, done, planned)),
    )

    assert shown == [
        ("default", 1, 4),
        ("policy of 2 rules", 2, 4),
        ("default", 3, 4),
        ("policy of 2 rules", 4, 4),
    ]
    small, large = by_size(workload)
    assert times.launches[TREE_LL] == {small: 3, large: 1}
    assert times.launches[RING_SIMPLE] == {small: 1, large: 3}
    policies, _ = choose_arms(times, workload, runner, min_effect=0.02, with_variables=False)
    assert [policies[Arm.TABLE].setting_for(message) for message in (small, large)] == [TREE_LL, RING_SIMPLE]
    assert runner.policies == [policies[Arm.TABLE]] * 2, "what is proven is what was confirmed"


def test_variables_that_will_be_proven_too_are_confirmed_alone(cluster, workload):
    runner = FakePolicyRunner(cluster, per_size)

    times, _ = confirmed(runner, workload, searched(runner, workload), with_variables=True)

    assert [times.fewest(setting) for setting in SEARCHED] == [CONFIRMED_LAUNCHES] * 3
    assert not runner.policies, "their launches confirm the table too"


def test_a_size_whose_setting_was_lucky_is_launched_under_the_next_one(cluster, workload):
    lucky = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)

    def time_of(setting, message, number):
        if setting == lucky and message.size_bytes < 1 << 20:
            return 1.0 if number == 3 else 50.0
        return per_size(setting, message, number)

    runner = FakePolicyRunner(cluster, time_of)
    trial_log = searched(runner, workload)
    launch(runner, workload, trial_log, lucky, phase=Phase.SEARCH)

    times, _ = confirmed(runner, workload, trial_log)

    small, large = by_size(workload)
    assert times.count(lucky, small) == 3, "of two launches that contradict each other, the faster one counts"
    assert (times.count(TREE_LL, small), times.count(RING_SIMPLE, large)) == (CONFIRMED_LAUNCHES, 5)
    assert times.fewest(DEFAULT) == CONFIRMED_LAUNCHES


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.WRONG_RESULT])
def test_the_settings_of_a_table_that_failed_are_launched_one_by_one(cluster, workload, outcome):
    class Failing(FakePolicyRunner):
        def measure_policy(self, policy, messages, *, repeat):
            self.policies.append(policy)
            return TrialResult(outcome=outcome)

    runner = Failing(cluster, per_size)

    times, _ = confirmed(runner, workload, searched(runner, workload))

    assert len(runner.policies) == 1
    assert [times.fewest(setting) for setting in SEARCHED] == [CONFIRMED_LAUNCHES] * 3


def test_a_confirmation_ends_though_every_finalist_turns_out_to_be_lucky(cluster, workload):
    """Every setting is fast once and slow ever after."""
    seen = set()

    def time_of(setting, message, _number):
        first = (setting, message) not in seen
        seen.add((setting, message))
        return 10.0 if setting.is_default else 8.0 if first else 30.0

    runner, trial_log = FakePolicyRunner(cluster, time_of), FakeTrialLog()
    settings = [Setting(algorithm=Algorithm.RING, channels=channels) for channels in range(1, 30)]
    for setting in (DEFAULT, *settings):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)

    times, trials = confirmed(runner, workload, trial_log)

    assert len(trials) == 3 * 4
    policies, why = choose_arms(times, workload, runner, min_effect=0.02, with_variables=False)
    assert list(policies) == [Arm.DEFAULT]
    assert "was not confirmed by further launches; validation skipped" in why


def test_a_confirmed_gain_that_no_variable_delivers_is_not_called_unconfirmed(cluster, workload):
    """NCCL 2.18 reads no table, and variables that name NVLS alone would fail calls without it."""
    nvls = Setting(algorithm=Algorithm.NVLS)
    runner = FakeRunner(replace(cluster, nccl_version="2.18.3"), lambda s, _m, _n: 9.0 if s == nvls else 10.0)
    trial_log = FakeTrialLog()
    for setting in (DEFAULT, nvls):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)

    times, _ = confirmed(runner, workload, trial_log)
    policies, why = choose_arms(times, workload, runner, min_effect=0.02, with_variables=False)

    assert list(policies) == [Arm.DEFAULT]
    assert why.startswith("measured gain 11.1 %, but NCCL 2.18.3 reads no tuner table and variables cannot deliver")
    assert "nvls" in why


def test_channels_alone_are_proven_as_variables(cluster, workload):
    """A row of a table names algorithm and protocol, so a table of such rules would prove what it cannot deliver."""
    few = Setting(channels=4)
    runner, trial_log = FakePolicyRunner(cluster, lambda s, _m, _n: 9.0 if s == few else 10.0), FakeTrialLog()
    for setting in (DEFAULT, few):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)

    times, _ = confirmed(runner, workload, trial_log)
    policies, _ = choose_arms(times, workload, runner, min_effect=0.02, with_variables=False)

    assert list(policies) == [Arm.DEFAULT, Arm.VARIABLES]
    assert {(rule.algorithm, rule.channels) for rule in policies[Arm.VARIABLES].rules} == {(None, 4)}


def test_channels_that_only_some_sizes_want_are_not_called_unconfirmed(cluster, workload):
    few, small = Setting(channels=4), min(calls.message.size_bytes for calls in workload.messages)

    def time_of(setting, message, _number):
        return 10.0 if setting != few else 5.0 if message.size_bytes == small else 99.0

    runner, trial_log = FakePolicyRunner(cluster, time_of), FakeTrialLog()
    for setting in (DEFAULT, few):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)

    times, _ = confirmed(runner, workload, trial_log)
    _, why = choose_arms(times, workload, runner, min_effect=0.02, with_variables=False)

    assert "but a table carries no channels alone and variables cannot deliver it" in why


def test_what_only_rules_too_small_to_keep_lift_above_the_minimum_is_neither_confirmed_nor_called_so(cluster, workload):
    """Small messages have 4 % of the time, and 1.3 % of the gain: the fewest rules leave them out."""

    def time_of(setting, message, _number):
        if message.size_bytes < 1 << 20:
            return 3.96 if setting == TREE_LL else 4.0
        return 970.0 if setting == RING_SIMPLE else 1000.0

    runner = FakePolicyRunner(cluster, time_of)
    times, trials = confirmed(runner, workload, searched(runner, workload), min_effect=0.03)
    _, why = choose_arms(times, workload, runner, min_effect=0.03, with_variables=False)

    assert not trials
    assert why == "predicted gain 3.0 % < 3 % threshold; validation skipped"


def test_a_gain_of_parameters_alone_is_proven_as_variables(cluster, workload):
    """As for send_recv and all_to_all, which have nothing else: a table without rows would need the plugin."""
    buffers = Setting(parameters=(("BUFFSIZE", 1 << 20),))
    runner, trial_log = FakePolicyRunner(cluster, lambda s, _m, _n: 9.0 if s == buffers else 10.0), FakeTrialLog()
    for setting in (DEFAULT, buffers):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)

    for with_variables in (False, True):
        times, _ = confirmed(runner, workload, trial_log, with_variables=with_variables)
        policies, _ = choose_arms(times, workload, runner, min_effect=0.02, with_variables=with_variables)
        assert list(policies) == [Arm.DEFAULT, Arm.VARIABLES]
        assert policies[Arm.VARIABLES].parameters == buffers.parameters
        assert not policies[Arm.VARIABLES].rules
