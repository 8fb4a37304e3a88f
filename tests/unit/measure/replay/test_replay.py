"""Replaying a landscape."""

import math
import statistics
from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.measure.replay import Landscape, ReplayRunner
from ncclt.testing.samples import sample_cluster

AR = Collective.ALL_REDUCE
RING = Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE)
LANDSCAPE = Landscape(
    cluster=sample_cluster("box", nodes=1),
    curves={
        (AR, DEFAULT): ((1024, (10.0, 11.0)), (65536, (50.0, 52.0))),
        (AR, RING): ((1024, (20.0,)), (16384, (30.0,))),
    },
)


def message(size: int, **changes) -> Message:
    return Message(collective=AR, dtype="float32", size_bytes=size, **changes)


def test_recorded_times_come_back_and_interpolated_ones_are_marked():
    result = ReplayRunner(LANDSCAPE, seed=1).measure(DEFAULT, [message(1024), message(8192)], repeat=0)
    exact, between = result.measurements
    assert result.outcome is Outcome.OK
    assert exact.samples_us == pytest.approx((10.0, 11.0))
    assert not exact.interpolated
    assert between.interpolated
    assert 10.0 < between.time_us < 52.0
    assert exact.wrong is None


def test_what_was_not_recorded_is_invalid_and_says_so(subtests):
    cases = [
        (Setting(channels=3), message(1024), "c=3 was not recorded for all_reduce"),
        (RING, message(65536), "ring/simple was not recorded at 65536 bytes"),
        (DEFAULT, message(1 << 20), "was not recorded on box"),
        (DEFAULT, message(1024, group_size=2), "in a group of 2 was not recorded"),
        (DEFAULT, replace(message(1024), collective=Collective.BROADCAST), "broadcast"),
    ]
    for setting, wanted, words in cases:
        with subtests.test(setting=setting):
            result = ReplayRunner(LANDSCAPE, seed=1).measure(setting, [message(1024), wanted], repeat=0)
            assert result.outcome is Outcome.INVALID
            assert words in result.detail


def test_launches_differ_by_the_recorded_noise_and_all_messages_of_a_launch_alike():
    noisy = replace(LANDSCAPE, sigmas={(AR, RING, 1024): 0.1, (AR, RING, 16384): 0.1})
    runner = ReplayRunner(noisy, seed=1)

    def times(repeat: int) -> list[float]:
        return [m.time_us for m in runner.measure(RING, [message(1024), message(16384)], repeat=repeat).measurements]

    assert times(0) == times(0)
    assert times(0) != times(1)
    other_seed = ReplayRunner(noisy, seed=2).measure(RING, [message(1024)], repeat=0)
    assert other_seed.measurements[0].time_us != times(0)[0]
    for small, large in map(times, range(20)):
        assert small / 20 == pytest.approx(large / 30)
    spread = statistics.stdev(math.log(times(repeat)[0]) for repeat in range(200))
    assert spread == pytest.approx(0.1, rel=0.2)


def test_it_is_not_called_simulated():
    runner = ReplayRunner(LANDSCAPE, seed=1)
    assert (runner.name, runner.simulated, runner.cluster.name) == ("replay", False, "box")
