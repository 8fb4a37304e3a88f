"""Deterministic studies: only what keeps the order of additions is searched, proven and published."""

from dataclasses import replace

import pytest
from quiet_tune import tune_quietly

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.budget import Budget
from ncclt.core.message import Collective, Message
from ncclt.core.recommendation import Decision, Request, select
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import TimesOrigin
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.deliver.render.delivery import compare_numerics
from ncclt.deliver.render.formats import env_document
from ncclt.errors import StaleRecommendationError, UsageError
from ncclt.measure.testbed import Testbed, replayed_testbed
from ncclt.nccl.numerics import SameBits
from ncclt.pipeline.tune import TuneRequest
from ncclt.prove.proof import evidence_document
from ncclt.prove.study_summary import summarize_study
from ncclt.search.space import build_space, describe_space
from ncclt.testing.fakes import FakePolicyRunner
from ncclt.testing.samples import sample_cluster
from ncclt.user_dirs import recorded_tables

CLUSTER = replace(sample_cluster("pair"), nccl_version="2.28.9")
AG, AR, RS = Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.REDUCE_SCATTER
BROADCAST = Collective.BROADCAST
RING_LL = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, spares_reductions=True)


def workload(*collectives):
    calls = (
        MessageCalls(message=Message(collective=one, dtype="float32", size_bytes=1 << 20), calls_per_step=4)
        for one in collectives
    )
    return Workload(name="sharded", messages=tuple(calls), provenance=Provenance(source="test"))


def ring_wins(setting, message, _number):
    """Return 50 µs with a forced ring and 100 µs without, whatever the collective."""
    reaching = setting.applied_to(message.collective, version=CLUSTER.version)
    return 50.0 if reaching.algorithm is Algorithm.RING else 100.0


def make_testbed(**more):
    return Testbed(runner=FakePolicyRunner(CLUSTER, ring_wins), reason="test", covers=lambda _: True, **more)


def run(store, place=None, *, collectives=(AG, RS, AR), **budget):
    budget = Budget(**{"trials": 8, "process_wide": (), "deterministic": True, **budget})
    return tune_quietly(TuneRequest(workload=workload(*collectives), budget=budget), place or make_testbed(), store)


def test_only_collectives_that_add_nothing_get_rules(store):
    result = run(store)
    found = result.recommendation
    assert found.table.verdict.decision is Decision.TUNED
    assert found.table.verdict.speedup == pytest.approx(300 / 250)
    assert {rule.collective for rule in found.table.policy.rules} == {AG}
    assert compare_numerics(found, found.table.policy, by_variables=False).same_bits is SameBits.YES
    assert env_document(found)["same_bits"] == {"variables": "yes", "table": "yes"}
    facts = dict(summarize_study(result.study, result.trials, found).facts)
    assert facts["Numerics"].startswith("same bits as the NCCL default: yes")
    for trial in result.trials:
        for message in (calls.message for calls in result.study.workload.messages):
            reaching = trial.setting_for(message).applied_to(message.collective, version=CLUSTER.version)
            assert message.collective is AG or reaching == DEFAULT, trial.label


def test_without_the_option_reductions_are_tuned_too(store):
    found = run(store, deterministic=False).recommendation
    assert {rule.collective for rule in found.table.policy.rules} == {AG, AR, RS}


def test_variables_that_change_the_order_are_not_proven(store):
    found = run(store, prove_variables=True).recommendation
    assert found.table.verdict.decision is Decision.TUNED
    assert found.variables is None


class BitsRunner(FakePolicyRunner):
    """A runner whose messages have bits by their setting and the number of the launch."""

    def __init__(self, bits_of):
        super().__init__(CLUSTER, ring_wins)
        self._bits_of = bits_of

    def _result(self, sent, number, repeat):
        result = super()._result(sent, number, repeat)
        bits = [str(self._bits_of(setting, message, number)) for setting, message in sent]
        measured = zip(result.measurements, bits, strict=True)
        return replace(result, measurements=tuple(replace(one, bits=mine) for one, mine in measured))


def prove_with(store, bits_of):
    result = run(store, replace(make_testbed(), runner=BitsRunner(bits_of)))
    return result.recommendation.table.verdict, dict(
        summarize_study(result.study, result.trials, result.recommendation).facts
    )


def ring_has_other_bits(setting, message, _number):
    return message.collective is AG and bool(setting.algorithm)


def test_a_policy_with_other_bits_is_refused(store):
    verdict, _ = prove_with(store, ring_has_other_bits)
    assert verdict.decision is not Decision.TUNED
    assert verdict.reason.startswith(
        "refused: bits compared in the A/B test: 2 sizes equal, 5 different (all_gather of 1 MiB, "
    )


def test_a_refusal_for_bits_is_recomputed_the_same(store):
    result = run(store, replace(make_testbed(), runner=BitsRunner(ring_has_other_bits)))
    (table,) = evidence_document(result.recommendation, result.trials, result.study.workload)["arms"]
    assert table["blocks"]
    assert (table["same"], table["recomputed"]) == (True, table["verdict"])


def test_bits_that_vary_under_the_default_refuse_nothing(store):
    verdict, facts = prove_with(store, lambda _setting, message, number: message.collective is AR and number)
    assert verdict.decision is Decision.TUNED
    assert "6 sizes equal, 1 not reproducible under the default (all_reduce of 1 MiB)" in facts["Numerics"]


def test_a_study_keeps_the_option(store):
    first = run(store)
    assert store.studies.get(first.study.id).deterministic
    assert run(store).finished
    assert run(store, deterministic=False).study.id != first.study.id
    with pytest.raises(UsageError, match="--deterministic: stored True, asked for False"):
        run(store, deterministic=False, study=first.study.name)


def test_a_workload_of_reductions_leaves_nothing_to_search(store):
    with pytest.raises(UsageError, match="--deterministic: every candidate changes the order of additions; keeping"):
        run(store, collectives=(AR, RS))
    with pytest.raises(UsageError, match="every candidate changes") as alone:
        run(store, collectives=(AR,))
    assert "plugin" not in alone.value.hint
    with pytest.raises(UsageError, match="every candidate changes") as without:
        run(store, make_testbed(without_plugin=True), collectives=(AG, AR))
    assert "force all_gather alone by the tuner plugin" in without.value.hint
    assert store.studies.page().items == ()


def test_options_for_several_groups_are_refused_before_the_first_trial(store):
    small, large = workload(AR).messages[0], workload(AG).messages[0]
    both = (small, replace(large, message=replace(large.message, group_size=2)))
    with pytest.raises(UsageError, match="options are for one process group, and sharded has several"):
        tune_quietly(
            TuneRequest(workload=replace(workload(AR), messages=both), budget=Budget(trials=8)),
            make_testbed().with_options_alone(),
            store,
        )
    assert store.studies.page().items == ()


def test_a_stale_result_is_tuned_again_as_it_was(store):
    stale = replace(run(store).recommendation, stale="the cable moved", simulated=False, launcher="slurm")
    asked = Request(cluster="pair", model="sharded", nodes=2, gpus_per_node=2, nccl_version="2.28.9")
    place = replace(stale.fingerprint, nodes=2, gpus_per_node=2)
    for mine, words in (
        (stale, " --deterministic --continue 8"),
        (replace(stale, simulated=True), " --launcher slurm"),
    ):
        with pytest.raises(StaleRecommendationError) as refused:
            select([replace(mine, fingerprint=place)], replace(asked, allowed=frozenset(TimesOrigin)))
        assert words in refused.value.hint


def test_parameters_of_reductions_are_refused_and_left_out_by_default(store):
    with pytest.raises(UsageError, match="BUFFSIZE may change the order of additions"):
        run(store, process_wide=("BUFFSIZE", "P2P_NET_CHUNKSIZE"))
    assert run(store, process_wide=None).study.process_wide == ()


def test_a_deterministic_space_names_what_it_leaves_out():
    placed = make_testbed().cut(workload(AG, AR))[0]
    space = build_space(make_testbed(), placed, (), deterministic=True)
    assert {s.algorithm for s in space.distinct} == {None, Algorithm.RING}
    assert all(s.spares_reductions != s.is_default for s in space.distinct)
    said = describe_space(make_testbed(), placed, (), deterministic=True)
    assert f"{len(space.distinct)} of " in said
    assert "order of additions may change (--deterministic)" in said


def test_a_recorded_space_is_cut_too():
    recorded = (DEFAULT, replace(RING_LL, spares_reductions=False), Setting(algorithm=Algorithm.TREE))
    testbed = make_testbed(recorded=(*recorded, Setting(parameters=(("BUFFSIZE", 8388608),))))
    placed = testbed.cut(workload(AG, AR))[0]
    assert build_space(testbed, placed, (), deterministic=True).distinct == (RING_LL,)


def test_the_best_recorded_policy_is_no_measure_of_a_deterministic_search(store):
    place = replayed_testbed(recorded_tables()["mi355x-2x8"], seed=0, reason="test")
    found = [run(store, place, collectives=(BROADCAST, AR), trials=3, deterministic=one) for one in (False, True)]
    assert [result.exhaustive is None for result in found] == [False, True]
