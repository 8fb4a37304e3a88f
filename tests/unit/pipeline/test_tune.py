"""The application service: from request to published recommendation."""

import itertools
from dataclasses import replace

import optuna
import pytest
from pair import PAIR
from quiet_tune import tune_quietly

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.budget import Budget
from ncclt.core.message import Collective, Message
from ncclt.core.printed_costs import PrintedCost, PrintedCosts, PrintedTable
from ncclt.core.recommendation import Decision
from ncclt.core.revision import Actor
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Arm, Phase, StudyState, median_scores
from ncclt.core.trial import Outcome
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import StudyStoppedError, UsageError
from ncclt.measure.testbed import Testbed
from ncclt.pipeline.tune import TuneRequest
from ncclt.prove.study_summary import summarize_study
from ncclt.testing.fakes import FakePolicyRunner, FakeRunner

SMALL, LARGE = 16 << 10, 64 << 20
WORKLOAD = Workload(
    name="w",
    messages=tuple(
        MessageCalls(
            message=Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size), calls_per_step=calls
        )
        for size, calls in ((SMALL, 50.0), (LARGE, 1.0))
    ),
    provenance=Provenance(source="test"),
)


def per_size(setting, message, _number):
    """Small messages like tree/ll, large ones like the default; every setting as a whole loses."""
    if message.size_bytes == LARGE:
        return 1000.0 if setting.is_default else 4000.0
    return 10.0 if (setting.algorithm, setting.protocol) == (Algorithm.TREE, Protocol.LL) else 20.0


def make_testbed(time_of):
    return Testbed(runner=FakeRunner(PAIR, time_of), reason="test", covers=lambda _: True)


def run(store, time_of=per_size, *, interrupted=lambda: False, place=None, printed_costs=None, **budget):
    budget = Budget(**{"trials": 8, "process_wide": (), **budget})
    return tune_quietly(
        TuneRequest(workload=WORKLOAD, budget=budget, printed_costs=printed_costs),
        place or make_testbed(time_of),
        store,
        interrupted=interrupted,
    )


def test_a_per_size_gain_is_published_as_a_table_and_not_as_variables(store):
    result = run(store)

    found = result.recommendation
    assert found.table.verdict.decision is Decision.TUNED
    assert found.table.verdict.speedup == pytest.approx(2000 / 1500)
    assert found.variables is None, "every single setting loses on the large message"
    assert found.simulated is True
    assert store.studies.get(result.study.id).state is StudyState.DONE
    assert {row.calls.message.size_bytes: row.gain for row in result.messages} == {SMALL: 0.5, LARGE: 0.0}


def uniform(setting, _message, _number):
    return 10.0 if setting.algorithm is Algorithm.TREE else 20.0


def test_where_no_setting_changes_anything_few_trials_are_enough_to_keep_the_default(store):
    """As with --backend gloo: `undecided` would ask for trials that cannot show more."""
    inert = replace(make_testbed(per_size), inert="backend gloo: NCCL takes no part")

    for trials in (1, 3):
        found = run(store, place=inert, trials=trials, study=f"of {trials}").recommendation

        assert (found.table.verdict.decision, found.table.verdict.reason) == (
            Decision.KEEP_DEFAULT,
            "backend gloo: NCCL takes no part",
        )
        assert found.is_searched_enough


def arms_launched(result):
    return {t.arm for t in result.trials if t.phase is Phase.PROVE}


def test_without_a_plugin_variables_that_gain_as_much_are_proven_instead_of_sums(store):
    result = run(store, uniform)

    assert arms_launched(result) == {Arm.DEFAULT, Arm.VARIABLES}
    found = result.recommendation
    assert found.table == found.variables, "the result of the study is what was proven"
    assert found.variables.verdict.decision is Decision.TUNED
    assert {row.gain for row in result.messages} == {0.5}


def only_here(setting, message, _number):
    """Forced settings are faster at the sizes of the workload and slower anywhere else."""
    return 20.0 if setting.is_default else 10.0 if message.size_bytes in (SMALL, LARGE) else 30.0


def test_a_rule_is_not_delivered_to_sizes_at_which_it_was_slower(store):
    place = Testbed(runner=FakePolicyRunner(PAIR, only_here), reason="test", covers=lambda _: True)
    stops = itertools.chain([False] * 17, [True], itertools.repeat(False))
    cut_off = run(store, place=place, interrupted=lambda: "enough" if next(stops) else "")
    assert cut_off.recommendation is None
    assert sum(t.phase is Phase.PROVE for t in cut_off.trials) >= 2, "the probes are in"
    result = run(store, place=place)

    found = result.recommendation.table
    assert found.verdict.decision is Decision.TUNED
    assert [(rule.min_bytes, rule.max_bytes) for rule in found.policy.rules] == [(SMALL, SMALL)]
    summary = summarize_study(result.study, result.trials, result.recommendation)
    assert any(note.startswith("rules exclude all_reduce of ") for note in summary.notes)
    again = run(store, place=place)
    assert again.finished
    assert again.recommendation == result.recommendation


def test_a_table_is_proven_in_one_launch_and_variables_only_when_asked_for(store):
    place = Testbed(runner=FakePolicyRunner(PAIR, uniform), reason="test", covers=lambda _: True)
    result = run(store, place=place)

    assert arms_launched(result) == {Arm.DEFAULT, Arm.TABLE}
    assert result.recommendation.variables is None
    proof = [t for t in result.trials if t.arm is Arm.TABLE]
    assert all(t.policy == result.recommendation.table.policy for t in proof)
    probed, *others = (len(t.result.measurements) for t in proof)
    assert probed > 2
    assert set(others) == {2}
    assert store.trials.find(result.study.id) == result.trials, "the policy of a launch is stored"
    assert not any("A/B test sums one launch per setting" in note for note in result.notes)

    again = run(store, place=place, prove_variables=True)
    assert arms_launched(again) == {Arm.DEFAULT, Arm.TABLE, Arm.VARIABLES}
    assert again.recommendation.variables.verdict.decision is Decision.TUNED
    assert run(store, place=place, prove_variables=True).finished


def test_what_is_predicted_to_gain_too_little_is_not_proven(store):
    result = run(store, lambda s, m, n: 98.5 if s.algorithm is Algorithm.TREE else 100.0, trials=16)

    verdict = result.recommendation.table.verdict
    assert verdict.decision is Decision.KEEP_DEFAULT
    assert verdict.reason == "predicted gain 1.5 % < 2 % threshold; validation skipped"
    assert {t.phase for t in result.trials} == {Phase.SEARCH}, "neither confirmed nor proven"
    assert run(store, lambda s, m, n: 1.0, trials=16).finished

    lower = run(store, lambda s, m, n: 98.5 if s.algorithm is Algorithm.TREE else 100.0, trials=16, min_effect=0.01)
    assert lower.recommendation.table.verdict.decision is Decision.TUNED


def test_what_falls_back_below_the_minimum_when_confirmed_is_not_proven(store):
    """The first launch of every tree is lucky."""
    seen = set()

    def lucky(setting, message, _number):
        first = (setting, message) not in seen
        seen.add((setting, message))
        return 100.0 if setting.algorithm is not Algorithm.TREE else 97.0 if first else 99.5

    result = run(store, lucky)

    assert "2 % threshold" in result.recommendation.table.verdict.reason
    assert Phase.CONFIRM in {t.phase for t in result.trials}
    assert not arms_launched(result)


def test_without_a_proof_verdict_and_messages_give_the_default_one_time(store):
    """The median of its launches, though each message took longest in another of them."""
    took = {SMALL: itertools.cycle([100.0, 105.0, 104.0]), LARGE: itertools.cycle([1040.0, 1000.0, 1020.0])}
    seen = set()

    def lucky(setting, message, _number):
        first = (setting, message) not in seen
        seen.add((setting, message))
        if setting.is_default:
            return next(took[message.size_bytes])
        return (100.0 if message.size_bytes == SMALL else 1000.0) * (0.9 if first else 1.1)

    result = run(store, lucky)

    assert len([t for t in result.trials if t.setting.is_default]) > 1
    verdict = result.recommendation.table.verdict
    assert not verdict.blocks
    assert verdict.default_us == median_scores(result.trials)[DEFAULT]
    assert sum(r.calls.calls_per_step * r.default_us for r in result.messages) == pytest.approx(verdict.default_us)


def test_an_earlier_proof_shows_no_saving_beside_a_verdict_without_one(store):
    run(store)
    result = run(store, min_effect=0.9)
    assert not result.recommendation.table.verdict.blocks
    assert [row.saved_us for row in result.messages] == [0.0] * len(result.messages)


def test_a_flat_landscape_keeps_the_default_without_a_proof(store):
    result = run(store, lambda *_: 10.0, trials=30)

    found = result.recommendation
    assert found.table.verdict.decision is Decision.KEEP_DEFAULT
    assert f"none of {found.coverage.settings} settings beats the NCCL default" in found.table.verdict.reason
    assert found.coverage.is_enough
    assert len(found.coverage.measured) == 6
    assert not [t for t in result.trials if t.phase is Phase.PROVE]


@pytest.mark.parametrize("budget", [{"trials": 1}, {"trials": 3}, {"gpu_hours": 1e-9}, {"steps": 1, "trials": 3}])
def test_a_search_that_a_budget_ends_early_is_undecided(store, budget):
    found = run(store, lambda *_: 10.0, **budget).recommendation

    assert found.table.verdict.decision is Decision.UNDECIDED
    assert "too few settings tried" in found.table.verdict.reason
    assert found.coverage.untried


@pytest.mark.parametrize("weaker", [{"trials": 1}, {"min_effect": 0.9}, {"blocks": 1}, {"blocks": 3, "trials": 1}])
def test_a_weaker_study_replaces_no_proven_revision(store, weaker):
    """It is stored and not active, and says which revision jobs keep and how to activate it."""
    proven = run(store).recommendation
    weak = run(store, study="weak", **weaker).recommendation

    assert weak.table.verdict.decision is not Decision.TUNED
    assert [r.id for r in store.recommendations.newest(cluster="pair", model="w")] == [proven.id]
    words = store.revisions.publication(weak.id)
    assert f"{proven.id} (demonstration 1.33x) remains active" in words
    assert f"`ncclt admin recommendations approve {weak.id}`" in words

    store.revisions.approve(weak.id, Actor(who="ann"))
    assert [r.id for r in store.recommendations.newest(cluster="pair", model="w")] == [weak.id], (
        "a person decides otherwise"
    )


def test_a_better_proof_replaces_a_revision_and_names_it(store):
    first = run(store, study="first", trials=1).recommendation
    better = run(store, study="second").recommendation

    assert [r.id for r in store.recommendations.newest(cluster="pair", model="w")] == [better.id]
    words = store.revisions.publication(better.id)
    assert f"replaces {first.id} (undecided)" in words
    assert f"to restore that one: `ncclt admin recommendations activate {first.id}`" in words


def test_a_gain_that_hardly_shortens_the_step_is_not_tuned(store):
    """A third less communication, of which a thousandth of the step is exposed."""
    workload = replace(WORKLOAD, step_time_us=2_000_000.0, exposed_us=2_000.0)
    budget = Budget(trials=30, process_wide=())
    result = tune_quietly(TuneRequest(workload=workload, budget=budget), make_testbed(per_size), store)

    verdict = result.recommendation.table.verdict
    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "at most 0.025 % of a step" in verdict.reason
    assert " % threshold (" in verdict.reason, "a threshold of communication time names its share of the step"


def test_wrong_data_in_the_proof_disqualifies_what_the_search_believed_in(store):
    """The setting is right until the proof and wrong ever after: no later look at it may forget that."""
    before = [t for t in run(store, study="right", trials=30).trials if t.phase is not Phase.PROVE]
    good = sum(t.setting.algorithm is Algorithm.TREE and t.setting.protocol is Protocol.LL for t in before)
    seen = itertools.count()

    def turns_wrong(setting, message, number):
        tree = setting.algorithm is Algorithm.TREE and setting.protocol is Protocol.LL
        if tree and next(seen) >= good * len(WORKLOAD.messages):
            return Outcome.WRONG_RESULT
        return per_size(setting, message, number)

    result = run(store, turns_wrong, study="wrong", trials=30)

    assert result.recommendation.table.verdict.decision is Decision.KEEP_DEFAULT
    assert "wrong_result" in result.recommendation.table.verdict.reason


def test_the_same_request_resumes_and_publishes_nothing_twice(store):
    first = run(store)
    place = make_testbed(per_size)
    second = run(store, place=place)

    assert place.runner.launches == []
    assert second.resumed == len(first.trials)
    assert second.recommendation == first.recommendation
    assert len(store.recommendations.find()) == 1


def test_an_interrupted_study_publishes_nothing_and_goes_on(store):
    asked = itertools.count()
    stopped = run(store, interrupted=lambda: "told to stop" * (next(asked) >= 3))

    assert stopped.recommendation is None
    assert (stopped.study.state, stopped.study.reason) == (StudyState.INTERRUPTED, "told to stop")
    assert store.recommendations.find() == ()
    assert run(store).recommendation.table.verdict.decision is Decision.TUNED


def test_an_interruption_during_the_proof_goes_on_with_the_proof(store):
    whole = len(run(store, study="whole").trials)
    asked = itertools.count()
    stopped = run(store, study="stopped", interrupted=lambda: "told to stop" * (next(asked) >= whole - 5))
    assert stopped.recommendation is None

    done = run(store, study="stopped")

    assert len(done.trials) == whole
    assert done.recommendation.table.verdict.decision is Decision.TUNED


def test_a_failing_default_stops_and_keeps_the_trial(store):
    with pytest.raises(StudyStoppedError, match="the NCCL default does not run"):
        run(store, lambda *_: Outcome.TIMEOUT)
    (stopped,) = store.studies.page().items
    assert stopped.trials == 1
    assert stopped.study.state is StudyState.INTERRUPTED
    assert "the NCCL default does not run" in stopped.study.reason

    assert run(store).recommendation is not None, "once repaired, the same study goes on"


def test_a_name_that_means_another_study_is_refused(store):
    run(store, study="mine")

    with pytest.raises(UsageError):
        run(store, study="mine", process_wide=("BUFFSIZE",))


def costs(ranks=4, nodes=1):
    row = PrintedCost(Collective.ALL_REDUCE, Algorithm.RING, Protocol.SIMPLE, 10.0, 100.0)
    return PrintedCosts(version="2.27.3", tables=(PrintedTable(ranks=ranks, nodes=nodes, costs=(row,)),))


def test_cost_tables_are_kept_with_the_study(store):
    """The same study resumed without the log goes on from its tables, and says so."""
    first = run(store, trials=6, printed_costs=costs())
    again = run(store, trials=8)

    assert store.studies.get(first.study.id).printed_costs == costs()
    assert again.study.id == first.study.id
    for result in (first, again):
        assert [note for note in result.notes if "cost tables printed by NCCL 2.27.3" in note]
    assert not [note for note in run(store, study="other").notes if "cost tables" in note]


def test_cost_tables_of_another_job_are_refused_before_anything_is_stored(store):
    with pytest.raises(UsageError, match="8 ranks on 2 nodes, not of 4 ranks on 1 node"):
        run(store, printed_costs=costs(ranks=8, nodes=2))
    assert store.studies.page().items == ()


def test_a_stored_study_does_not_change_what_it_began_from(store):
    run(store, study="estimated")
    with pytest.raises(UsageError, match="NCCL's cost tables: stored none"):
        run(store, study="estimated", printed_costs=costs())
    run(store, study="told", printed_costs=costs())
    assert run(store, study="told", printed_costs=costs()).recommendation is not None


def test_another_sampler_makes_another_study_and_is_refused_under_the_name_of_this_one(store):
    ours = run(store)
    random = run(store, sampler="optuna.samplers:RandomSampler")

    assert "RandomSampler" in random.study.name
    assert random.study.id != ours.study.id
    assert (store.studies.get(ours.study.id).sampler, store.studies.get(random.study.id).sampler) == (
        "",
        "optuna.samplers:RandomSampler",
    )
    with pytest.raises(UsageError, match="sampler: stored ncclt's own, asked for"):
        run(store, study=ours.study.name, sampler="optuna.samplers:RandomSampler")
    with pytest.raises(UsageError, match="must be MODULE:CLASS"):
        run(store, sampler="random")


def test_the_optuna_study_is_the_one_that_ran(store, optuna_database):
    result = run(store)
    storage = optuna.storages.RDBStorage(store.optuna_url)
    shown = optuna.load_study(study_name=result.study.name, storage=storage).get_trials()
    storage.remove_session()
    storage.engine.dispose()
    searched = [trial for trial in result.trials if trial.phase is Phase.SEARCH]

    assert [trial.user_attrs["setting"] for trial in shown] == [trial.setting.label for trial in searched]
    assert {trial.state.name for trial in shown} == {"COMPLETE"}


def test_optuna_shows_the_proof_in_a_study_of_its_own_and_both_have_the_verdict(store, optuna_database):
    result = run(store)
    storage = optuna.storages.RDBStorage(store.optuna_url)
    search, proof = (
        optuna.load_study(study_name=f"{result.study.name}{part}", storage=storage) for part in ("", " (proof)")
    )
    attributes, shown = (search.user_attrs, proof.user_attrs), proof.get_trials()
    storage.remove_session()
    storage.engine.dispose()
    launched = [trial for trial in result.trials if trial.phase is not Phase.SEARCH]

    assert attributes[0] == attributes[1]
    assert attributes[0]["workload"] == WORKLOAD.name
    assert (attributes[0]["times"], attributes[0]["verdict"]) == ("SIMULATED", "tuned")
    assert attributes[0]["verdict_reason"] == result.verdict.reason
    assert [trial.user_attrs["phase"] for trial in shown] == [trial.phase.value for trial in launched]
    assert [trial.value for trial in shown] == [trial.score_us for trial in launched]
    assert {trial.params.get("arm") for trial in shown} >= {"default", "table"}


def test_a_sampler_with_arguments_names_the_study_by_its_class(store):
    found = run(store, sampler="optuna.samplers:TPESampler(n_startup_trials=4)")

    assert found.study.name.endswith("-TPESampler")
    assert found.study.sampler == "optuna.samplers:TPESampler(n_startup_trials=4)"
