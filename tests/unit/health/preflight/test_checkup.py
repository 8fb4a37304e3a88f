"""Whole preflights of simulated fleets: the named parts, the words, and the number of launches; requests and costs."""

from dataclasses import replace
from itertools import pairwise

import pytest
from fleet import Fleet, parse_fault

from ncclt.core.preflight import Part, Section, State
from ncclt.core.trial import Outcome, TrialResult
from ncclt.errors import UsageError
from ncclt.health.preflight.checkup import SIZES, Depth, PreflightRequest
from ncclt.health.preflight.expectation import expectation


def named(preflight):
    return [(finding.part, finding.hosts, finding.gpus) for finding in preflight.findings]


def test_a_healthy_fleet_costs_one_launch(examine):
    result = examine()
    assert (result.state, result.findings, len(result.readings)) == (State.HEALTHY, (), 1)
    assert result.verdict.startswith("healthy: 171 GB/s measured, 172 GB/s expected from link speeds")


def test_one_fault_is_named_in_fleets_of_any_size(subtests, examine):
    for weak, expected in [
        ("n01=0.6", (Part.NODE, ("n01",), ())),
        ("n01+n02=0.6", (Part.LINK, ("n01", "n02"), ())),
        ("n02:5=0.6", (Part.GPU, ("n02",), (5,))),
        ("n02:5+6=0.6", (Part.GPU_LINK, ("n02",), (5, 6))),
    ]:
        with subtests.test(weak=weak, expected=expected):
            for nodes in (3, 4, 8, 16, 64):
                result = examine([weak], nodes=nodes)
                assert (nodes, result.state, named(result)) == (nodes, State.DEGRADED, [expected])
                assert result.findings[0].share == pytest.approx(0.6, abs=0.03), nodes
                assert len(result.readings) < 45, nodes


def test_the_sentence_says_what_to_do(examine):
    result = examine(["n03=0.6"], nodes=16)
    assert "node n03 reaches 60 % of 181 GB/s with every partner" in result.verdict
    assert "look at its network" in result.verdict
    assert [note for note in result.notes if "looked slow" in note] == []
    assert any("without n03 the other 15 nodes reach" in note for note in result.notes)


def test_several_faults_are_peeled_off_one_after_the_other(examine):
    result = examine(["n00=0.5", "n30=0.6", "n12:3=0.8"], nodes=32)
    assert set(named(result)) == {(Part.NODE, ("n00",), ()), (Part.NODE, ("n30",), ()), (Part.GPU, ("n12",), (3,))}
    assert [one.hosts[0] for one in result.findings] == ["n00", "n30", "n12"], "the slowest first"


@pytest.mark.parametrize(
    ("word", "outcome", "says"),
    [
        ("timeout", Outcome.TIMEOUT, "does not finish"),
        ("crashed", Outcome.CRASHED, "crashes"),
        ("wrong_result", Outcome.WRONG_RESULT, "gives WRONG DATA"),
    ],
)
def test_failures_are_findings(examine, word, outcome, says):
    for where in ("n05", "n04+n05"):
        result = examine([f"{where}={word}"], nodes=16)
        assert result.state is State.DEGRADED
        assert (result.findings[0].outcome, result.findings[0].hosts) == (outcome, tuple(where.split("+")))
        assert says in result.verdict
    slow_too = examine(["n01=0.2", f"n10={word}"], nodes=16)
    assert [finding.hosts for finding in slow_too.findings] == [("n10",), ("n01",)]


def test_wrong_data_in_one_launch_alone_is_told(examine, dgx):
    """The median of three would forgive it; nobody else should."""
    cluster = dgx.sized(nodes=8)
    fine, spoilt = Fleet(cluster), Fleet(cluster, [parse_fault("n01=wrong_result")])
    once = [("n00", "n01")]

    def runner_for(hosts, gpus):
        if hosts in once:
            once.remove(hosts)
            return spoilt.runner(hosts, gpus)
        return fine.runner(hosts, gpus)

    result = examine(full=True, runner_for=runner_for)

    assert once == []
    (finding,) = result.findings
    assert (finding.hosts, finding.outcome, finding.remark) == (("n00", "n01"), Outcome.WRONG_RESULT, "in one launch")


def test_what_is_expected_may_be_wrong(examine):
    result = examine(given_gbps=400.0, nodes=16)
    assert named(result)[0][0] is Part.FABRIC
    assert "no node or link stands out, so the expectation (by --expect) is wrong, or a shared cause" in result.verdict
    assert "--expect" in result.verdict


def test_two_nodes_cannot_tell_whose_fault_it_is(examine):
    (finding,) = examine(["n01=0.5"], nodes=2).findings
    assert (finding.part, finding.hosts) == (Part.LINK, ("n00", "n01"))
    assert "two nodes do not tell which end it is" in finding.remark


def test_two_gpus_of_a_node_are_one_link(examine, dgx):
    cluster = replace(dgx, gpus_per_node=2)
    (finding,) = examine(["n02:0=0.5"], nodes=4, cluster=cluster).findings
    assert (finding.part, finding.hosts, finding.gpus) == (Part.GPU_LINK, ("n02",), (0, 1))
    (failing,) = examine(["n02:0=crashed"], nodes=4, cluster=cluster).findings
    assert (failing.gpus, failing.outcome) == ((0, 1), Outcome.CRASHED)


def test_one_node_is_compared_gpu_by_gpu(examine):
    assert named(examine(["n01:3=0.5"], nodes=2)) == [(Part.GPU, ("n01",), (3,))]
    assert named(examine(["n00:5=0.6"], nodes=1)) == [(Part.GPU, ("n00",), (5,))]
    assert named(examine(["n00:5+6=0.6"], nodes=1)) == [(Part.GPU_LINK, ("n00",), (5, 6))]


def test_pairs_of_pcie_slots_are_no_finding_on_one_node(examine, dgx):
    """Without a peer nothing tells a slow link from a longer way; it is a note."""
    cluster = replace(dgx, link_class="pcie", link_gbps=32.0, gpus_per_node=4)
    result = examine(["n00:1+2=0.6"], nodes=1, cluster=cluster)
    assert all(finding.part is not Part.GPU_LINK for finding in result.findings)
    assert any("GPU 1+2: slower than other pairs" in note for note in result.notes)


def test_a_peer_tells_what_is_usual_where_gpus_are_linked_unequally(examine, dgx):
    cluster = replace(dgx, link_class="pcie", link_gbps=32.0, gpus_per_node=4)
    result = examine(["n02:1+2=0.5"], nodes=4, cluster=cluster)
    assert (Part.GPU_LINK, ("n02",), (1, 2)) in named(result)


def test_quick_never_looks_closer(examine):
    result = examine(["n03=0.5"], quick=True)
    assert len(result.readings) <= 3
    assert named(result) == [(Part.GROUP, tuple(f"n{index:02d}" for index in range(8)), ())]


def test_all_pairs_show_a_link_that_all_nodes_together_do_not_pass(examine):
    """A ring over all nodes does not pass links between nodes that are no neighbours."""
    for ends in ("n00+n02", "n01+n03"):
        assert examine([f"{ends}=0.5"], nodes=4).state is State.HEALTHY
        (finding,) = examine([f"{ends}=0.5"], nodes=4, full=True, all_pairs=True).findings
        assert (finding.part, "+".join(finding.hosts)) == (Part.LINK, ends)


def test_all_pairs_are_measured_once(examine):
    result = examine(["n03=0.6"], all_pairs=True)
    assert named(result) == [(Part.NODE, ("n03",), ())]
    assert len({r.section for r in result.readings if len(r.section.hosts) == 2}) == 28


def test_when_the_time_is_over_the_smallest_slow_group_is_named(examine):
    result = examine(["n03=0.6"], nodes=32, time_s=14.0)
    (finding,) = result.findings
    assert finding.part is Part.GROUP
    assert "n03" in finding.hosts
    assert len(finding.hosts) < 32
    assert "the time was over" in finding.remark
    assert "--time" in result.notes[-1]
    assert examine(time_s=0.5).state is State.UNMEASURED


def test_noise_alone_is_no_finding(examine):
    result = examine(nodes=32, sigma=0.04, full=True)
    assert (result.state, result.findings) == (State.HEALTHY, ())
    assert {Section(hosts=("n02",)), Section(hosts=("n00", "n01"))} <= {r.section for r in result.readings}


def test_launches_at_once_change_nothing_but_the_time(examine):
    single, parallel = examine(["n03=0.6"], sigma=0.02), examine(["n03=0.6"], sigma=0.02, at_once=4)
    assert named(single) == named(parallel)
    labels = [sorted(reading.section.label for reading in result.readings) for result in (single, parallel)]
    assert labels[0] == labels[1]


class Broken:
    """A runner whose every launch ends in one way."""

    simulated, name = False, "broken"

    def __init__(self, outcome, cluster):
        self.outcome, self.cluster = outcome, cluster

    def measure(self, setting, messages, *, repeat):
        return TrialResult(outcome=self.outcome, detail="all_reduce_perf: not found")


@pytest.mark.parametrize(("outcome", "most"), [(Outcome.INVALID, 1), (Outcome.CRASHED, 6), (Outcome.TIMEOUT, 6)])
def test_where_nothing_runs_it_is_not_the_fabric(examine, dgx, outcome, most):
    for nodes in (1, 2, 3, 64):
        result = examine(nodes=nodes, runner_for=lambda hosts, gpus: Broken(outcome, dgx))
        assert (nodes, result.state, result.findings) == (nodes, State.UNMEASURED, ())
        assert result.verdict == "could not measure: all_reduce_perf: not found"
        assert len(result.readings) <= most, nodes


@pytest.fixture
def request_of(dgx):
    """Return a caller: a number of nodes in, the request to examine them out."""

    def build(nodes=4, *, cluster=dgx, hosts=None, **depth):
        cluster = cluster.sized(nodes=nodes)
        return PreflightRequest(
            cluster=cluster,
            hosts=hosts or tuple(f"n{index:03d}" for index in range(nodes)),
            expectation=expectation(cluster, SIZES, tolerance=0.15),
            launcher="slurm",
            benchmark="nccl_tests",
            depth=Depth(**depth),
        )

    return build


def test_contradictory_requests_are_refused(request_of, dgx, subtests):
    for changes in [
        {"quick": True, "full": True},
        {"hosts": ("a", "b", "c")},
        {"hosts": ("a", "b", "c", "c")},
        {"nodes": 1, "cluster": replace(dgx, gpus_per_node=1)},
    ]:
        with subtests.test(changes=changes), pytest.raises(UsageError):
            request_of(**changes)


def test_the_sizes_are_one_sweep_of_nccl_tests():
    assert {later // earlier for earlier, later in pairwise(SIZES)} == {64}


def test_the_estimate_is_near_what_one_slow_node_really_takes(examine, request_of):
    for nodes in (8, 32, 128):
        planned = request_of(nodes)
        launches = len(examine(["n03=0.6"], nodes=nodes).readings)
        estimate = planned.estimate_launches(is_healthy=False)
        assert planned.estimate_launches(is_healthy=True) == 1
        assert estimate / 1.6 < launches < estimate * 1.6, nodes


def test_a_quick_preflight_is_at_most_three_launches_and_all_pairs_are_planned_in_rounds(request_of):
    assert request_of(quick=True).estimate_launches(is_healthy=False) <= 3
    assert request_of(quick=True, all_pairs=True).rounds == []
    planned = request_of(8, all_pairs=True)
    assert [len(pairs) for pairs in planned.rounds] == [4] * 7
    assert planned.estimate_launches(is_healthy=False) > 28
