"""The search space: legal settings only, exactly the recorded ones in a replay."""

from dataclasses import replace

import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution

from ncclt.core.algorithms import Algorithm, Protocol, is_legal
from ncclt.core.message import Collective
from ncclt.core.setting import DEFAULT, Setting
from ncclt.errors import InputError, UsageError
from ncclt.measure.testbed import Testbed
from ncclt.nccl.parameters import parameter
from ncclt.search.space import (
    MAX_POINTS,
    SearchSpace,
    build_space,
    cluster_space,
    process_wide_ladders,
    recorded_space,
)
from ncclt.testing.fakes import FakeRunner

RING, TREE = (Setting(algorithm=algorithm, protocol=Protocol.LL) for algorithm in (Algorithm.RING, Algorithm.TREE))


def test_every_setting_is_legal_for_a_collective_of_the_workload(cluster):
    collectives = {Collective.ALL_REDUCE, Collective.ALL_GATHER}
    space = cluster_space(collectives, cluster, parameters={})

    for setting in space.distinct:
        assert any(is_legal(c, setting.algorithm, setting.protocol, version=cluster.version) for c in collectives)


def test_channels_are_tried_up_to_the_most_that_nccl_has_twice_per_doubling_from_eight_on(cluster, subtests):
    cases = [("2.24.3", 32), ("2.25.1", 64)]
    for version, most in cases:
        with subtests.test(version=version, most=most):
            space = cluster_space({Collective.ALL_REDUCE}, replace(cluster, nccl_version=version), parameters={})

            tried = {s.channels for s in space.distinct if s.channels}

            doublings = {1 << n for n in range(most.bit_length())}
            assert tried == doublings | {c * 3 // 2 for c in doublings if 8 <= c < most}


def test_trees_are_tried_only_where_the_workload_has_an_all_reduce(cluster):
    space = cluster_space({Collective.ALL_GATHER}, cluster, parameters={})

    assert {s.algorithm for s in space.distinct} == {None, Algorithm.RING}


def test_a_pair_that_cannot_be_forced_is_left_out(cluster):
    space = cluster_space(
        {Collective.ALL_REDUCE}, cluster, parameters={}, expressible=lambda s: s.protocol is not Protocol.LL128
    )

    assert Protocol.LL128 not in {s.protocol for s in space.distinct}


def replayed(cluster, *forcible):
    """A testbed with two recorded settings beside the default."""
    return Testbed(
        runner=FakeRunner(cluster, lambda *_: 1.0),
        reason="",
        covers=lambda _message: True,
        recorded=(DEFAULT, RING, TREE),
        why_not=lambda s: "" if s.algorithm in forcible else "no plugin",
    )


def test_a_replay_offers_what_was_recorded_and_can_be_forced(cluster, workload):
    """The default needs no forcing."""
    assert set(build_space(replayed(cluster, Algorithm.RING), workload, ()).distinct) == {RING}
    with pytest.raises(InputError, match="none of the recorded settings can be forced: no plugin"):
        build_space(replayed(cluster), workload, ())


def test_options_of_a_process_group_leave_channels_alone_to_search(cluster, workload):
    testbed = Testbed(runner=FakeRunner(cluster, lambda *_: 1.0), reason="", covers=lambda _message: True)
    space = build_space(testbed.with_options_alone(), workload, ())

    assert DEFAULT in space.distinct
    assert {(s.algorithm, s.protocol, s.parameters) for s in space.distinct} == {(None, None, ())}
    assert {s.channels for s in space.distinct} >= {1, 8, 32, None}
    with pytest.raises(UsageError, match="options of a process group cannot carry NCCL_BUFFSIZE"):
        build_space(testbed.with_options_alone(), workload, ("BUFFSIZE",))
    beside = replace(testbed, beside_compute=True).with_options_alone()
    assert (("MIN_CTAS", 16),) in {s.parameters for s in build_space(beside, workload, ("MIN_CTAS",)).distinct}


def test_a_replay_by_options_offers_recorded_channels_alone(cluster, workload):
    few = Setting(channels=4)
    recorded = (DEFAULT, RING, few, Setting(parameters=(("BUFFSIZE", 1 << 20),)))
    testbed = replace(replayed(cluster, Algorithm.RING, None), recorded=recorded).with_options_alone()

    assert set(build_space(testbed, workload, ()).distinct) == {few}


def test_untunable_collectives_leave_the_parameters_alone_to_search(cluster):
    space = cluster_space({Collective.ALL_TO_ALL}, cluster, parameters={"BUFFSIZE": (1 << 20, 8 << 20)})

    assert set(space.distinct) == {
        DEFAULT,
        Setting(parameters=(("BUFFSIZE", 1 << 20),)),
        Setting(parameters=(("BUFFSIZE", 8 << 20),)),
    }


def test_values_that_mean_nothing_together_are_left_out(cluster):
    parameters = {"IB_QPS_PER_CONNECTION": (2, 4), "IB_SPLIT_DATA_ON_QPS": (0, 1)}
    space = cluster_space({Collective.SEND_RECV}, cluster, parameters=parameters)

    groups = {s.parameters for s in space.distinct}
    assert len(groups) == 1 + 2 + 4
    point = {"pair": "auto", "IB_QPS_PER_CONNECTION": 0, "IB_SPLIT_DATA_ON_QPS": 2}
    assert space.setting(point).parameters in groups


def test_a_space_of_many_parameters_stays_finite_and_can_set_two_at_once(cluster):
    names = ("BUFFSIZE", "NTHREADS", "P2P_NET_CHUNKSIZE", "SOCKET_NTHREADS", "NSOCKS_PERTHREAD")
    space = cluster_space({Collective.ALL_REDUCE}, cluster, parameters={n: parameter(n).ladder for n in names})

    assert len(space.settings) <= MAX_POINTS
    assert max(len(s.parameters) for s in space.distinct) >= 2


def test_of_more_than_20000_points_those_that_set_all_parameters_are_left_out(cluster, subtests):
    """20 x 20 x 50 are just as many, 3 x 59 x 113 one more."""
    cases = [((19, 19, 49), 3), ((2, 58, 112), 2)]
    for values, most in cases:
        with subtests.test(values=values, most=most):
            ladders = {name: tuple(range(1, count + 1)) for name, count in zip(("A", "B", "C"), values, strict=True)}

            space = cluster_space({Collective.ALL_TO_ALL}, cluster, parameters=ladders)

            assert max(len(s.parameters) for s in space.distinct) == most


def test_points_and_settings_belong_together(cluster):
    space = cluster_space({Collective.ALL_REDUCE}, cluster, parameters={"BUFFSIZE": (1 << 20,)})

    for setting in space.distinct:
        params = space.params(setting)
        assert params is not None
        assert space.setting(params) == setting


def test_axes_hold_true_values_and_what_is_left_to_nccl(cluster):
    space = cluster_space({Collective.ALL_REDUCE}, cluster, parameters={"BUFFSIZE": (8 << 20, 1 << 20)})

    assert list(space.axes) == ["algorithm", "protocol", "channels", "BUFFSIZE"]
    assert space.axes["channels"].choices == (*sorted({s.channels for s in space.distinct if s.channels}), "auto")
    assert space.axes["BUFFSIZE"].choices == (1 << 20, 8 << 20, "auto")
    for setting in (*space.distinct, DEFAULT):
        assert space.setting_with(space.values(setting)) == setting
    assert space.setting_with({"algorithm": "ring", "protocol": "ll"}) == RING
    assert space.setting_with({"algorithm": "ring", "protocol": "ll", "channels": 7}) is None
    assert space.setting_with({"pair": "ring/ll"}) is None


def test_an_axis_that_no_setting_forces_is_left_out(cluster):
    space = cluster_space({Collective.ALL_TO_ALL}, cluster, parameters={"BUFFSIZE": (1 << 20,)})

    assert list(space.axes) == ["BUFFSIZE"]
    assert space.values(DEFAULT) == {"BUFFSIZE": "auto"}


def test_anchors_try_each_pair_once_with_nothing_else_forced(cluster):
    anchors = cluster_space({Collective.ALL_REDUCE}, cluster, parameters={"BUFFSIZE": (1 << 20,)}).anchors()

    assert len({(s.algorithm, s.protocol) for s in anchors}) == len(anchors) == 6
    assert all(s.channels is None and not s.parameters for s in anchors)


def test_a_recorded_grid_keeps_its_axes():
    grid = [
        Setting(algorithm=Algorithm.RING, protocol=p, channels=c)
        for p in (Protocol.LL, Protocol.SIMPLE)
        for c in (None, 1, 4, 16)
    ]
    space = recorded_space(grid)

    assert set(space.distinct) == set(grid)
    assert space.distributions == {
        "pair": CategoricalDistribution(["ring/ll", "ring/simple"]),
        "channels": IntDistribution(0, 3),
    }, "what all of them have in common is no axis"
    assert all(space.setting(space.params(s)) == s for s in grid)


def test_recorded_settings_that_form_no_grid_are_a_list():
    loose = [
        Setting(algorithm=Algorithm.RING),
        Setting(protocol=Protocol.LL),
        Setting(algorithm=Algorithm.TREE, channels=4),
    ]
    space = recorded_space([DEFAULT, *loose])

    assert list(space.distributions) == ["setting"]
    assert set(space.distinct) == set(loose)
    assert space.params(DEFAULT) is None


def test_a_single_recorded_setting_is_a_space_too():
    only = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)

    assert recorded_space([only]).distinct == (only,)


def test_the_nearest_setting_counts_steps_and_a_tie_goes_to_the_first_point_as_text():
    """A tie must not be decided by the settings, which have no order, nor by the order of the space."""
    first, second, other = (
        Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=4),
        Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=16),
        Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, channels=8),
    )
    distributions = {"pair": CategoricalDistribution(["s", "l"]), "channels": IntDistribution(0, 4)}
    points = {("s", 3): second, ("s", 1): first, ("l", 2): other}
    for order in (points, dict(reversed(points.items()))):
        space = SearchSpace(distributions=distributions, settings=order)
        assert space.setting({"pair": "s", "channels": 2}) == first, "both are one step away"
        assert space.setting({"pair": "s", "channels": 4}) == second, "another pair is as far as the whole ladder"
        assert space.setting({"pair": "l", "channels": 0}) == other, "two steps, not four and one"
        assert space.setting({"pair": "s", "channels": 3}) == second


def test_ladders_hold_every_value_but_the_default(cluster):
    ladders = process_wide_ladders(("BUFFSIZE",), cluster)

    assert 4 << 20 not in ladders["BUFFSIZE"]
    assert 8 << 20 in ladders["BUFFSIZE"]


def test_parameters_that_must_not_be_searched_are_refused_with_those_that_may(cluster, subtests):
    cases = [
        ("FOO", "2.22.3", "ncclt knows no such parameter", "default: BUFFSIZE"),
        ("FOO", "2.22.3", "ncclt knows no such parameter", "also: NTHREADS, P2P_NET_CHUNKSIZE"),
        ("BUFSIZE", "2.22.3", "ncclt knows no such parameter", "did you mean BUFFSIZE? default"),
        ("THREADS", "2.22.3", "ncclt knows no such parameter", "did you mean NTHREADS? default"),
        ("IB_TC", "2.22.3", "never sets it (the site's quality of service)", "IB_SPLIT_DATA_ON_QPS; `none`"),
        ("MIN_CTAS", "2.22.3", "more channels than the NCCL default take SMs from compute", "BUFFSIZE"),
        ("MAX_NCHANNELS", "2.22.3", "the search chooses algorithm, protocol and channels itself", "BUFFSIZE"),
        ("IB_SPLIT_DATA_ON_QPS", "2.13.4", "it came with NCCL 2.18", "IB_QPS_PER_CONNECTION; `none`"),
    ]
    for name, version, reason, hint in cases:
        with subtests.test(name=name, version=version, reason=reason):
            with pytest.raises(UsageError) as refused:
                process_wide_ladders(("BUFFSIZE", name), replace(cluster, nccl_version=version), default=("BUFFSIZE",))
            assert f"{name} is not searched with NCCL {version}: " in refused.value.message
            assert reason in refused.value.message
            assert hint in refused.value.hint
            assert "ncclt." not in refused.value.hint  # a module is no answer to somebody at a shell
