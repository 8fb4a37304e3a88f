"""The trial log of a study that several workers share."""

import pytest

from ncclt.core.algorithms import Algorithm
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Outcome, TrialResult
from ncclt.errors import StoreError
from ncclt.store.journal import StudyTrialLog
from ncclt.store.leases import this_worker
from ncclt.testing.samples import sample_study

RING, TREE = Setting(algorithm=Algorithm.RING), Setting(algorithm=Algorithm.TREE)


@pytest.fixture
def study(store):
    return store.studies.open(sample_study())


def trial_log_of(store, study):
    return StudyTrialLog(store, study, now=lambda: "2026-01-01T00:00:00+00:00", renew_s=0.01)


def trial_of(claim):
    return Trial(
        number=claim.number,
        phase=claim.phase,
        setting=claim.setting,
        repeat=claim.repeat,
        result=TrialResult(outcome=Outcome.OK, wall_s=2.0, place="n1,n2"),
        score_us=1.0,
    )


def test_a_trial_is_claimed_kept_and_dated(store, study):
    with trial_log_of(store, study) as trial_log:
        claim = trial_log.claim(RING, phase=Phase.SEARCH)
        assert list(trial_log.refresh()) == [claim]
        kept = trial_log.add(trial_of(claim))
        assert (kept.started, list(trial_log.refresh())) == ("2026-01-01T00:00:00+00:00", [])
        assert list(trial_log.trials()) == [kept]
        assert trial_log.claim(RING, phase=Phase.CONFIRM).repeat == 1
    assert store.trials.find(study.id) == (kept,)
    assert store.leases.running(study.id) == ()


def test_what_another_worker_launched_is_seen_and_not_launched_again(store, study):
    with trial_log_of(store, study) as trial_log:
        other = store.leases.claim(study.id, RING, phase=Phase.SEARCH, repeat=0, worker="elsewhere/1/2/3")
        assert trial_log.claim(RING, phase=Phase.SEARCH) is None
        assert list(trial_log.refresh()) == [other]
        store.trials.add(study.id, trial_of(other), worker="elsewhere/1/2/3")
        assert list(trial_log.refresh()) == []
        assert [t.number for t in trial_log.trials()] == [0]
        assert trial_log.claim(TREE, phase=Phase.SEARCH).number == 1


@pytest.mark.parametrize("other", ["0/1/2/3", "~/1/2/3"])
def test_only_who_is_alone_is_told_so_and_one_alone_may_end(store, study, other):
    with trial_log_of(store, study) as trial_log:
        assert trial_log.is_alone()
        store.leases.enter(study.id, other)
        assert not trial_log.is_alone()
        assert store.leases.acquire(study.id, "end", other)
        assert not trial_log.may_end()
        store.leases.leave(study.id, other)
        assert trial_log.may_end()


def test_a_worker_says_that_it_is_alive_and_leaves_nothing_behind(store, study):
    with trial_log_of(store, study) as trial_log:
        trial_log.claim(DEFAULT, phase=Phase.SEARCH)
        assert store.leases.workers(study.id) == (this_worker(),)
    assert (store.leases.workers(study.id), store.leases.running(study.id)) == ((), ())


@pytest.mark.parametrize("error", [StoreError("the disk is full"), ValueError("a bug")])
def test_a_store_that_fails_when_a_worker_leaves_hides_no_other_error(store, study, monkeypatch, error):
    def failing(*_):
        raise StoreError("the disk is full")

    def leave():
        with trial_log_of(store, study):
            monkeypatch.setattr(store.leases, "leave", failing)
            if not isinstance(error, StoreError):
                raise error

    with pytest.raises(type(error), match=str(error)):
        leave()
