"""What is expected of a fabric, and whose figure it is."""

from dataclasses import replace

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.preflight import Preflight, ProbeReading, Section, State
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.health.preflight.expectation import (
    BASELINE_RUNS,
    expectation,
    find_healthy,
    latency_note,
    links_gbps,
    peer_tolerance,
)
from ncclt.store.shipped import profiles_folder, shipped_clusters

SIZES = (64, 1 << 30)
CLUSTERS = shipped_clusters(profiles_folder())
CLUSTER: Cluster = CLUSTERS["dgx-a100"].sized(nodes=4)
HOSTS = ("a", "b", "c", "d")


def run(gbps, *, small_us=50.0, **changes):
    """A healthy preflight of all nodes: its bandwidth at 1 GiB, and the time of 64 bytes."""
    times = ((64, small_us), (1 << 30, (1 << 30) * 2 * 31 / 32 / gbps / 1e3))
    everything = ProbeReading(
        section=Section(hosts=HOSTS), ranks=32, repeat=0, outcome=Outcome.OK, times_us=times, expected_gbps=180.0
    )
    healthy = Preflight(
        id="p",
        created="",
        cluster=CLUSTER.name,
        fingerprint=CLUSTER.fingerprint().digest(),
        launcher="slurm",
        benchmark="nccl_tests",
        simulated=False,
        hosts=HOSTS,
        gpus_per_node=8,
        source="from link speeds",
        expected=(),
        tolerance=0.15,
        state=State.HEALTHY,
        readings=(everything,),
        wall_s=9.0,
    )
    return replace(healthy, **changes)


def expect(earlier=(), **more):
    healthy = find_healthy(CLUSTER, earlier, benchmark="nccl_tests")
    return expectation(CLUSTER, SIZES, tolerance=0.15, healthy=healthy, **more)


def test_links_promise_what_was_published_for_them(subtests):
    """Within the tolerance, else a healthy fabric looks sick: public nccl-tests tables at 1 GiB."""
    for name, gpus, published_gbps in [("dgx-a100", 8, 231.0), ("aws-g6e", 4, 15.7), ("pcie-pair", 2, 19.9)]:
        with subtests.test(name=name, gpus=gpus):
            promised = links_gbps(CLUSTERS[name], nodes=1, ranks=gpus, size=1 << 30)
            assert 0.85 < published_gbps / promised < 1.25


def test_three_healthy_runs_are_a_sharper_yardstick():
    expected = expect([run(170.0), run(180.0), run(200.0)])
    assert (expected.source, expected.tolerance) == ("as the median of 3 healthy runs", 0.075)
    assert dict(expected.sizes)[1 << 30] == pytest.approx(180.0)
    assert 64 in dict(expected.sizes)


def test_other_runs_are_no_yardstick(subtests):
    for other in [
        {"simulated": True},
        {"benchmark": "torch_collectives"},
        {"fingerprint": "other"},
        {"state": State.DEGRADED},
    ]:
        with subtests.test(other=other):
            assert expect([run(100.0, **other)] * BASELINE_RUNS).source == "from link speeds"


def test_what_the_user_says_goes_first():
    expected = expect([run(170.0)] * 3, given_gbps=42.0)
    assert (expected.source, expected.tolerance, expected.sizes) == ("by --expect", 0.15, ((1 << 30, 42.0),))


def test_parts_are_scaled_like_the_whole():
    links, given = expect(), expect(given_gbps=dict(expect().sizes)[1 << 30] / 2)
    assert (links.source, links.tolerance, [size for size, _ in links.sizes]) == ("from link speeds", 0.15, [1 << 30])
    assert links.gbps(Section(hosts=HOSTS)) == pytest.approx(dict(links.sizes)[1 << 30])
    for section in (Section(hosts=("a", "b")), Section(hosts=("a",)), Section(hosts=("a",), gpus=(0, 3))):
        assert given.gbps(section) == pytest.approx(links.gbps(section) / 2)


def test_figures_that_make_no_sense_are_refused():
    for gbps in (0.0, -1.0):
        with pytest.raises(UsageError):
            expect(given_gbps=gbps)
    for tolerance in (0.0, 1.0, -0.1):
        with pytest.raises(UsageError):
            expectation(CLUSTER, SIZES, tolerance=tolerance)
    assert peer_tolerance(0.15) == 0.075


def test_latency_that_grew_is_worth_a_word():
    expected = expect([run(180.0)] * 3)
    assert latency_note(run(180.0, small_us=60.0).readings[0], expected) == ""
    assert "2.0 times as long" in latency_note(run(180.0, small_us=100.0).readings[0], expected)
    assert latency_note(run(180.0, small_us=100.0).readings[0], expect()) == ""
