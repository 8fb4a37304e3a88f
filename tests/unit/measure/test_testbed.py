"""What can be tried and measured where trials run."""

from dataclasses import replace

import pytest
from made_workloads import calls
from made_workloads import workload as made_workload
from pair import PAIR

from ncclt.core.algorithms import Algorithm
from ncclt.core.message import Collective
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase
from ncclt.errors import InputError, UsageError
from ncclt.measure import PersistentRunner
from ncclt.measure.replay import Landscape
from ncclt.measure.testbed import Testbed, _share_words, simulated_testbed
from ncclt.measure.trial import launch
from ncclt.search.space import build_space, count_excluded
from ncclt.testing.fakes import FakeRunner, FakeTrialLog


def workload(*collectives, world_size=0):
    rows = (calls(4096, collective=c, dtype="float32", group=world_size) for c in collectives)
    return made_workload(*rows, world_size=world_size)


def test_messages_outside_the_testbed_are_left_out_and_named():
    testbed = Testbed(
        runner=FakeRunner(PAIR, lambda *_: 1.0),
        reason="",
        notes=("first",),
        covers=lambda m: m.collective is Collective.ALL_REDUCE,
    )

    kept, notes = testbed.cut(workload(Collective.ALL_REDUCE, Collective.BROADCAST, world_size=2))

    assert kept.collectives == {Collective.ALL_REDUCE}
    assert {c.message.group_size for c in kept.messages} == {4}
    assert notes[0] == "first"
    assert "recorded with 2 ranks, tuned for 4" in notes[1]
    assert "1 of 2 messages (broadcast; 50 % of the bytes)" in notes[2]


def test_the_share_that_is_left_out_is_in_plain_percent_and_never_reads_as_all(subtests):
    cases = [
        (4, 2**40, "under 0.1 %"),
        (2**40, 4, "over 99 %"),
        (9964, 36, "over 99 %"),
        (995, 5, "over 99 %"),
        (994, 6, "99 %"),
        (88, 12, "88 %"),
        (99, 901, "9.9 %"),
        (32, 968, "3.2 %"),
    ]
    for left_out, kept, words in cases:
        with subtests.test(left_out=left_out):
            assert _share_words(left_out, kept) == words


def test_a_recording_measures_a_size_under_the_settings_that_were_recorded_there():
    """Other sizes than those of the workload are probed under the policy's own setting."""
    short, far = Setting(algorithm=Algorithm.RING), Setting(algorithm=Algorithm.TREE)
    both = ((1024, (10.0,)), (4096, (20.0,)))
    curves = {DEFAULT: both, far: both, short: both[1:]}
    landscape = Landscape(cluster=PAIR, curves={(Collective.ALL_REDUCE, s): curve for s, curve in curves.items()})
    runner = FakeRunner(PAIR, lambda *_: 1.0)
    testbed = Testbed(runner=runner, reason="", covers=landscape.covers, landscape=landscape)
    (calls,) = workload(Collective.ALL_REDUCE).messages
    small = replace(calls.message, size_bytes=1024)
    assert testbed.covers(small)
    assert [testbed.can_measure(small, setting) for setting in (far, short)] == [True, False]
    assert testbed.can_measure(calls.message, short)


def test_shards_that_begin_unaligned_have_a_padded_size_where_something_is_launched():
    pairs = ((72, Collective.ALL_GATHER), (128, Collective.REDUCE_SCATTER), (72, Collective.ALL_REDUCE))
    sharded = made_workload(*(calls(size, collective=c, dtype="bfloat16", group=4) for size, c in pairs))
    nothing = Testbed(runner=FakeRunner(PAIR, lambda *_: 1.0), reason="test", covers=lambda _: True)
    assert nothing.find_padded(sharded) == ()
    launched = replace(nothing, persistent=(PersistentRunner.__new__(PersistentRunner),))
    assert [(m.collective, m.size_bytes) for m in launched.find_padded(sharded)] == [(Collective.ALL_GATHER, 128)]


def test_a_testbed_that_covers_nothing_refuses_the_workload():
    testbed = Testbed(runner=FakeRunner(PAIR, lambda *_: 1.0), reason="", covers=lambda _: False)

    with pytest.raises(InputError, match="none of the messages"):
        testbed.cut(workload(Collective.ALL_REDUCE))


def test_what_cannot_be_forced_here_is_not_in_the_space():
    testbed = Testbed(
        runner=FakeRunner(PAIR, lambda *_: 1.0),
        reason="",
        covers=lambda _: True,
        why_not=lambda s: "it cannot be forced" if s.protocol == "ll128" else "",
    )
    whole = replace(testbed, why_not=lambda _: "")

    settings = build_space(testbed, workload(Collective.ALL_REDUCE), ()).distinct

    assert DEFAULT in settings
    assert len(settings) < len(build_space(whole, workload(Collective.ALL_REDUCE), ()).distinct)
    assert not any(s.protocol == "ll128" for s in settings)
    missing = len(build_space(whole, workload(Collective.ALL_REDUCE), ()).distinct) - len(settings)
    assert count_excluded(testbed, workload(Collective.ALL_REDUCE), ()) == {"it cannot be forced": missing}
    assert count_excluded(whole, workload(Collective.ALL_REDUCE), ()) == {}


class Persistent(FakeRunner):
    """Its ranks persist."""

    def measure(self, setting, messages, *, repeat):
        return replace(super().measure(setting, messages, repeat=repeat), persistent=True)

    def close(self):
        pass


@pytest.mark.parametrize("persistent", [True, False])
def test_persistent_ranks_and_launches_do_not_share_a_search(persistent):
    """A warm default beside fresh settings would make them look bad, and the other way round."""
    runner, kept = FakeRunner(PAIR, lambda *_: 10.0), Persistent(PAIR, lambda *_: 5.0)
    testbed = Testbed(runner=runner, persistent=(kept,) if persistent else (), reason="test", covers=lambda _: True)
    placed = workload(Collective.ALL_REDUCE, world_size=4)

    def searched(by):
        return launch(by, placed, FakeTrialLog(), DEFAULT, phase=Phase.SEARCH)

    testbed.require_alike(
        [searched(*testbed.searching), launch(runner, placed, FakeTrialLog(), DEFAULT, phase=Phase.CONFIRM)]
    )
    with pytest.raises(UsageError, match="cannot be compared") as caught:
        testbed.require_alike([searched(runner if persistent else kept)])
    assert ("without" in caught.value.hint) is persistent


class Forced(FakeRunner):
    """The plugin forces its settings."""

    def measure(self, setting, messages, *, repeat):
        return replace(super().measure(setting, messages, repeat=repeat), by_plugin=True)


@pytest.mark.parametrize("by_plugin", [True, False])
def test_settings_of_the_plugin_and_of_variables_do_not_share_a_search(by_plugin):
    """A tuner can say what variables cannot, and NCCL may give its settings other channels."""
    variables, plugin = (kind(PAIR, lambda *_: 10.0) for kind in (FakeRunner, Forced))
    testbed = Testbed(
        runner=plugin if by_plugin else variables,
        by_variables=variables if by_plugin else None,
        reason="test",
        covers=lambda _: True,
    )
    placed = workload(Collective.ALL_REDUCE, world_size=4)

    def searched(by):
        return launch(by, placed, FakeTrialLog(), DEFAULT, phase=Phase.SEARCH)

    testbed.require_alike([searched(testbed.runner)])
    with pytest.raises(UsageError, match="cannot be compared with what would be now") as caught:
        testbed.require_alike([searched(testbed.runner), searched(variables if by_plugin else plugin)])
    assert f"forced by {'variables' if by_plugin else 'the plugin'}" in caught.value.message
    assert f"go on with --through {'variables' if by_plugin else 'plugin'}, or name" in caught.value.hint


def test_the_arm_of_variables_is_measured_by_variables():
    plain, by_variables = FakeRunner(PAIR, lambda *_: 1.0), FakeRunner(PAIR, lambda *_: 1.0)
    testbed = Testbed(runner=plain, reason="test", covers=lambda _: True)
    assert testbed.by_arm == {}
    forced = replace(testbed, by_variables=by_variables)
    assert forced.by_arm == {Arm.VARIABLES: by_variables}
    assert (testbed.way, forced.way) == ("", "+plugin")


def test_a_study_of_the_former_simulator_is_not_continued():
    """Its way was empty, and studies of different ways are kept apart."""
    assert simulated_testbed(PAIR, seed=1, reason="test").way == "+model"
