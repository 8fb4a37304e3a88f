"""Simulated launches: NCCL's own cost model with seeded noise, so that NCCL's own choice is never beaten."""

import math
import statistics

import pytest

from ncclt.core.algorithms import Algorithm, Protocol, choices
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.measure.simulated import SimulatedRunner, model_us
from ncclt.store.shipped import named_clusters, profiles_folder

CLUSTERS = named_clusters(profiles_folder())
LEONARDO = CLUSTERS["leonardo"].sized(nodes=2)
PAIR = CLUSTERS["pcie-pair"]
RING_LL = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)
SIZES = [1 << exponent for exponent in range(10, 28, 3)]


def message(size=1 << 20, collective=Collective.ALL_REDUCE, **changes) -> Message:
    return Message(collective=collective, dtype="float32", size_bytes=size, **changes)


MESSAGES = tuple(message(size) for size in SIZES)


def samples(*, seed=3, repeat=1, setting=RING_LL, messages=MESSAGES, sigma=None):
    result = SimulatedRunner(LEONARDO, seed=seed, sigma=sigma).measure(setting, messages, repeat=repeat)
    return {measurement.message: measurement.samples_us for measurement in result.measurements}


def test_a_launch_depends_on_seed_setting_repeat_and_message_alone():
    first = samples()
    assert samples(messages=MESSAGES[::-1]) == first
    for other in ({"seed": 4}, {"repeat": 2}, {"setting": DEFAULT}):
        assert samples(**other)[MESSAGES[0]] != first[MESSAGES[0]]


def test_the_noise_is_the_one_asked_for():
    assert {*samples(sigma=0)[MESSAGES[0]]} == {model_us(LEONARDO, RING_LL, MESSAGES[0])}
    expected_us = model_us(LEONARDO, RING_LL, MESSAGES[0])
    logs = [
        math.log(samples(messages=MESSAGES[:1], repeat=repeat, sigma=0.02)[MESSAGES[0]][0] / expected_us)
        for repeat in range(500)
    ]
    assert statistics.mean(logs) == pytest.approx(0.0, abs=0.004)
    # One sample varies by sigma, the launch by half of it.
    assert statistics.stdev(logs) == pytest.approx(0.02 * math.sqrt(1.25), rel=0.15)


def test_nothing_beats_the_default_on_any_shipped_cluster(subtests):
    for name, cluster in CLUSTERS.items():
        runner = SimulatedRunner(cluster, seed=0, sigma=0)
        for collective in (c for c in Collective if c.is_tunable):
            settings = [
                Setting(algorithm=algorithm, protocol=protocol, channels=channels)
                for algorithm, protocol in choices([collective], cluster)
                for channels in (None, 1, 8, 32)
            ]
            with subtests.test(cluster=name, collective=collective):
                for sent in (message(size, collective) for size in SIZES):
                    default_us = model_us(runner.cluster, DEFAULT, sent)
                    assert all(model_us(runner.cluster, setting, sent) >= default_us for setting in settings)


def test_larger_messages_and_more_channels_are_what_they_should_be(subtests):
    for name, cluster in CLUSTERS.items():
        runner = SimulatedRunner(cluster, seed=0, sigma=0)
        for collective in Collective:
            times = [model_us(runner.cluster, DEFAULT, message(size, collective)) for size in SIZES]
            with subtests.test(cluster=name, collective=collective):
                assert times == sorted(times)
                assert all(math.isfinite(time_us) and time_us > 0 for time_us in times)
    ring = [Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=count) for count in (1, 2, 4, 32)]
    by_channels = [model_us(LEONARDO, setting, message(64 << 20)) for setting in ring]
    assert by_channels == sorted(by_channels, reverse=True)
    assert by_channels[0] > 2 * by_channels[-1]


def test_what_nccl_refuses_or_its_model_has_no_term_for_is_invalid(subtests):
    for setting, words in (
        (Setting(parameters=(("BUFFSIZE", 1 << 20),)), "no term for NCCL_BUFFSIZE"),
        (Setting(channels=33), "at most 32 channels"),
        (Setting(algorithm=Algorithm.NVLS_TREE, protocol=Protocol.SIMPLE), "no algorithm/protocol available"),
    ):
        with subtests.test(setting=setting):
            result = SimulatedRunner(LEONARDO, seed=1).measure(setting, MESSAGES, repeat=0)
            assert result.outcome is Outcome.INVALID
            assert words in result.detail


def test_ll128_corrupts_where_nccl_does_not_enable_it():
    forced = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL128)
    over_pcie = SimulatedRunner(PAIR, seed=1).measure(forced, MESSAGES, repeat=0)
    assert over_pcie.outcome is Outcome.WRONG_RESULT
    assert all(measurement.wrong for measurement in over_pcie.measurements)
    assert SimulatedRunner(LEONARDO, seed=1).measure(forced, MESSAGES, repeat=0).outcome is Outcome.OK


def test_a_forced_pair_reaches_only_collectives_that_have_it():
    """A tree does not exist for broadcast; send_recv and all_to_all never pass the tuner at all."""
    runner = SimulatedRunner(LEONARDO, seed=1, sigma=0)
    tree = Setting(algorithm=Algorithm.TREE, protocol=Protocol.SIMPLE)
    for collective in (Collective.ALL_TO_ALL, Collective.SEND_RECV, Collective.BROADCAST):
        sent = message(collective=collective)
        assert model_us(runner.cluster, tree, sent) == model_us(runner.cluster, DEFAULT, sent)


def test_a_group_within_a_node_does_not_use_the_network():
    runner = SimulatedRunner(LEONARDO, seed=1, sigma=0)
    for collective in (Collective.ALL_REDUCE, Collective.ALL_TO_ALL, Collective.SEND_RECV):
        inside = model_us(runner.cluster, DEFAULT, message(1 << 24, collective, group_size=2))
        across = model_us(runner.cluster, DEFAULT, message(1 << 24, collective, group_size=2, spans_nodes=True))
        assert inside < across


def test_a_group_that_does_not_fit_is_the_callers_mistake():
    with pytest.raises(UsageError, match="does not fit"):
        SimulatedRunner(PAIR, seed=1).measure(DEFAULT, [message(group_size=3)], repeat=0)
