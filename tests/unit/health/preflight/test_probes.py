"""Launches at once on nodes of their own, within a time, and ended when somebody interrupts."""

import threading
from dataclasses import replace

import pytest

from ncclt.core.preflight import Section
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.errors import HostLostError, NodesLostError
from ncclt.health.preflight.expectation import expectation
from ncclt.health.preflight.probes import DeadlineExceeded, Probes
from ncclt.store.shipped import profiles_folder, shipped_clusters

CLUSTER = shipped_clusters(profiles_folder())["dgx-a100"].sized(nodes=6)
EXPECTED = expectation(CLUSTER, (64, 1 << 20), tolerance=0.15)


class Recorder:
    """A runner that notes who else is running while it is."""

    simulated, name, cluster = True, "recorder", CLUSTER

    def __init__(self, hosts, running, seen, barrier):
        self.hosts, self.running, self.seen, self.barrier = hosts, running, seen, barrier

    def measure(self, setting, messages, *, repeat):
        self.running.append(self.hosts)
        if self.barrier is not None:
            self.barrier.wait(timeout=240)
        self.seen.append((self.hosts, repeat, [m.size_bytes for m in messages], {m.group_size for m in messages}))
        self.running.remove(self.hosts)
        return TrialResult(
            outcome=Outcome.OK,
            measurements=tuple(Measurement(message=m, samples_us=(100.0,)) for m in messages),
            wall_s=5.0,
        )


def probes(seen, *, at_once=1, barrier=None, **more):
    running = []
    return Probes(
        lambda hosts, gpus: Recorder(hosts, running, seen, barrier),
        EXPECTED,
        at_once=at_once,
        **{"clock": lambda: 0.0, **more},
    )


def pairs(*texts):
    return [Section(hosts=tuple(text)) for text in texts]


def test_readings_come_in_the_order_asked_for_and_count_repeats():
    seen = []
    made = probes(seen)
    readings = made.measure([*pairs("ab", "cd"), *pairs("ab")])
    assert [r.section.label for r in readings] == ["a+b", "c+d", "a+b"]
    assert [r.repeat for r in readings] == [0, 0, 1]
    assert [r.repeat for r in made.of(Section(hosts=("a", "b")))] == [0, 1]
    assert seen[0][2:] == ([1 << 20], {16})
    reading = made.measure([Section(hosts=("a",), gpus=(1, 5))], (64, 1 << 20))[0]
    assert seen[-1][2:] == ([64, 1 << 20], {2})
    assert (reading.ranks, reading.busbw_gbps[-1]) == (2, (1 << 20, pytest.approx((1 << 20) / 1e5)))


def test_disjoint_ones_run_together():
    """Each waits until three run: were they made one after another, this would time out."""
    seen = []
    probes(seen, at_once=3, barrier=threading.Barrier(3)).measure(pairs("ab", "cd", "ef"))
    assert len(seen) == 3


def test_a_node_is_in_one_launch_at_a_time():
    """Two can run together, twice: each waits for another, and what runs is noted while they do."""
    running, seen, together = [], [], []
    barrier = threading.Barrier(2, action=lambda: together.append([host for hosts in running for host in hosts]))
    made = Probes(
        lambda hosts, gpus: Recorder(hosts, running, seen, barrier),
        EXPECTED,
        at_once=6,
        clock=lambda: 0.0,
    )
    made.measure(pairs("ab", "bc", "cd", "ad"))
    assert [sorted(hosts) for hosts in together] == [list("abcd")] * 2


def test_nodes_that_joined_a_wave_are_busy_too():
    for sections, at_once, waves in [
        (("ab", "bc", "cd", "ad"), 6, [[0, 2], [1, 3]]),
        (("ab", "cd", "ce", "df"), 6, [[0, 1], [2, 3]]),
        (("ab", "cd", "ef"), 2, [[0, 1], [2]]),
    ]:
        assert probes([], at_once=at_once)._plan_waves(pairs(*sections)) == waves


def test_no_launch_is_begun_that_would_not_fit():
    seconds = iter((0.0, 1.0, 6.0))
    seen = []
    made = probes(seen, clock=lambda: next(seconds), time_s=10.0)
    with pytest.raises(DeadlineExceeded):
        made.measure(pairs("ab", "cd"))
    assert len(seen) == len(made.readings) == 1


def test_an_interrupted_wave_kills_what_runs():
    killed = []

    class Hanging(Recorder):
        def __init__(self, hosts):
            self.hosts, self.over = hosts, threading.Event()

        def measure(self, setting, messages, *, repeat):
            if self.hosts == ("a", "b"):
                raise KeyboardInterrupt
            assert self.over.wait(timeout=240)
            return replace(TrialResult(outcome=Outcome.CRASHED))

        def kill(self):
            killed.append(self.hosts)
            self.over.set()

    made = Probes(lambda hosts, gpus: Hanging(hosts), EXPECTED, at_once=2, clock=lambda: 0.0)
    with pytest.raises(KeyboardInterrupt):
        made.measure(pairs("ab", "cd"))
    assert ("c", "d") in killed


def test_a_host_that_is_lost_is_a_reading_like_others():
    """Which one it is, smaller parts show; an allocation that is gone has no parts."""

    class Losing(Recorder):
        def measure(self, setting, messages, *, repeat):
            raise self.error("a node, or the connection to it, was lost: ssh: connect to host b port 22: timed out")

    def made(error):
        losing = Losing(("a", "b"), [], [], None)
        losing.error = error
        return Probes(lambda hosts, gpus: losing, EXPECTED, clock=lambda: 0.0)

    (reading,) = made(HostLostError).measure(pairs("ab"))
    assert (reading.outcome, "connect to host b" in reading.detail) == (Outcome.CRASHED, True)
    with pytest.raises(NodesLostError):
        made(NodesLostError).measure(pairs("ab"))
