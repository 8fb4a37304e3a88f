"""The search loop, its resumption, and its reasons to stop."""

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace

import optuna
import psycopg
import pytest
import sqlalchemy.exc

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.budget import PATIENCE, Budget
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Claim, Phase
from ncclt.core.trial import Outcome
from ncclt.errors import StoreError, StudyStoppedError
from ncclt.measure.trial import launch
from ncclt.search import loop, optuna_tables
from ncclt.search.assemble import assemble, collect_times, expected_us
from ncclt.search.gaussian_process import posterior_mean
from ncclt.search.loop import EQUAL_FAILURES, Search, explain_convergence
from ncclt.search.optuna_study import OptunaStudy
from ncclt.search.space import cluster_space
from ncclt.testing.fakes import FakeRunner, FakeTrialLog
from ncclt.testing.samples import sample_study


def run(cluster, workload, time_of, *, trials=20, trial_log=None, seed=1, storage_url=None, **kwargs):
    runner, kept = FakeRunner(cluster, time_of), trial_log if trial_log is not None else FakeTrialLog()
    expressible = kwargs.pop("expressible", lambda _setting: True)
    space = cluster_space(workload.collectives, cluster, parameters={}, expressible=expressible)
    study = replace(sample_study("s"), cluster=cluster, workload=workload, seed=seed)
    with OptunaStudy(space, study, storage_url=storage_url) as optuna_study:
        end = Search(
            workload=workload,
            trial_log=kept,
            optuna_study=optuna_study,
            budget=kwargs.pop("budget", Budget(trials=trials)),
            clock=kwargs.pop("clock", lambda: 0.0),
            interrupted=kwargs.pop("interrupted", lambda: False),
            watch=kwargs.pop("watch", lambda _progress: None),
            padded=kwargs.pop("padded", ()),
        ).run([runner], only_worker=True)
    return end, runner, kept


def test_the_default_goes_first_and_every_pair_follows(cluster, workload, landscape):
    _, runner, _ = run(cluster, workload, landscape, budget=Budget(trials=16, patience=0))

    assert runner.launches[0] == DEFAULT
    assert len({(s.algorithm, s.protocol) for s in runner.launches if not s.is_default}) == 6


def test_the_first_default_measures_padded_sizes_too_and_they_weigh_nothing(cluster, workload, landscape):
    padded = replace(workload.messages[0].message, size_bytes=48)
    _, _, trial_log = run(cluster, workload, landscape, padded=(padded,))
    measured = [{m.message for m in trial.result.measurements} for trial in trial_log.trials()]
    assert [padded in messages for messages in measured] == [True, *[False] * (len(measured) - 1)]
    _, _, plain = run(cluster, workload, landscape)
    assert [(t.setting, t.score_us) for t in trial_log.trials()] == [(t.setting, t.score_us) for t in plain.trials()]


def test_it_finds_the_best_policy_of_a_known_landscape(cluster, workload, landscape):
    _, _, trial_log = run(cluster, workload, landscape, budget=Budget(trials=40, patience=0))

    policy = assemble(collect_times(trial_log.trials()), workload, version=cluster.version)
    large, small = (policy.setting_for(calls.message) for calls in workload.messages)
    assert (small.algorithm, small.protocol) == (Algorithm.TREE, Protocol.LL)
    assert (large.algorithm, large.protocol, large.channels) == (Algorithm.RING, Protocol.SIMPLE, 16)


def test_what_is_shown_so_far_is_what_the_model_believes_and_not_a_lucky_launch(cluster, workload, landscape):
    """Settings are 6 % too fast or too slow by chance: the fastest of them is partly luck."""
    shown = []
    _, _, trial_log = run(
        cluster,
        workload,
        lambda setting, *launched: landscape(setting, *launched) * (0.94, 1.06)[int(setting.digest(), 16) % 2],
        budget=Budget(trials=12, patience=0),
        watch=shown.append,
    )

    raw = collect_times(trial_log.trials())
    times = posterior_mean(raw, workload, cluster)
    policy = assemble(times, workload, version=cluster.version)
    assert shown[-1].policy_us == expected_us(policy, times, workload, version=cluster.version)
    fastest = assemble(raw, workload, version=cluster.version)
    assert shown[-1].policy_us != expected_us(fastest, raw, workload, version=cluster.version)


def test_a_launch_must_pay_for_itself_over_the_steps_of_the_training(cluster, workload, landscape):
    """A launch of the fake takes 1 ms: more than one step can save, and nothing beside a billion of them."""
    few, many = (
        run(cluster, workload, landscape, budget=Budget(trials=40, steps=steps, patience=0)) for steps in (1, 10**9)
    )

    assert "less than the trial costs over 1 step" in few[0].reason
    assert "steps is less" not in many[0].reason
    assert len(few[1].launches) < len(many[1].launches)


def test_an_interrupted_study_goes_on_as_if_it_had_never_stopped(cluster, workload, landscape, tmp_path):
    whole = run(cluster, workload, landscape, trials=16)[1].launches
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    trial_log = FakeTrialLog()

    for budget in (5, 11, 16):
        run(cluster, workload, landscape, trials=budget, trial_log=trial_log, storage_url=url)

    assert [t.setting for t in trial_log.trials()] == whole


def test_a_launch_that_was_cut_off_has_failed_in_optuna_and_nothing_is_counted_twice(
    cluster, workload, landscape, tmp_path
):
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    trial_log = FakeTrialLog()

    def killed(setting, message, number):
        if number == 9:
            raise KeyboardInterrupt
        return landscape(setting, message, number)

    with pytest.raises(KeyboardInterrupt):
        run(cluster, workload, killed, trials=12, trial_log=trial_log, storage_url=url)
    assert len(trial_log.trials()) == 9
    run(cluster, workload, landscape, trials=12, trial_log=trial_log, storage_url=url)

    study = optuna.load_study(study_name="s", storage=url)
    states = [t.state.name for t in study.get_trials()]
    told = [t.user_attrs["ncclt_trial"] for t in study.get_trials() if "ncclt_trial" in t.user_attrs]
    study._storage.remove_session()
    study._storage._backend.engine.dispose()
    assert sorted(states) == [*["COMPLETE"] * 12, "FAIL"]
    assert sorted(told) == [*range(10), *range(9, 12)]


def test_trials_that_optuna_never_heard_of_are_told_to_it(cluster, workload, landscape, tmp_path):
    """The process died between our commit and Optuna's: our trials are the truth."""
    trial_log = run(cluster, workload, landscape, trials=8)[2]
    url = f"sqlite:///{tmp_path / 'new.db'}"

    whole = run(cluster, workload, landscape, trials=12)[1].launches
    run(cluster, workload, landscape, trials=12, trial_log=trial_log, storage_url=url)

    assert [t.setting for t in trial_log.trials()] == whole


def test_the_time_budget_ends_the_search(cluster, workload, landscape):
    ticks = itertools.count()
    end, runner, _ = run(
        cluster, workload, landscape, budget=Budget(trials=99, seconds=4), clock=lambda: float(next(ticks))
    )

    assert "time budget of 4 s" in end.reason
    assert not end.interrupted
    assert len(runner.launches) < 6


def test_a_wish_to_stop_is_obeyed_after_the_running_trial(cluster, workload, landscape):
    runs = itertools.count()
    end, _, trial_log = run(cluster, workload, landscape, interrupted=lambda: "told to stop" * (next(runs) >= 3))

    assert (end.interrupted, end.reason) == (True, "told to stop")
    assert len(trial_log.trials()) == 4


def test_an_interrupt_of_several_workers_kills_their_launches_and_waits_for_them(monkeypatch):
    ended, told = threading.Event(), []
    search = SimpleNamespace(_work=lambda runner: (ended.wait(), told.append(runner)), _stop=told.append)

    def interrupt(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Search._run_at_once(search, ["a", "b"], ended.set)
    assert (told[0].interrupted, sorted(told[1:])) == (True, ["a", "b"])


@pytest.mark.parametrize(
    "error", [optuna.exceptions.OptunaError("x"), ImportError("x"), OSError("x"), RuntimeError("x")]
)
def test_tables_of_optuna_that_cannot_be_opened_are_an_error_of_the_store(monkeypatch, error):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr(optuna.storages, "RDBStorage", fail)
    with pytest.raises(StoreError, match="Optuna's tables cannot be opened: x"):
        optuna_tables._open_storage("sqlite://")


@pytest.mark.parametrize(
    "error",
    [
        optuna.exceptions.StorageInternalError("An exception is raised during the commit."),
        sqlalchemy.exc.OperationalError("CREATE TABLE", {}, psycopg.OperationalError("the connection is lost")),
    ],
)
def test_a_connection_that_is_lost_while_optunas_tables_are_opened_is_opened_again(monkeypatch, error):
    monkeypatch.setattr(optuna_tables.time, "sleep", lambda _pause_s: None)
    answers = iter([error, error, optuna.storages.InMemoryStorage()])

    def open_tables(*_arguments, **_options):
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    monkeypatch.setattr(optuna.storages, "RDBStorage", open_tables)
    assert isinstance(optuna_tables._open_storage("postgresql://"), optuna.storages.InMemoryStorage)


def test_a_default_that_fails_stops_the_study_with_its_output(cluster, workload):
    with pytest.raises(StudyStoppedError, match="fake crashed"):
        run(cluster, workload, lambda *_: Outcome.CRASHED)


class SharedTrialLog(FakeTrialLog):
    """Another worker launches the default, and is done when we look for the third time."""

    def __init__(self, cluster, workload, time_of):
        super().__init__()
        self.looked = 0
        self._finish = lambda: launch(
            FakeRunner(cluster, time_of), workload, FakeTrialLog(), DEFAULT, phase=Phase.SEARCH
        )
        self.others = [Claim(number=0, setting=DEFAULT, repeat=0, phase=Phase.SEARCH)]

    def refresh(self):
        self.looked += 1
        if self.looked == 3:
            self.others = []
            self.add(self._finish())
        return self.others


def test_a_second_worker_waits_for_the_default_of_the_first(cluster, workload, landscape):
    _, runner, trial_log = run(
        cluster, workload, landscape, trials=3, trial_log=SharedTrialLog(cluster, workload, landscape)
    )

    assert trial_log.looked >= 3
    assert len(runner.launches) == 2
    assert DEFAULT not in runner.launches
    assert [trial.setting.is_default for trial in trial_log.trials()] == [True, False, False]


def test_equal_failures_in_a_row_stop_the_study_and_keep_it(cluster, workload):
    trial_log = FakeTrialLog()

    with pytest.raises(StudyStoppedError, match=f"{EQUAL_FAILURES} trials in a row ended with timeout"):
        run(cluster, workload, lambda s, *_: 10.0 if s.is_default else Outcome.TIMEOUT, trial_log=trial_log)
    assert len(trial_log.trials()) == 1 + EQUAL_FAILURES


def test_a_failed_setting_is_not_launched_again(cluster, workload, landscape):
    def ll_is_wrong(setting, message, number):
        return Outcome.WRONG_RESULT if setting.protocol is Protocol.LL else landscape(setting, message, number)

    _, runner, trial_log = run(cluster, workload, ll_is_wrong, trials=30)
    failed = [t.setting for t in trial_log.trials() if t.score_us is None]

    assert failed
    assert len(failed) == len(set(failed))
    assert len(failed) < len(runner.launches) / 2


def test_a_small_space_ends_the_search_when_repeats_tell_nothing_more(cluster, workload):
    end, runner, _ = run(
        cluster,
        workload,
        lambda s, *_: 10.0 if s.is_default else 40.0,
        budget=Budget(trials=400, patience=0),
        expressible=lambda s: s.algorithm is Algorithm.RING and s.protocol is Protocol.LL,
    )

    assert len(runner.launches) < 40
    assert f"all {len(set(runner.launches))} settings tried" in end.reason


def test_reasons_to_stop(subtests):
    cases = [
        ([100.0] * 10, ""),
        ([100.0] * 30, "beats the NCCL default"),
        ([100.0, 80.0, *[70.0] * 28], "converged"),
        ([100.0 - i for i in range(30)], ""),
    ]
    for history, expected in cases:
        with subtests.test(history=history, expected=expected):
            assert expected in explain_convergence(history, startup=6, patience=PATIENCE)
            assert bool(explain_convergence(history, startup=6, patience=PATIENCE)) is bool(expected)


def test_without_patience_the_search_never_stops_by_itself():
    assert explain_convergence([100.0] * 500, startup=6, patience=0) == ""


def test_a_search_needs_half_a_percent_within_its_patience_to_go_on(subtests):
    cases = [
        ([100.0] * 2 + [80.0] * 4, ""),
        ([100.0] * 2 + [80.0] * 5, "converged: the last 4 trials gained 0.0 %"),
        ([100.0, 80.0, 80.0, 80.0, 80.0, 80.0, 79.7], "converged: the last 4 trials gained 0.4 %"),
        ([100.0, 80.0, 80.0, 80.0, 80.0, 80.0, 79.5], ""),
        ([100.0] * 6 + [99.6], "converged: none of 7 trials beats the NCCL default"),
        ([100.0, 99.4, 99.4, 99.4, 99.4, 99.4, 99.4], "converged: the last 4 trials gained 0.0 %"),
    ]
    for history, reason in cases:
        with subtests.test(history=history, reason=reason):
            assert explain_convergence(history, startup=2, patience=4) == reason


def work_of(history, budget, *, default_us=1000.0):
    """What weighs proposals, after a search with some history in which a launch took 2 s."""
    search = Search(
        workload=None, trial_log=None, optuna_study=None, budget=budget, clock=None, interrupted=None, watch=None
    )
    search._default, search._history = SimpleNamespace(score_us=default_us), history
    trials = [SimpleNamespace(result=SimpleNamespace(wall_s=2.0)) for _ in history]
    return lambda gain: search._explain_low_gain(SimpleNamespace(expected_gain=gain), trials)


def test_a_proposal_that_promises_less_than_half_a_percent_ends_the_search_from_ten_launches_on():
    weigh = work_of([100.0, *[90.0] * 9], Budget(trials=11))

    assert weigh(0.005) == ""
    assert weigh(0.0049) == "converged: expected improvement of the next trial is 0.49 %"
    assert work_of([100.0, *[90.0] * 8], Budget(trials=11))(0.0) == ""
    flat = work_of([100.0, *[99.6] * 9], Budget(trials=11))
    assert flat(0.0) == "converged: none of 10 trials beats the NCCL default"
    assert work_of([100.0, *[90.0] * 9], Budget(trials=11, patience=0))(0.0) == ""


def test_over_the_steps_of_a_job_a_launch_must_save_the_time_that_it_takes():
    """2 s a launch, 1 ms a step, 10,000 steps: a fifth of the time per step."""
    weigh = work_of([100.0, 90.0], Budget(trials=9, steps=10_000))

    assert weigh(0.2) == ""
    assert weigh(0.199).endswith("less than the trial costs over 10000 steps")


def test_four_equal_failures_or_five_different_ones_are_no_reason_to_stop():
    def ended(*outcomes):
        return [SimpleNamespace(result=SimpleNamespace(outcome=o, detail="why")) for o in outcomes]

    loop.check_failures(ended(*[Outcome.TIMEOUT] * 4))
    loop.check_failures(ended(*[Outcome.TIMEOUT] * 4, Outcome.CRASHED))
    loop.check_failures(ended(*[Outcome.OK] * 5))
    with pytest.raises(StudyStoppedError, match="5 trials in a row ended with timeout: why"):
        loop.check_failures(ended(Outcome.OK, *[Outcome.TIMEOUT] * 5))


@pytest.mark.parametrize(("limit", "launches"), [({"seconds": 3}, 3), ({"trials": 3}, 3), ({"gpu_hours": 3e-9}, 1)])
def test_a_budget_that_is_just_used_ends_the_search(cluster, workload, landscape, limit, launches):
    made = []
    end, _, _ = run(
        cluster,
        workload,
        landscape,
        budget=Budget(**({"trials": 99} | limit)),
        clock=lambda: float(len(made)),
        watch=made.append,
    )

    assert "budget of" in end.reason
    assert len(made) == launches
