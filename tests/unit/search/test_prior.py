"""What is expected before anything was measured: our estimate of NCCL's table, or the table itself."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.printed_costs import PrintedCost, PrintedCosts, PrintedTable
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase
from ncclt.measure.trial import launch, launch_claim
from ncclt.nccl.cost_model.model import nccl_choice
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.search.optuna_study import OptunaStudy
from ncclt.search.prior import expected_log_ratios, match_expected_default
from ncclt.search.space import cluster_space
from ncclt.testing.fakes import FakeRunner, FakeTrialLog
from ncclt.testing.samples import sample_study

AR = Collective.ALL_REDUCE
LARGE = Message(collective=AR, dtype="float32", size_bytes=64 << 20, group_size=4)
PART = Message(collective=AR, dtype="float32", size_bytes=64 << 20, group_size=2)
RING, TREE, NVLS = (Setting(algorithm=a) for a in (Algorithm.RING, Algorithm.TREE, Algorithm.NVLS))
LL = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)
LL128 = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL128)


def costs(*cells, channels=20):
    rows = tuple(PrintedCost(AR, a, p, latency_us, gbps) for a, p, latency_us, gbps in cells)
    return PrintedCosts(tables=(PrintedTable(ranks=4, nodes=1, channels=channels, costs=rows),))


RING_WINS = costs(
    (Algorithm.RING, Protocol.SIMPLE, 10.0, 100.0),
    (Algorithm.RING, Protocol.LL, 5.0, 50.0),
    (Algorithm.TREE, Protocol.SIMPLE, 10.0, 50.0),
)
TREE_WINS = costs((Algorithm.RING, Protocol.SIMPLE, 10.0, 100.0), (Algorithm.TREE, Protocol.SIMPLE, 10.0, 400.0))


def test_the_table_decides_what_the_default_chooses_and_what_others_cost(cluster):
    """64 MiB at 50 instead of 100 GB/s take about twice as long; under the other table the ring is what loses."""
    ring, ll = expected_log_ratios([RING, LL], [LARGE], cluster, RING_WINS)[:, 0]
    assert ring == 0.0
    assert ll == pytest.approx(math.log(2), abs=0.03)
    ring, tree = expected_log_ratios([RING, TREE], [LARGE], cluster, TREE_WINS)[:, 0]
    assert ring > 1
    assert tree == 0.0


def test_channels_count_where_a_message_waits_for_bandwidth(cluster):
    """A message of latency alone may be faster over one channel; nothing is said of half of the time in bandwidth."""
    ring = Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE)
    messages = [replace(LARGE, size_bytes=1 << exponent) for exponent in (3, 10, 20, 26, 32)]
    own, one = expected_log_ratios([ring, replace(ring, channels=1)], messages, cluster, RING_WINS)
    slower = one - own

    assert slower[0] == 0.0
    assert slower[1] < 1e-5
    assert (np.diff(slower) >= 0).all()
    assert slower[-1] == pytest.approx(math.log(8), abs=0.01)


def test_the_channels_of_the_log_count(cluster):
    """A quarter of the channels, half of the bandwidth; more than NCCL's own bring nothing."""
    few, all_of_them, more = (
        expected_log_ratios([Setting(algorithm=Algorithm.RING, channels=c)], [LARGE], cluster, RING_WINS)[0, 0]
        for c in (5, 20, 32)
    )
    assert few == pytest.approx(math.log(2), abs=0.05)
    assert all_of_them == pytest.approx(0.0)
    assert more == pytest.approx(0.0)


@pytest.mark.parametrize("told", [2, 6, 32])
def test_nccl_takes_as_many_channels_by_itself_as_the_log_tells(cluster, told):
    """Of those that our estimate has it would look slowed down, and all that the log tells like a gain."""
    printed = costs((Algorithm.RING, Protocol.SIMPLE, 10.0, 100.0), channels=told)
    settings = [Setting(algorithm=Algorithm.RING, channels=c) for c in (told, told // 2)]
    found = expected_log_ratios(settings, [LARGE], cluster, printed)[:, 0]
    assert found == pytest.approx([0, math.log(1.265)], abs=0.02)
    assert match_expected_default(settings, [LARGE], cluster, printed)[:, 0].tolist() == [True, False]


def test_what_the_table_does_not_tell_is_estimated_or_not_known(cluster):
    """A protocol that NCCL does not use by itself and another communicator are estimated; what it rules out is not."""
    settings = [LL, LL128, TREE]
    estimated = expected_log_ratios(settings, [LARGE, PART], cluster)
    found = expected_log_ratios(settings, [LARGE, PART], cluster, RING_WINS)

    assert found[1, 0] == estimated[1, 0] != 0
    assert np.array_equal(found[:, 1], estimated[:, 1])
    assert found[0, 0] != estimated[0, 0]
    assert expected_log_ratios([NVLS], [LARGE], cluster, RING_WINS)[0, 0] == 0.0


def proposals(cluster, workload, landscape, **options):
    """The first launches of a search."""
    runner, trial_log = FakeRunner(cluster, landscape), FakeTrialLog()
    space = cluster_space(workload.collectives, cluster, parameters={})
    study = replace(sample_study("s"), cluster=cluster, workload=workload, seed=1, **options)
    with OptunaStudy(space, study) as optuna_study:
        default = launch(runner, workload, trial_log, DEFAULT, phase=Phase.SEARCH)
        optuna_study.resume(default, [default])
        for _ in range(4):
            proposal = optuna_study.propose(trial_log.trials())
            claim = trial_log.claim(proposal.setting, phase=Phase.SEARCH)
            optuna_study.start(claim, proposal)
            optuna_study.tell(claim, launch_claim(runner, workload, trial_log, claim))
    return runner.launches


def test_the_search_begins_where_the_table_promises_most(cluster, workload, landscape):
    """Without a table it is the search that it always was."""
    assert proposals(cluster, workload, landscape) == proposals(cluster, workload, landscape, printed_costs=None)
    assert proposals(cluster, workload, landscape, printed_costs=TREE_WINS) != proposals(cluster, workload, landscape)


def test_what_nccl_is_expected_to_choose_is_the_cheapest_entry_with_the_channels_it_would_take(cluster):
    """Of our estimate, or of the table of a log where there is one."""
    small = Message(collective=AR, dtype="float32", size_bytes=8192, group_size=4)
    chosen = nccl_choice(AR, LARGE.size_bytes, build_topology(cluster, 4, False))
    algo_proto = Setting(algorithm=chosen.algorithm, protocol=chosen.protocol)
    own, other = replace(algo_proto, channels=chosen.channels), replace(algo_proto, channels=chosen.channels // 2)
    buffers = replace(algo_proto, parameters=(("BUFFSIZE", 1 << 20),))
    settings = [algo_proto, own, Setting(channels=chosen.channels), other, LL, TREE, buffers]
    assert match_expected_default(settings, [LARGE], cluster)[:, 0].tolist() == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert not match_expected_default([own], [small], cluster).any()  # another pair, or fewer channels

    simple = [Setting(algorithm=a, protocol=Protocol.SIMPLE) for a in (Algorithm.RING, Algorithm.TREE)]
    assert match_expected_default(simple, [LARGE], cluster, RING_WINS)[:, 0].tolist() == [True, False]
    assert match_expected_default(simple, [LARGE], cluster, TREE_WINS)[:, 0].tolist() == [False, True]


def test_what_never_passes_the_tuner_has_no_choice_of_its_own(cluster):
    message = Message(collective=Collective.ALL_TO_ALL, dtype="float32", size_bytes=1 << 20, group_size=4)
    assert not match_expected_default([RING, LL], [message], cluster).any()
