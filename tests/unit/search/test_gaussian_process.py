"""The Gaussian process of the search."""

import numpy as np
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.search.assemble import Times
from ncclt.search.gaussian_process import (
    GaussianProcess,
    build_covariance,
    compress_losses,
    expand_losses,
    posterior_mean,
)

PAIRS = [(Algorithm.RING, Protocol.LL), (Algorithm.RING, Protocol.SIMPLE), (Algorithm.TREE, Protocol.LL)]
SETTINGS = [Setting(algorithm=a, protocol=p, channels=c) for a, p in PAIRS for c in (None, 2, 8, 32)] + [
    Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, parameters=(("BUFFSIZE", 1 << 20),)),
    Setting(parameters=(("BUFFSIZE", 1 << 20), ("NTHREADS", 128))),
]
RINGS = [Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=c) for c in (8, 12, 16, 24, 32)]
MESSAGES = [
    Message(collective=c, dtype="float32", size_bytes=size, group_size=4)
    for c, size in ((Collective.ALL_REDUCE, 4096), (Collective.ALL_REDUCE, 1 << 20), (Collective.ALL_GATHER, 64 << 20))
]
WORKLOAD = Workload(
    name="w",
    messages=tuple(MessageCalls(message=m, calls_per_step=1.0) for m in MESSAGES),
    provenance=Provenance(source="test"),
)


def measured(rows, *, sigma=0.02):
    """Times of all messages under some settings, one launch each; the default takes 100 µs."""
    by_setting = {s: dict.fromkeys(MESSAGES, us) for s, us in ({DEFAULT: 100.0} | rows).items()}
    return Times(by_setting=by_setting, launches={s: dict.fromkeys(MESSAGES, 1) for s in by_setting}, sigma=sigma)


def test_the_posterior_is_that_of_the_joint_normal_distribution(cluster):
    """Settings that were measured once, thrice and for one message alone, written out message by message."""
    rows = {SETTINGS[5]: 90.0, SETTINGS[0]: 110.0, SETTINGS[9]: 250.0}
    times = measured(rows)
    times.launches[SETTINGS[0]][MESSAGES[1]] = 3
    del times.by_setting[SETTINGS[9]][MESSAGES[2]]
    process = GaussianProcess(SETTINGS, WORKLOAD, cluster)
    covariance = build_covariance(SETTINGS, channels=build_topology(cluster).channels)

    mean, variance = process.predict(times)

    for column, message in enumerate(calls.message for calls in WORKLOAD.messages):
        seen = [i for i, s in enumerate(SETTINGS) if message in times.by_setting.get(s, ())]
        noise = np.diag([times.sigma**2 / times.count(SETTINGS[i], message) for i in seen])
        inverse = np.linalg.inv(covariance[np.ix_(seen, seen)] + noise)
        prior = compress_losses(process.expected[:, column])
        values = compress_losses(np.log([times.by_setting[SETTINGS[i]][message] / 100.0 for i in seen]))
        across = covariance[:, seen]
        np.testing.assert_allclose(mean[:, column], prior + across @ inverse @ (values - prior[seen]), atol=1e-9)
        np.testing.assert_allclose(variance[:, column], np.diag(covariance - across @ inverse @ across.T), atol=1e-9)


def test_the_covariance_is_one_and_likes_neighbours(subtests):
    covariance = build_covariance(SETTINGS, channels=32)

    np.testing.assert_allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0
    with subtests.test("channels"):
        assert covariance[1, 2] > covariance[1, 3] > 0
    with subtests.test("pairs"):
        assert covariance[1, 2] > covariance[1, 6] == 0
    with subtests.test("NCCL's own channels are all of them"):
        assert covariance[0, 3] > covariance[0, 2]


def test_a_parameter_that_is_off_has_its_place_beside_one_that_is_on():
    """Steps are counted on a scale on which 0 has a place too, unlike in doublings."""
    settings = [Setting(parameters=(("IB_QPS_PER_CONNECTION", value),)) for value in (0, 1, 4)]
    covariance = build_covariance(settings, channels=32)

    assert covariance[0, 0] > covariance[0, 1] > covariance[0, 2]


def test_a_running_launch_changes_no_expectation_but_makes_its_likes_less_interesting(cluster):
    process = GaussianProcess(RINGS, WORKLOAD, cluster)
    for rows in ({}, {RINGS[4]: 90.0}):
        mean, variance = process.predict(measured(rows))
        beside_mean, beside_variance = process.predict(measured(rows), running=RINGS[:1])
        np.testing.assert_allclose(beside_mean, mean, atol=1e-9)
        assert (beside_variance[:2] < variance[:2]).all()


def test_a_lucky_launch_is_drawn_towards_its_likes_unless_it_is_sure(cluster):
    rows = dict(zip(RINGS, (90.0, 91.0, 80.0, 89.0, 90.0), strict=True))
    times = measured(rows, sigma=0.05)

    expected = posterior_mean(times, WORKLOAD, cluster)
    times.launches[RINGS[2]][MESSAGES[0]] = 300  # policies showed it of this message
    sure = posterior_mean(times, WORKLOAD, cluster).by_setting[RINGS[2]]

    assert all(80.5 < expected.by_setting[RINGS[2]][m] < 90 for m in MESSAGES)
    assert expected.by_setting[DEFAULT] == times.by_setting[DEFAULT]
    assert sure[MESSAGES[0]] == pytest.approx(80.0, rel=0.01)
    assert [sure[m] for m in MESSAGES[1:]] == [expected.by_setting[RINGS[2]][m] for m in MESSAGES[1:]]
    assert posterior_mean(measured({}), WORKLOAD, cluster) == measured({})


def test_what_a_setting_was_not_measured_for_is_not_made_up(cluster):
    times = measured({RINGS[0]: 90.0})
    del times.by_setting[RINGS[0]][MESSAGES[2]]

    assert set(posterior_mean(times, WORKLOAD, cluster).by_setting[RINGS[0]]) == set(MESSAGES[:2])


def test_losses_are_compressed_and_gains_are_not():
    ratios = np.array([-1.0, 0.0, 0.01, 1.0, 5.0])
    compressed = compress_losses(ratios)

    assert compressed[:2].tolist() == [-1.0, 0.0]
    assert compressed[2] == pytest.approx(0.01, rel=0.02)
    assert compressed[4] < 1.3
    np.testing.assert_allclose(expand_losses(compressed), ratios)
