"""Several workloads tuned by the same launches: each gets a study, a policy and a verdict of its own."""

from dataclasses import replace

import optuna
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.effort import Effort
from ncclt.core.message import Collective, Message
from ncclt.core.recommendation import Decision
from ncclt.core.study import Arm, Phase, StudyState
from ncclt.core.trial import Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import UsageError
from ncclt.measure.testbed import Testbed
from ncclt.pipeline.many_models import tune_models
from ncclt.pipeline.tune import TuneRequest
from ncclt.store import open_store
from ncclt.testing.fakes import FakePolicyRunner

CLUSTER = Cluster(
    name="four", nodes=1, gpus_per_node=4, gpu="A100", compute_capability=80, link_class="nvlink", link_gbps=300,
    nccl_version="2.27.3",
)  # fmt: skip
SMALL, MIDDLE, LARGE = 16 << 10, 1 << 20, 64 << 20


def workload(name, **calls):
    sizes = {"small": SMALL, "middle": MIDDLE, "large": LARGE}
    return Workload(
        name=name,
        messages=tuple(
            MessageCalls(
                message=Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=sizes[size]),
                calls_per_step=count,
            )
            for size, count in calls.items()
        ),
        provenance=Provenance(source="test"),
    )


FIRST = workload("first", small=50.0, large=0.1)
SECOND = workload("second", small=5.0, middle=20.0)
HOPELESS = workload("hopeless", large=4.0)


class Unseen:
    """Watches nothing."""

    def opened(self, study, resumed):
        assert resumed >= 0

    searched = confirmed = proved = lambda *_seen: None


class Counting(FakePolicyRunner):
    """Launches whole policies, and counts its launches and what each of them measured."""

    def __init__(self, *words):
        super().__init__(*words)
        self.launched = []

    def measure(self, setting, messages, *, repeat):
        self.launched.append({m.size_bytes for m in messages})
        return super().measure(setting, messages, repeat=repeat)

    def measure_policy(self, policy, messages, *, repeat):
        self.launched.append({m.size_bytes for m in messages})
        return super().measure_policy(policy, messages, repeat=repeat)


def per_size(setting, message, _number):
    """Small messages like tree/ll, middle ones like tree/simple, large ones NCCL's own choice."""
    pair = (setting.algorithm, setting.protocol)
    if message.size_bytes == LARGE:
        return 1000.0 if setting.is_default else 4000.0
    best = (Algorithm.TREE, Protocol.LL) if message.size_bytes == SMALL else (Algorithm.TREE, Protocol.SIMPLE)
    return 10.0 if pair == best else 20.0


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path / 'ncclt.db'}") as opened:
        yield opened


def run(store, workloads=(FIRST, SECOND, HOPELESS), *, runner=None, time_of=per_size, interrupted=lambda: "", **effort):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    effort = Effort(**{"trials": 10, "process_wide": (), "warm": False, **effort})
    testbed = Testbed(runner=runner or Counting(CLUSTER, time_of), reason="test", covers=lambda _: True)
    return tune_models(
        [TuneRequest(workload=w, effort=effort) for w in workloads], testbed, store,
        watcher=Unseen(), interrupted=interrupted, clock=lambda: 0.0, now=lambda: "2026-01-01T00:00:00+00:00",
    )  # fmt: skip


def test_one_launch_serves_all_and_each_has_its_own_verdict(store):
    runner = Counting(CLUSTER, per_size)

    found = run(store, runner=runner)

    first, second, hopeless = found.results
    assert [r.verdict.decision for r in found.results] == [Decision.TUNED, Decision.TUNED, Decision.KEEP_DEFAULT]
    assert first.verdict.speedup == pytest.approx(1100 / 600)
    assert second.verdict.speedup == pytest.approx(2.0)
    assert found.launches == len(runner.launched) < found.apart
    searched = [s for s, t in zip(runner.launched, first.trials, strict=False) if t.phase is not Phase.VERIFY]
    assert searched
    assert all(sizes == {SMALL, MIDDLE, LARGE} for sizes in searched)
    assert not any(t.phase is Phase.VERIFY for t in hopeless.trials), "nothing of it is worth a proof"
    for result in found.results:
        own = {c.message for c in result.study.workload.messages}
        measured = [({m.message for m in t.result.measurements}, t) for t in result.trials]
        assert all(messages >= own for messages, _ in measured)
        with_probes = [t for messages, t in measured if messages > own]
        assert {t.block for t in with_probes} <= {0}
        assert {t.arm for t in with_probes} == ({Arm.DEFAULT, Arm.TABLE} if result is not hopeless else set())
        assert result.recommendation.model == result.study.workload.name
        assert store.study(result.study.id).state is StudyState.DONE


def test_a_policy_holds_only_the_rules_that_its_own_messages_meet(store):
    first, second, _ = (r.recommendation.table.policy for r in run(store).results)

    assert [rule.protocol for rule in first.rules] == [Protocol.LL]
    assert [rule.protocol for rule in second.rules] == [Protocol.LL, Protocol.SIMPLE]


def test_a_finished_run_gives_its_results_again_and_launches_nothing(store):
    before, runner = run(store), Counting(CLUSTER, per_size)

    again = run(store, runner=runner)

    assert runner.launched == []
    assert all(result.finished for result in again.results)
    assert [r.recommendation for r in again.results] == [r.recommendation for r in before.results]
    assert again.launches == before.launches


@pytest.mark.parametrize("cut", [1, 11, 20])
def test_an_interrupted_run_resumes_to_the_same_end(store, tmp_path, cut):
    asked = iter(range(10_000))
    stopped = run(store, interrupted=lambda: "interrupted" if next(asked) >= cut else "")
    assert any(result.recommendation is None for result in stopped.results)

    resumed = run(store)

    with open_store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        whole = run(other)
    assert [r.recommendation.table for r in resumed.results] == [r.recommendation.table for r in whole.results]
    assert resumed.launches == whole.launches


def test_what_a_killed_run_did_not_store_for_all_is_launched_again(store, tmp_path):
    asked = iter(range(10_000))
    first = run(store, interrupted=lambda: "interrupted" if next(asked) >= 5 else "").results[0].study
    lone = replace(store.trials(first.id)[-1], number=len(store.trials(first.id)))
    store.add_trial(first.id, lone)

    resumed = run(store)

    counts = {sum(t.phase is not Phase.VERIFY for t in r.trials) for r in resumed.results}
    assert len(counts) == 1
    assert [r.verdict.decision for r in resumed.results][:2] == [Decision.TUNED, Decision.TUNED]


def test_the_rules_of_one_workload_do_not_disqualify_another(store):
    class Breaking(Counting):
        def measure_policy(self, policy, messages, *, repeat):
            if any(policy.setting_for(m).protocol is Protocol.SIMPLE for m in messages):
                return TrialResult(outcome=Outcome.CRASHED, measurements=(), wall_s=0.001, detail="boom")
            return super().measure_policy(policy, messages, repeat=repeat)

    first, second, _ = run(store, runner=Breaking(CLUSTER, per_size)).results

    assert first.verdict.decision is Decision.TUNED
    assert second.verdict.decision is Decision.KEEP_DEFAULT
    assert "crashed" in second.verdict.reason


@pytest.mark.parametrize("workloads", [(FIRST,), (FIRST, FIRST)])
def test_fewer_than_two_different_workloads_are_refused(store, workloads):
    with pytest.raises(UsageError, match="two or more different workloads"):
        run(store, workloads)


def test_another_set_of_workloads_makes_other_studies(store):
    both, three = run(store, (FIRST, SECOND)), run(store)

    assert both.results[0].study.id != three.results[0].study.id
