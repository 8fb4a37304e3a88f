"""The stored Optuna study is the one that ran, and agrees with our trials even after a worker was killed."""

import math
from dataclasses import replace

import optuna
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.budget import Budget
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Claim, Phase
from ncclt.core.trial import Outcome
from ncclt.errors import StoreError, StudyStoppedError
from ncclt.measure.trial import launch, launch_claim, list_search_trials
from ncclt.search import optuna_tables
from ncclt.search.loop import Search
from ncclt.search.named_sampler import NamedSampler, named_sampler
from ncclt.search.optuna_study import MOST_ASKS, OptunaStudy
from ncclt.search.optuna_tables import SETTING
from ncclt.search.space import cluster_space, recorded_space
from ncclt.testing.fakes import FakeRunner, FakeTrialLog
from ncclt.testing.samples import sample_study


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'optuna.db'}"


@pytest.fixture
def worker(cluster, workload, url):
    """Open an Optuna study as a worker does; one that is not used in a `with` block dies."""

    def opened(**options):
        space = options.pop("space", None) or cluster_space(workload.collectives, cluster, parameters={})
        study = replace(sample_study(options.pop("name", "s")), cluster=cluster, workload=workload, seed=1)
        return OptunaStudy(space, study, **{"storage_url": url} | options)

    return opened


@pytest.fixture
def runner(cluster, landscape):
    return FakeRunner(cluster, landscape)


@pytest.fixture
def trial_log(runner, workload):
    """The default was launched."""
    log = FakeTrialLog()
    launch(runner, workload, log, DEFAULT, phase=Phase.SEARCH)
    return log


def kept(url):
    """What `optuna.load_study` shows."""
    storage = optuna.storages.RDBStorage(url)
    trials = optuna.load_study(study_name="s", storage=storage).get_trials()
    storage.remove_session()
    storage.engine.dispose()
    return trials


def enqueue(url, *points):
    """Enqueue points as a user of Optuna does."""
    storage = optuna.storages.RDBStorage(url)
    for point in points:
        optuna.load_study(study_name="s", storage=storage).enqueue_trial(point)
    storage.remove_session()
    storage.engine.dispose()


def ask(optuna_study, trial_log):
    """Ask for a proposal and begin its launch."""
    proposal = optuna_study.propose(trial_log.trials(), running=trial_log.refresh())
    claim = trial_log.claim(proposal.setting, phase=Phase.SEARCH)
    optuna_study.start(claim, proposal)
    return claim


def test_optuna_shows_a_launch_while_it_runs_and_what_it_gave(worker, trial_log, runner, workload, url):
    with worker() as optuna_study:
        optuna_study.resume(trial_log.trials()[0], trial_log.trials())
        claim = ask(optuna_study, trial_log)
        default, running = kept(url)
        optuna_study.tell(claim, launch_claim(runner, workload, trial_log, claim))
    _, told = kept(url)

    assert (default.state.name, default.value, default.user_attrs["outcome"]) == ("COMPLETE", 0.0, "ok")
    assert (running.state.name, running.user_attrs["setting"]) == ("RUNNING", claim.setting.label)
    forced = claim.setting
    assert running.params == {
        "algorithm": forced.algorithm.value,
        "protocol": forced.protocol.value,
        "channels": forced.channels or "auto",
    }
    assert {default.params[name] for name in running.params} == {"auto"}
    assert running.user_attrs["reason"] == "new, among the best by NCCL's cost model"
    assert running.system_attrs["ncclt:proposal"]["expected_gain"] > 0
    assert (told.state.name, told.user_attrs["outcome"], told.user_attrs["ncclt_trial"]) == ("COMPLETE", "ok", 1)
    assert told.user_attrs["time_per_step_us"] == trial_log.trials()[1].score_us
    assert {trial.user_attrs["phase"] for trial in kept(url)} == {"search"}


def test_a_launch_that_fails_has_a_value_that_samplers_learn_from(worker, trial_log, workload, cluster, url):
    with worker() as optuna_study:
        optuna_study.resume(trial_log.trials()[0], trial_log.trials())
        claim = ask(optuna_study, trial_log)
        crashing = FakeRunner(cluster, lambda *_: Outcome.CRASHED)
        optuna_study.tell(claim, launch_claim(crashing, workload, trial_log, claim))
    told = kept(url)[1]

    assert (told.state.name, told.user_attrs["outcome"]) == ("COMPLETE", "crashed")
    assert told.value == pytest.approx(math.log(2)), "as if it took twice as long"


def test_a_database_that_is_away_is_asked_again_before_the_study_ends(monkeypatch):
    pauses = []
    monkeypatch.setattr(optuna_tables.time, "sleep", pauses.append)
    answers = iter(["away", "away", "here"])

    def ask_database():
        if (answer := next(answers, "away")) == "away":
            raise optuna.exceptions.StorageInternalError("the server is away")
        return answer

    assert (optuna_tables.with_retries(ask_database), len(pauses)) == ("here", 2)
    with pytest.raises(StoreError, match="Optuna's tables cannot be used: the server is away"):
        optuna_tables.with_retries(ask_database)


@pytest.mark.parametrize("error", [StoreError("the server is away"), StudyStoppedError("the default fails")])
def test_a_database_that_fails_at_the_end_hides_no_other_error(worker, trial_log, monkeypatch, error):
    def failing(_asked):
        raise StoreError("the server is away")

    def search_with(optuna_study):
        with optuna_study:
            optuna_study.resume(trial_log.trials()[0], trial_log.trials())
            ask(optuna_study, trial_log)
            monkeypatch.setattr(optuna_study, "_fail", failing)
            if not isinstance(error, StoreError):
                raise error

    with pytest.raises(type(error), match=error.message):
        search_with(worker())


def test_a_study_that_is_forgotten_begins_afresh_and_others_stay(worker, trial_log, url):
    for name in ("s", "s (proof)", "other"):
        with worker(storage_url=url, name=name) as optuna_study:
            optuna_study.resume(trial_log.trials()[0], trial_log.trials())
    optuna_tables.forget_studies(url, ["s", "never seen"])
    assert optuna.get_all_study_names(url) == ["other"]
    with worker():
        assert kept(url) == []


def test_a_proposal_that_is_not_launched_leaves_no_trial(worker, trial_log, url):
    with worker() as optuna_study:
        optuna_study.resume(trial_log.trials()[0], trial_log.trials())
        first = optuna_study.propose(trial_log.trials())
        assert optuna_study.propose(trial_log.trials()) == first
    states = [trial.state.name for trial in kept(url)]

    assert states == ["COMPLETE"]


def test_a_worker_that_dies_beside_others_gives_its_setting_back(worker, trial_log, url):
    with worker() as living:
        living.resume(trial_log.trials()[0], trial_log.trials())
        dead = worker()
        dead.resume(trial_log.trials()[0], trial_log.trials(), only_worker=False)
        claim = ask(dead, trial_log)
        trial_log.others = [claim]
        assert living.propose(trial_log.trials(), running=[claim]).setting != claim.setting
        trial_log.others = []
        assert living.propose(trial_log.trials()).setting == claim.setting
    assert "RUNNING" not in {trial.state.name for trial in kept(url)}


def test_a_dead_workers_launch_ends_although_another_launch_was_given_its_number(
    worker, trial_log, runner, workload, url
):
    with worker() as living:
        living.resume(trial_log.trials()[0], trial_log.trials())
        dead = worker()
        dead.resume(trial_log.trials()[0], trial_log.trials(), only_worker=False)
        lost = ask(dead, trial_log)
        claim = ask(living, trial_log)
        assert claim == lost, "its claim is gone, so number and setting are free again"
        living.tell(claim, launch_claim(runner, workload, trial_log, claim))
        living.propose(trial_log.trials())
    assert [trial.state.name for trial in kept(url)] == ["COMPLETE", "FAIL", "COMPLETE"]


def test_what_a_worker_stored_and_never_told_is_told_by_another(worker, trial_log, runner, workload, url):
    with worker() as living:
        living.resume(trial_log.trials()[0], trial_log.trials())
        dead = worker()
        dead.resume(trial_log.trials()[0], trial_log.trials(), only_worker=False)
        claim = ask(dead, trial_log)
        living.propose(trial_log.trials(), running=[claim])
        trial = launch_claim(runner, workload, trial_log, claim)
        again = living.propose(trial_log.trials())
        dead.tell(claim, trial)  # it was only slow
    told = [trial for trial in kept(url) if trial.state.name == "COMPLETE"]

    assert again.setting != claim.setting
    assert [trial.user_attrs["ncclt_trial"] for trial in told] == [0, 1]


def test_what_a_worker_stored_after_it_was_taken_for_dead_is_added_by_the_next_one(
    worker, trial_log, runner, workload, url
):
    dead = worker()
    dead.resume(trial_log.trials()[0], trial_log.trials())
    claim = ask(dead, trial_log)
    with worker() as successor:
        successor.resume(trial_log.trials()[0], trial_log.trials())
    ended = [trial.state.name for trial in kept(url)]
    launch_claim(runner, workload, trial_log, claim)
    with worker() as successor:
        successor.resume(trial_log.trials()[0], trial_log.trials())
    told = [trial.user_attrs["ncclt_trial"] for trial in kept(url) if trial.state.name == "COMPLETE"]

    assert ended == ["COMPLETE", "FAIL"]
    assert told == [0, 1]


def test_a_worker_that_was_taken_for_dead_still_counts_under_the_number_that_it_was_given(
    worker, trial_log, runner, workload, url
):
    with worker() as slow, worker() as other:
        for optuna_study in (slow, other):
            optuna_study.resume(trial_log.trials()[0], trial_log.trials(), only_worker=False)
        claim = ask(slow, trial_log)
        other.propose(trial_log.trials(), running=[claim])
        taken = ask(other, trial_log)  # its claim is gone: number 1 and the setting are free again
        assert taken == claim
        other.tell(taken, launch_claim(runner, workload, trial_log, taken))
        late = launch(runner, workload, trial_log, claim.setting, phase=Phase.SEARCH)
        slow.tell(claim, late)
    told = [trial.user_attrs["ncclt_trial"] for trial in kept(url) if trial.state.name == "COMPLETE"]

    assert sorted(told) == [0, 1, 2]


def test_a_launch_that_another_worker_tells_at_the_same_moment_is_told_once(worker, trial_log, runner, workload, url):
    with worker() as optuna_study:
        optuna_study.resume(trial_log.trials()[0], trial_log.trials())
        claim = ask(optuna_study, trial_log)
        storage = optuna_study._storage
        end = storage.set_trial_state_values

        def too_late(trial_id, *_arguments):
            storage.set_trial_state_values = end
            end(trial_id, optuna.trial.TrialState.COMPLETE, [-0.5])
            raise optuna.exceptions.UpdateFinishedTrialError

        storage.set_trial_state_values = too_late
        optuna_study.tell(claim, launch_claim(runner, workload, trial_log, claim))

    assert [(trial.state.name, trial.value) for trial in kept(url)] == [("COMPLETE", 0.0), ("COMPLETE", -0.5)]


def test_what_a_user_enqueues_in_optuna_is_launched_next(worker, trial_log, url):
    with worker() as optuna_study:
        optuna_study.resume(trial_log.trials()[0], trial_log.trials())
        enqueue(url, {"algorithm": "ring", "protocol": "ll", "channels": 8})
        claim = ask(optuna_study, trial_log)
        assert optuna_study.propose(trial_log.trials(), running=[claim]).setting != claim.setting

    assert claim.setting == Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, channels=8)
    assert kept(url)[1].params == {"algorithm": "ring", "protocol": "ll", "channels": 8}
    assert kept(url)[1].user_attrs["reason"] == "enqueued by a user"


def test_a_default_that_fails_when_launched_again_counts_for_nothing(worker, trial_log, workload, cluster, url):
    with worker() as optuna_study:
        optuna_study.resume(trial_log.trials()[0], trial_log.trials())
        proposal = optuna_study.propose(trial_log.trials())
        claim = Claim(number=1, setting=DEFAULT, repeat=1, phase=Phase.SEARCH)
        optuna_study.start(claim, proposal)
        optuna_study.tell(
            claim, launch_claim(FakeRunner(cluster, lambda *_: Outcome.CRASHED), workload, trial_log, claim)
        )
        assert optuna_study.propose(list_search_trials(trial_log)).setting == proposal.setting
    assert kept(url)[1].state.name == "FAIL"


def test_an_enqueued_trial_that_means_no_setting_is_refused_with_its_values(worker, trial_log, url):
    with worker() as optuna_study:
        optuna_study.resume(trial_log.trials()[0], trial_log.trials())
        enqueue(url, {"algorithm": "ring", "protocol": "ll", "channels": 7}, {"chanels": 8})
        claim = ask(optuna_study, trial_log)

    _, *refused, launched = kept(url)
    assert [trial.state.name for trial in refused] == ["FAIL", "FAIL"]
    assert refused[1].user_attrs["reason"] == "no setting of the search space: {'chanels': 8}"
    assert launched.user_attrs["setting"] == claim.setting.label


def test_an_enqueued_setting_that_another_worker_launches_waits(worker, trial_log, url):
    with worker() as first, worker() as second:
        for optuna_study in (first, second):
            optuna_study.resume(trial_log.trials()[0], trial_log.trials(), only_worker=False)
        enqueue(url, {"algorithm": "ring", "protocol": "ll"})
        offered, same = first.propose(trial_log.trials()), second.propose(trial_log.trials())
        claims = [Claim(number=n, setting=offered.setting, repeat=0, phase=Phase.SEARCH) for n in (1, 2)]
        first.start(claims[0], offered)
        assert second.propose(trial_log.trials(), running=claims[:1]).setting != offered.setting
        assert same == offered
        second.propose(trial_log.trials(), running=())
        second.start(claims[1], same)  # the first one has taken it from the queue

    assert [trial.user_attrs.get("ncclt_trial") for trial in kept(url)] == [0, 1, 2]


def test_the_trials_of_a_recorded_space_have_values_on_all_axes(cluster, workload, worker, trial_log, url):
    space = recorded_space(cluster_space(workload.collectives, cluster, parameters={}).distinct)
    with worker(space=space) as optuna_study:
        optuna_study.resume(trial_log.trials()[0], trial_log.trials())
        claim = ask(optuna_study, trial_log)
    default, asked = kept(url)

    assert default.params == {"algorithm": "auto", "protocol": "auto", "channels": "auto"}
    assert default.user_attrs[SETTING] == {}
    assert space.setting_with(asked.params) == claim.setting


def run(worker, runner, workload, trial_log, *, sampler, trials=12, **options):
    with worker(sampler=sampler, **options) as optuna_study:
        return Search(
            workload=workload,
            trial_log=trial_log,
            optuna_study=optuna_study,
            budget=Budget(trials=trials),
            clock=lambda: 0.0,
            interrupted=lambda: "",
            watch=lambda _progress: None,
        ).run([runner], only_worker=True)


@pytest.mark.parametrize("name", ["TPESampler", "RandomSampler", "QMCSampler"])
def test_another_sampler_chooses_and_an_interrupted_study_goes_on_as_if_it_had_not_been(
    name, worker, cluster, landscape, workload, url
):
    sampler = named_sampler(f"optuna.samplers:{name}")
    logs = FakeTrialLog(), FakeTrialLog()
    for trials in (5, 12):
        end = run(worker, FakeRunner(cluster, landscape), workload, logs[0], sampler=sampler, trials=trials)
    shown = kept(url)
    run(worker, FakeRunner(cluster, landscape), workload, logs[1], sampler=sampler, storage_url=None)

    settings, whole = ([trial.setting for trial in log.trials()] for log in logs)
    assert end.reason == "budget of 12 trials used"
    assert [trial.user_attrs["ncclt_trial"] for trial in shown if trial.state.name == "COMPLETE"] == list(range(12))
    assert [trial.user_attrs.get("reason") for trial in shown] == [None, *[f"proposed by {name}"] * 11]
    assert settings == whole
    assert len(set(settings)) > len(settings) // 2


@pytest.mark.parametrize(("startup", "least"), [(4, 17), (12, 23)])
def test_patience_begins_after_the_random_trials_of_a_sampler_and_a_launch_per_pair(
    startup, least, worker, cluster, workload
):
    runner = FakeRunner(cluster, lambda s, *_: 10.0 if s.is_default else 20.0)
    sampler = named_sampler(f"optuna.samplers:TPESampler(n_startup_trials={startup})")
    end = run(worker, runner, workload, FakeTrialLog(), trials=100, sampler=sampler)

    assert end.reason == f"converged: none of {least} trials beats the NCCL default"


class Stubborn(optuna.samplers.RandomSampler):
    """Asks for one point again and again."""

    def sample_independent(self, _study, _trial, name, _distribution):
        return {"pair": "ring/ll", "channels": 3}[name]


def test_a_sampler_that_only_asks_for_what_failed_is_given_up(worker, cluster, workload, landscape, url):
    def crashes(setting, message, number):
        ring = (setting.algorithm, setting.protocol) == (Algorithm.RING, Protocol.LL)
        return Outcome.CRASHED if ring else landscape(setting, message, number)

    runner = FakeRunner(cluster, crashes)
    sampler = NamedSampler(name="Stubborn", create=lambda _seed: Stubborn())
    end = run(worker, runner, workload, FakeTrialLog(), sampler=sampler)

    assert end.reason == f"Stubborn proposed failed or running settings {MOST_ASKS} times in a row"
    assert len(runner.launches) == 2
    assert [trial.state.name for trial in kept(url)] == ["COMPLETE", "COMPLETE"]


def test_a_sampler_may_repeat_what_ran(worker, cluster, workload, landscape):
    log = FakeTrialLog()
    run(
        worker,
        FakeRunner(cluster, landscape),
        workload,
        log,
        trials=5,
        sampler=NamedSampler(name="Stubborn", create=lambda _seed: Stubborn()),
    )

    assert [trial.repeat for trial in log.trials()] == [0, 0, 1, 2, 3]


class Broken(optuna.samplers.RandomSampler):
    """Fails when asked."""

    def sample_independent(self, *_arguments):
        raise RuntimeError("no idea")


def test_a_sampler_that_fails_stops_the_study_with_its_reason(worker, cluster, workload, landscape, url):
    sampler = NamedSampler(name="Broken", create=lambda _seed: Broken())
    with pytest.raises(StudyStoppedError, match="the sampler Broken failed: RuntimeError: no idea"):
        run(worker, FakeRunner(cluster, landscape), workload, FakeTrialLog(), sampler=sampler)
    assert [trial.state.name for trial in kept(url)] == ["COMPLETE"]
