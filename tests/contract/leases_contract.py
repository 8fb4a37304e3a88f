"""What every store must do so that several workers can share a study: mix this into a class with a `store` fixture."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Claim, Phase, StudyState
from ncclt.core.trial import Outcome
from ncclt.store import leases
from ncclt.store.database import now_s
from ncclt.store.leases import SILENT_S, _started, this_worker
from ncclt.store.store import Store
from ncclt.testing.samples import sample_study, sample_trial

ME = this_worker()
OTHER = "elsewhere/4026531836/17/4711"
RING, TREE, NVLS = (Setting(algorithm=a) for a in (Algorithm.RING, Algorithm.TREE, Algorithm.NVLS))


class LeasesContract:
    """Several workers share a study."""

    @pytest.fixture
    def shared(self, store: Store) -> Store:
        """Return a store with one study."""
        store.studies.open(sample_study())
        return store

    def _granted(self, store: Store, setting: Setting, *, repeat: int = 0, worker: str = ME) -> Claim:
        """Claim a launch that must be granted."""
        claim = self._claim(store, setting, repeat=repeat, worker=worker)
        assert claim is not None
        return claim

    def _claim(self, store: Store, setting: Setting, *, repeat: int = 0, worker: str = ME) -> Claim | None:
        """Claim a launch of the search."""
        return store.leases.claim("abc123", setting, phase=Phase.SEARCH, repeat=repeat, worker=worker)

    def test_study_whose_worker_dies_before_its_first_trial_is_interrupted(self, store: Store) -> None:
        """Its worker is registered with the study itself."""
        study = store.studies.open(sample_study(), worker=f"{ME.rsplit('/', 1)[0]}/0")
        found = store.studies.get(study.id)
        assert (found.state, found.reason) == (StudyState.INTERRUPTED, leases.ABANDONED)

    def test_two_workers_never_get_one_number_or_one_setting(self, shared: Store) -> None:
        """A number and a setting go to one worker at a time."""
        first = self._granted(shared, RING)
        assert (first.number, first.repeat) == (0, 0)
        assert self._claim(shared, RING, worker=OTHER) is None
        assert self._granted(shared, TREE, worker=OTHER).number == 1
        assert [(worker, claim.number) for worker, claim in shared.leases.running("abc123")] == [(ME, 0), (OTHER, 1)]

    def test_who_knows_of_the_earlier_launch_may_repeat_it(self, shared: Store) -> None:
        """A repeat is intended; two first launches are not."""
        claim = self._granted(shared, RING)
        shared.trials.add("abc123", replace(sample_trial(claim.number), setting=RING), worker=ME)
        assert shared.leases.running("abc123") == ()
        assert self._claim(shared, RING, worker=OTHER) is None
        assert self._granted(shared, RING, repeat=1, worker=OTHER).number == 1

    def test_workers_together_never_exceed_the_budget(self, shared: Store) -> None:
        """The budget of a phase is shared; a failed default does not count."""
        failed = replace(sample_trial(0).result, outcome=Outcome.CRASHED)
        shared.trials.add("abc123", replace(sample_trial(0), setting=DEFAULT, result=failed, score_us=None))
        given = [
            shared.leases.claim("abc123", setting, phase=Phase.SEARCH, repeat=0, worker=worker, most=2)
            for setting, worker in ((RING, ME), (TREE, OTHER), (NVLS, ME))
        ]
        assert [claim and claim.number for claim in given] == [1, 2, None]
        shared.trials.add("abc123", replace(sample_trial(1), setting=RING), worker=ME)
        ended = shared.leases.claim("abc123", NVLS, phase=Phase.SEARCH, repeat=0, worker=ME, most=2)
        assert ended is None, "one has ended, and one runs"
        other = shared.leases.claim("abc123", NVLS, phase=Phase.CONFIRM, repeat=0, worker=ME, most=2)
        assert other is not None
        assert other.number == 3

    def test_the_claim_of_a_dead_process_is_free_at_once(self, shared: Store) -> None:
        """On this machine a dead process is noticed."""
        done = subprocess.run(
            [sys.executable, "-c", "from ncclt.store.leases import this_worker; print(this_worker())"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert self._granted(shared, RING, worker=done.stdout.strip()).number == 0
        assert self._granted(shared, RING).number == 0

    def test_a_silent_worker_elsewhere_is_given_up_and_its_late_result_still_counts(
        self, shared: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its number was reused, its result is kept under a new one."""
        late = self._granted(shared, RING, worker=OTHER)
        monkeypatch.setattr(leases, "now_s", lambda connection: now_s(connection) + SILENT_S + 1)
        mine = self._granted(shared, RING)
        assert mine.number == late.number
        kept = shared.trials.add("abc123", replace(sample_trial(late.number), setting=RING), worker=OTHER)
        assert kept.number == late.number + 1
        other = replace(sample_trial(mine.number), setting=RING, started="2026-01-01T00:01:00Z")
        assert shared.trials.add("abc123", other, worker=ME).number == mine.number
        assert [trial.number for trial in shared.trials.find("abc123")] == [0, 1]
        assert [trial.number for trial in shared.trials.find("abc123", without={0})] == [1]

    def test_a_result_whose_answer_was_lost_is_kept_once(self, shared: Store) -> None:
        """Stored again, it is found under its number, or under its new one if its own was taken."""
        claim = self._granted(shared, RING)
        trial = replace(sample_trial(claim.number), setting=RING, started="2026-01-01T00:01:00Z")
        assert shared.trials.add("abc123", trial, worker=ME) == trial
        assert shared.trials.add("abc123", trial, worker=ME) == trial
        other = self._granted(shared, DEFAULT)
        assert shared.trials.add("abc123", replace(trial, number=other.number), worker=ME) == trial
        assert shared.trials.find("abc123") == (trial,)

    def test_a_study_whose_workers_have_all_ended_is_not_running(self, shared: Store) -> None:
        """Neither after the last one left without saying how it ended, nor after kill -9; a new worker resumes it."""

        def seen() -> set[StudyState]:
            """Return the state as every reader has it."""
            running, recent, page = shared.studies.running(), shared.studies.recent(limit=9), shared.studies.page()
            (listed,), (one,) = (*running, *recent), page.items
            (counted,) = {state for (_, state), count in shared.counts()["studies"].items() if count}
            is_running = bool(shared.studies.running(cluster=one.study.cluster.name))
            of_pair = any(pair.running for pair in shared.recommendations.pairs())
            assert is_running == of_pair == bool(running)
            return {shared.studies.get("abc123").state, one.study.state, listed.study.state, StudyState(counted)}

        assert seen() == {StudyState.RUNNING}  # it has just been stored
        for worker in (ME, OTHER):
            shared.leases.enter("abc123", worker)
        shared.leases.leave("abc123", OTHER)
        assert seen() == {StudyState.RUNNING}
        shared.leases.leave("abc123", ME)
        assert seen() == {StudyState.INTERRUPTED}
        assert "to resume" in shared.studies.get("abc123").reason

        shared.studies.set_state("abc123", StudyState.RUNNING, "")
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            dead = f"{ME.rsplit('/', 2)[0]}/{process.pid}/{_started(process.pid)}"
            shared.leases.enter("abc123", dead)
            assert seen() == {StudyState.RUNNING}
            process.kill()
        assert seen() == {StudyState.INTERRUPTED}
        shared.leases.enter("abc123", ME)
        shared.studies.set_state("abc123", StudyState.RUNNING, "")
        assert seen() == {StudyState.RUNNING}
        shared.studies.set_state("abc123", StudyState.DONE, "nothing more to gain")
        shared.leases.leave("abc123", ME)
        assert (seen(), shared.studies.get("abc123").reason) == ({StudyState.DONE}, "nothing more to gain")

    def test_only_one_worker_ends_a_study_until_it_leaves(self, shared: Store) -> None:
        """A worker that leaves gives up all that it held."""
        shared.leases.enter("abc123", ME)
        shared.leases.enter("abc123", OTHER)
        assert shared.leases.workers("abc123") == tuple(sorted((ME, OTHER)))
        assert shared.leases.acquire("abc123", "end", ME)
        assert shared.leases.acquire("abc123", "end", ME)
        assert not shared.leases.acquire("abc123", "end", OTHER)
        shared.leases.renew("abc123", ME)
        shared.leases.leave("abc123", ME)
        assert shared.leases.workers("abc123") == (OTHER,)
        assert shared.leases.acquire("abc123", "end", OTHER)
