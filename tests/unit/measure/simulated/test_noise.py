"""Noise: seeded, of the right size, and none at all when asked."""

import math
import statistics

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.measure.simulated.noise import Noise, build_noise, uniform

MESSAGE = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096)


def cluster(**changes) -> Cluster:
    fields = {
        "name": "c",
        "gpus_per_node": 8,
        "gpu": "A100",
        "compute_capability": 80,
        "link_class": "nvswitch",
        "link_gbps": 300.0,
        "nccl_version": "2.28.9",
        "fabric": "ethernet",
        "nics_per_node": 1,
        "nic_gbps": 12.5,
    }
    return Cluster(**{**fields, **changes})


def test_the_scatter_is_the_one_asked_for():
    noise = Noise(seed=1, sigma=0.02, outlier_rate=0.0)
    logs = [math.log(noise.samples_us(100.0, "x", MESSAGE, repeat=r, count=1)[0] / 100) for r in range(1, 1500)]
    assert statistics.mean(logs) == pytest.approx(0.0, abs=0.003)
    # One sample scatters by sigma, the launch by half of it.
    assert statistics.stdev(logs) == pytest.approx(0.02 * math.sqrt(1.25), rel=0.1)


def test_outliers_are_rare_and_two_to_ten_times():
    noise = Noise(seed=1, sigma=0.0, outlier_rate=0.1)
    samples = [noise.samples_us(1.0, "x", MESSAGE, repeat=r, count=5) for r in range(1, 400)]
    outliers = [s for launch in samples for s in launch if s > 1.5]
    assert 0.05 < len(outliers) / (5 * len(samples)) < 0.15
    assert all(2.0 <= s <= 10.0 for s in outliers)


def test_sigma_zero_is_silence():
    noise = build_noise(cluster(), seed=1, sigma=0)
    assert noise.samples_us(7.0, "x", MESSAGE, repeat=0, count=3) == (7.0, 7.0, 7.0)


def test_tcp_between_nodes_scatters_more_than_a_node():
    assert (
        build_noise(cluster(nodes=2), seed=1, sigma=None).sigma > 3 * build_noise(cluster(), seed=1, sigma=None).sigma
    )


def test_uniform_is_spread_over_its_range():
    draws = [uniform(seed, DEFAULT, 0, "crash") for seed in range(500)]
    assert all(0 <= d < 1 for d in draws)
    assert statistics.mean(draws) == pytest.approx(0.5, abs=0.06)
