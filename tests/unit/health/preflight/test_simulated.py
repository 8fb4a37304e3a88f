"""Weak nodes, links and GPUs of a simulated fabric."""

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Outcome, Runner
from ncclt.errors import UsageError
from ncclt.health.preflight.simulated import InjectedFault, parse_fault, simulated_runners
from runner_contract import RunnerContract

CLUSTER = Cluster(
    name="dgx",
    nodes=4,
    gpus_per_node=4,
    gpu="A100",
    compute_capability=80,
    link_class="nvswitch",
    link_gbps=300.0,
    fabric="infiniband",
    nics_per_node=4,
    nic_gbps=25.0,
    gpudirect=True,
    nccl_version="2.22.3",
)
HOSTS = ("a", "b", "c", "d")


def gbps(weak, hosts, gpus=(), *, seed=0, sigma=0.0, size=1 << 30):
    runner_for = simulated_runners(CLUSTER, HOSTS, faults=[parse_fault(text) for text in weak], seed=seed, sigma=sigma)
    ranks = len(gpus) or 4 * len(hosts)
    message = Message(
        collective=Collective.ALL_REDUCE,
        dtype="float32",
        size_bytes=size,
        group_size=ranks,
        spans_nodes=len(hosts) > 1,
    )
    result = runner_for(tuple(hosts), tuple(gpus)).measure(DEFAULT, [message], repeat=0)
    return result.measurements[0].busbw_gbps if result.outcome is Outcome.OK else result.outcome


def test_what_a_weakness_strikes(subtests):
    for weak, struck, spared in [
        ("b=0.5", [("ab", ()), ("abcd", ())], [("acd", ()), ("b", ()), ("b", (0, 1))]),
        ("b+c=0.5", [("bc", ()), ("abcd", ())], [("ab", ()), ("b", ()), ("acd", ())]),
        ("d+a=0.5", [("abcd", ()), ("ad", ())], [("abc", ())]),
        ("b:2=0.5", [("b", ()), ("b", (1, 2)), ("ab", ())], [("b", (0, 1)), ("a", ()), ("acd", ())]),
        ("b:2+3=0.5", [("b", ()), ("b", (2, 3))], [("b", (0, 2)), ("b", (1, 3)), ("a", ())]),
    ]:
        with subtests.test(weak=weak, struck=struck, spared=spared):
            for hosts, gpus in struck:
                assert gbps([weak], hosts, gpus) == pytest.approx(0.5 * gbps([], hosts, gpus), rel=0.02)
            for hosts, gpus in spared:
                assert gbps([weak], hosts, gpus) == gbps([], hosts, gpus)


def test_latency_is_untouched():
    assert gbps(["b=0.5"], "ab", size=8) == pytest.approx(gbps([], "ab", size=8), rel=0.01)


@pytest.mark.parametrize(
    ("word", "outcome"),
    [("crash", Outcome.CRASHED), ("hang", Outcome.TIMEOUT), ("wrong", Outcome.WRONG_RESULT)],
)
def test_a_weakness_may_be_a_failure(word, outcome):
    assert gbps([f"b={word}"], "ab") is outcome
    assert isinstance(gbps([f"b={word}"], "acd"), float)


def test_places_scatter_each_in_its_own_way_and_the_same_again():
    first = gbps([], "ab", seed=1, sigma=0.05)
    assert first == gbps([], "ab", seed=1, sigma=0.05)
    assert first != gbps([], "cd", seed=1, sigma=0.05)
    assert first != gbps([], "ab", seed=2, sigma=0.05)


def test_no_weakness(subtests):
    for text in ["", "b", "b=", "b=0", "b=1.5", "b=slow", "b+c+d=0.5", "b+c:1=0.5", "b:x=0.5", "b:1+2+3=0.5", "+b=0.5"]:
        with subtests.test(text=text), pytest.raises(UsageError):
            parse_fault(text)


@pytest.mark.parametrize("fault", [InjectedFault(hosts=("x",)), InjectedFault(hosts=("a",), gpus=(4,))])
def test_what_there_is_not_cannot_be_weak(fault):
    with pytest.raises(UsageError):
        simulated_runners(CLUSTER, HOSTS, faults=[fault])


class TestWeakRunner(RunnerContract):
    """A runner that lost bandwidth is a runner."""

    def runner(self) -> Runner:
        return simulated_runners(CLUSTER, HOSTS, faults=[parse_fault("b=0.5")])(("a", "b"), ())
