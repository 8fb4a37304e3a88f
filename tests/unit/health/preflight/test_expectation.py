"""What is expected of a fabric, and whose figure it is."""

import itertools
from dataclasses import replace

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.preflight import Preflight, ProbeReading, Section, State
from ncclt.core.setting import DEFAULT
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
from ncclt.measure.simulated import SimulatedRunner
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


def expect(earlier=(), *, simulated=False, **more):
    healthy = find_healthy(CLUSTER, earlier, benchmark="nccl_tests", simulated=simulated)
    return expectation(CLUSTER, SIZES, tolerance=0.15, healthy=healthy, **more)


def test_links_promise_what_the_simulated_hardware_of_published_figures_reaches(subtests):
    """Within the tolerance, wherever trials were published for such links: else a healthy fabric looks sick."""
    for name, nodes in itertools.product(sorted(CLUSTERS), [1, 4]):
        with subtests.test(name=name, nodes=nodes):
            if nodes > 1 and CLUSTERS[name].fabric in ("none", "ethernet"):
                nodes = 1
            cluster = CLUSTERS[name].sized(nodes=nodes)
            message = Message(
                collective=Collective.ALL_REDUCE,
                dtype="float32",
                size_bytes=1 << 30,
                group_size=cluster.world_size,
                spans_nodes=nodes > 1,
            )
            reached = message.busbw_gbps(SimulatedRunner(cluster, seed=0, sigma=0).expected_us(DEFAULT, message))
            assert 0.85 < reached / links_gbps(cluster, nodes=nodes, ranks=cluster.world_size, size=1 << 30) < 1.25


def test_without_a_past_only_the_largest_size_is_judged_by_the_links():
    found = expect()
    assert (found.source, found.tolerance) == ("from link speeds", 0.15)
    assert [size for size, _ in found.sizes] == [1 << 30]
    whole = Section(hosts=HOSTS)
    assert found.gbps(whole) == pytest.approx(dict(found.sizes)[1 << 30])


def test_three_healthy_runs_are_a_sharper_yardstick():
    found = expect([run(170.0), run(180.0), run(200.0)])
    assert (found.source, found.tolerance) == ("as the median of 3 healthy runs", 0.075)
    assert dict(found.sizes)[1 << 30] == pytest.approx(180.0)
    assert 64 in dict(found.sizes)


def test_other_runs_are_no_yardstick(subtests):
    for other in [
        {"simulated": True},
        {"benchmark": "torch_collectives"},
        {"fingerprint": "other"},
        {"state": State.DEGRADED},
    ]:
        with subtests.test(other=other):
            assert expect([run(100.0, **other)] * BASELINE_RUNS).source == "from link speeds"


def test_simulated_runs_are_the_yardstick_of_simulated_ones():
    assert expect([run(100.0, simulated=True)] * 3, simulated=True).source == "as the median of 3 healthy runs"


def test_what_the_user_says_goes_first():
    found = expect([run(170.0)] * 3, given_gbps=42.0)
    assert (found.source, found.tolerance, found.sizes) == ("by --expect", 0.15, ((1 << 30, 42.0),))


def test_parts_are_scaled_like_the_whole():
    links, given = expect(), expect(given_gbps=dict(expect().sizes)[1 << 30] / 2)
    for section in (Section(hosts=("a", "b")), Section(hosts=("a",)), Section(hosts=("a",), gpus=(0, 3))):
        assert given.gbps(section) == pytest.approx(links.gbps(section) / 2)


@pytest.mark.parametrize("more", [{"given_gbps": 0.0}, {"given_gbps": -1.0}])
def test_figures_that_make_no_sense(more):
    with pytest.raises(UsageError):
        expect(**more)


@pytest.mark.parametrize("tolerance", [0.0, 1.0, -0.1])
def test_a_tolerance_is_a_share(tolerance):
    with pytest.raises(UsageError):
        expectation(CLUSTER, SIZES, tolerance=tolerance)
    assert peer_tolerance(0.15) == 0.075


def test_latency_that_grew_is_worth_a_word():
    expected = expect([run(180.0)] * 3)
    assert latency_note(run(180.0, small_us=60.0).readings[0], expected) == ""
    assert "2.0 times as long" in latency_note(run(180.0, small_us=100.0).readings[0], expected)
    assert latency_note(run(180.0, small_us=100.0).readings[0], expect()) == ""
