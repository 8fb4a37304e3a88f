"""Which settings of other studies are worth trying early."""

from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Study, StudyState, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.search.warm_start import MOST_WARM, warm_start

RING, TREE, NEVER = (
    Setting(algorithm=a, protocol=p)
    for a, p in ((Algorithm.RING, Protocol.LL), (Algorithm.TREE, Protocol.LL), (Algorithm.RING, Protocol.SIMPLE))
)


def trials(workload, best, *, outcome=Outcome.OK):
    """The default at 100 µs, one setting at 50, and one that is slow."""
    made = []
    for number, (setting, time_us) in enumerate(((DEFAULT, 100.0), (best, 50.0), (NEVER, 300.0))):
        measured = tuple(Measurement(message=c.message, samples_us=(time_us,)) for c in workload.messages)
        fine = outcome is Outcome.OK or not setting.is_default
        result = TrialResult(outcome=Outcome.OK if fine else outcome, measurements=measured if fine else ())
        made.append(
            Trial(
                number=number, phase=Phase.SEARCH, setting=setting, repeat=0, result=result,
                score_us=time_us if fine else None,
            )
        )  # fmt: skip
    return made


def study(cluster, workload, name):
    return Study(
        id=name, name=name, cluster=cluster, workload=workload, launcher="local", simulated=False, process_wide=(),
        seed=0, state=StudyState.DONE,
    )  # fmt: skip


def test_only_what_the_best_policy_used_is_taken_over(cluster, workload):
    (found,) = warm_start([(study(cluster, workload, "a"), trials(workload, RING))], cluster, workload)

    assert (found.setting, found.study) == (RING, "a")


@pytest.mark.parametrize(
    "further",
    [
        {"gpu": "H100"},
        {"link_class": "pcie"},
        {"nodes": 2, "fabric": "infiniband", "nics_per_node": 1, "nic_gbps": 25.0},
    ],
)
def test_the_nearer_cluster_goes_first(cluster, workload, further):
    far = (study(replace(cluster, **further), workload, "a-far"), trials(workload, RING))
    near = (study(cluster, workload, "z-near"), trials(workload, TREE))

    assert [w.study for w in warm_start([far, near], cluster, workload)] == ["z-near", "a-far"]


def test_among_equal_clusters_the_one_with_our_sizes_goes_first(cluster, workload):
    messages = [replace(c, message=replace(c.message, size_bytes=c.message.size_bytes * 16)) for c in workload.messages]
    others = replace(workload, messages=tuple(messages))
    far = (study(cluster, others, "a-far"), trials(others, RING))
    near = (study(cluster, workload, "z-near"), trials(workload, TREE))

    assert [w.study for w in warm_start([far, near], cluster, workload)] == ["z-near", "a-far"]


def test_a_study_without_a_default_says_nothing(cluster, workload):
    broken = (study(cluster, workload, "a"), trials(workload, RING, outcome=Outcome.CRASHED))

    assert warm_start([broken], cluster, workload) == ()


def test_no_more_than_a_few_are_taken_and_each_once(cluster, workload):
    bests = [Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, channels=c) for c in (2, 4, 8, 16, 2)]
    studies = [(study(cluster, workload, f"s{n}"), trials(workload, best)) for n, best in enumerate(bests)]

    found = warm_start(studies, cluster, workload)

    assert [w.setting for w in found] == bests[:MOST_WARM]
