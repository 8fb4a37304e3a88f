"""What every store must do, on any database: subclass `StoreContract` and return a fresh URL per test."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ncclt.core.api_key import ApiKey, Role
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Arm, Phase, StudyState, Trial
from ncclt.core.trial import Outcome, TrialResult
from ncclt.errors import NotFoundError, StoreError, UsageError
from ncclt.store import Store, open_store, published
from ncclt.store.schema import HEAD
from ncclt.testing.samples import (
    RING,
    TickingClock,
    sample_cluster,
    sample_recommendation,
    sample_study,
    sample_trial,
    sample_workload,
)


def write_trials_for_ever(url: str) -> None:
    """Add trials to the study `abc123`, printing the number of each added one, until killed."""
    with open_store(url) as store:
        store.studies.open(sample_study())
        for number in itertools.count():
            store.trials.add("abc123", sample_trial(number, messages=20))
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


class StoreContract:
    """Tests for every database; the subclass defines `store_url` and `execute`."""

    @pytest.fixture
    def store_url(self) -> str:
        """Return the URL of a new, empty database."""
        raise NotImplementedError("a subclass of StoreContract gives the fixture store_url")

    def execute(self, url: str, statement: str) -> list[tuple[object, ...]]:
        """Run one SQL statement in our schema, bypassing the store, and return its rows."""
        raise NotImplementedError("a subclass of StoreContract gives the method execute")

    @pytest.fixture
    def store(self, store_url: str, tmp_path: Path) -> Iterator[Store]:
        """Return an open store with one shipped workload and no shipped cluster."""
        folder = tmp_path / "profiles"
        (folder / "workloads").mkdir(parents=True)
        shipped = '"name":"bert","provenance":{"source":"model"},"messages":[{"collective":"all_reduce"'
        row = '"dtype":"float32","size_bytes":8,"calls_per_step":1}]'
        (folder / "workloads" / "bert.json").write_text(f'{{"schema":1,{shipped},{row}}}')
        with open_store(store_url, clock=TickingClock(), profiles=folder) as opened:
            yield opened

    def test_opening_twice_migrates_once(self, store: Store, store_url: str) -> None:
        """The first opening makes the tables; the second, without migration, finds them current."""
        with open_store(store_url, migrate=False) as again:
            assert again.migration() == store.migration()
            assert again.migration() == HEAD

    def test_a_study_of_the_same_name_is_resumed(self, store: Store) -> None:
        """Opening a study again gives the stored one, with its first id and its times."""
        first = store.studies.open(sample_study())
        again = store.studies.open(sample_study(id="another"))
        assert again == first
        assert (first.id, first.created, first.seed) == ("abc123", "2026-01-01T00:00:00.000+00:00", 2**70)

    def test_every_node_of_a_job_gets_the_first_answer(self, store: Store, store_url: str) -> None:
        """Whichever process of the service it asks, and whatever that would answer by now."""

        def keep(number: int) -> tuple[str, str]:
            with open_store(store_url, migrate=False) as replica:
                return replica.revisions.keep_job_decision("pair", "j1", question="q", document=f'{{"n": {number}}}')

        with ThreadPoolExecutor(8) as pool:
            (kept,) = set(pool.map(keep, range(16)))
        assert store.revisions.keep_job_decision("pair", "j1", question="another", document="{}") == kept
        for other in (("pair", "j2"), ("other", "j1")):
            assert store.revisions.keep_job_decision(*other, question="q", document="{}") == ("q", "{}")

    def test_another_study_of_the_same_name_is_refused(self, store, subtests):
        """The error names what differs."""
        for changed, said in [
            ({"seed": 5}, "seed"),
            ({"launcher": "replay"}, "launcher"),
            ({"process_wide": ()}, "process-wide parameters: stored BUFFSIZE, asked for none"),
            ({"process_wide": ("NTHREADS",)}, "process-wide parameters: stored BUFFSIZE, asked for NTHREADS"),
            ({"process_wide": ("BUFFSIZE", "NTHREADS")}, "asked for BUFFSIZE NTHREADS"),
            ({"cluster": sample_cluster(nodes=4)}, "nodes"),
            ({"workload": sample_workload(messages=1)}, "workload"),
            ({"simulated": False}, "simulated"),
            ({"way": "+variables"}, r"\(--through, --persistent\): stored \+plugin, asked for \+variables"),
        ]:
            with subtests.test(changed=changed):
                kept = store.studies.open(replace(sample_study(), way="+plugin"))
                with pytest.raises(UsageError, match=said):
                    store.studies.open(replace(kept, **changed))  # type: ignore[arg-type]  # one field by name

    def test_a_study_is_found_by_id_name_and_beginning(self, store: Store) -> None:
        """Several matches are an error, and so is none, with close names in the hint."""
        store.studies.open(sample_study("first", id="abc123"))
        store.studies.open(sample_study("second", id="abd456"))
        assert [store.studies.get(key).name for key in ("abc123", "first", "abc", "abd456")] == ["first"] * 3 + [
            "second"
        ]
        with pytest.raises(UsageError, match="abc123, abd456"):
            store.studies.get("ab")
        for key in ("frist", "", "%"):
            with pytest.raises(NotFoundError) as caught:
                store.studies.get(key)
            assert "ncclt studies list" in caught.value.hint
            assert ("first" in caught.value.hint) == (key == "frist")

    def test_a_second_study_of_the_same_id_is_refused(self, store: Store) -> None:
        """Ids are unique whatever the names."""
        store.studies.open(sample_study("first"))
        with pytest.raises(StoreError, match="abc123"):
            store.studies.open(sample_study("second"))

    def test_trials_come_back_as_they_were(self, store: Store) -> None:
        """Floats are equal to the bit; output that is not text survives; order is by number."""
        failed = Trial(
            number=0,
            phase=Phase.PROVE,
            setting=DEFAULT,
            repeat=3,
            score_us=None,
            arm=Arm.TABLE,
            block=7,
            started="2026-01-01T00:00:00Z",
            result=TrialResult(outcome=Outcome.CRASHED, detail="\x00\udcff µ\n'\""),
        )
        store.studies.open(sample_study())
        store.trials.add("abc123", sample_trial(1, score_us=0.1 + 0.2))
        store.trials.add("abc123", failed)
        assert store.trials.find("abc123") == (failed, sample_trial(1, score_us=0.1 + 0.2))
        assert store.trials.find("unknown") == ()

    def test_a_trial_is_stored_once_and_whole(self, store: Store) -> None:
        """A second trial of the same number is refused, with all of its measurements."""
        store.studies.open(sample_study())
        store.trials.add("abc123", sample_trial(0))
        with pytest.raises(StoreError, match="trial 0 of study abc123 is already stored"):
            store.trials.add("abc123", sample_trial(0, messages=5))
        with pytest.raises(NotFoundError):
            store.trials.add("unknown", sample_trial(0))
        assert store.trials.find("abc123") == (sample_trial(0),)

    def test_the_state_is_kept_with_its_time(self, store: Store) -> None:
        """The store sets `updated`; an unknown study is an error."""
        created = store.studies.open(sample_study())
        store.studies.set_state("abc123", StudyState.DONE, "nothing more to gain")
        done = store.studies.get("first")
        assert (done.state, done.reason) == (StudyState.DONE, "nothing more to gain")
        assert done.created == created.created < done.updated
        with pytest.raises(NotFoundError):
            store.studies.set_state("unknown", StudyState.DONE, "")

    def test_studies_are_paged_newest_first(self, store: Store) -> None:
        """Every study comes once, also when one is added between two pages; filters work."""
        for i in range(5):
            store.studies.open(sample_study(f"s{i}", id=f"id{i}"))
        page = store.studies.page(limit=2)
        store.studies.open(replace(sample_study("s5", id="id5"), cluster=sample_cluster("other")))
        names = [item.study.name for item in page.items]
        while page.next_cursor:
            page = store.studies.page(limit=2, cursor=page.next_cursor)
            names += [item.study.name for item in page.items]
        assert names == ["s4", "s3", "s2", "s1", "s0"]
        assert [item.study.name for item in store.studies.page(cluster="other", model="toy").items] == ["s5"]
        assert store.studies.page(model="none").items == ()

    def test_a_summary_compares_medians_outside_the_verification(self, store: Store) -> None:
        """One lucky launch is not the best, and trials of the verification count only as trials."""
        store.studies.open(sample_study())
        scores = [(DEFAULT, 100.0), (DEFAULT, 104.0), (RING, 90.0), (RING, 94.0), (RING, 50.0), (RING, None)]
        for number, (setting, score_us) in enumerate(scores):
            store.trials.add("abc123", sample_trial(number, setting=setting, score_us=score_us))
        store.trials.add("abc123", replace(sample_trial(9, score_us=1.0), phase=Phase.PROVE))
        (summary,) = store.studies.page().items
        assert (summary.trials, summary.best_us, summary.default_us) == (7, 90.0, 102.0)
        newest = [store.revisions.publish(sample_recommendation(id)) for id in ("r1", "r2")][-1]
        (summary,) = store.studies.page().items
        assert (summary.trials, summary.best_us, summary.default_us) == (7, None, None)
        assert summary.recommendation == newest

    def test_publishing_counts_revisions(self, store: Store) -> None:
        """Per cluster, model and fingerprint; the given revision is ignored; ids are unique."""
        given = [("a", 2), ("b", 2), ("c", 1)]
        stored = [store.revisions.publish(sample_recommendation(id, nodes=nodes)) for id, nodes in given]
        assert [r.revision for r in stored] == [1, 2, 1]
        assert stored[0].created
        assert store.recommendations.get("b") == stored[1]
        assert store.recommendations.find(cluster="pair", model="toy", study="abc123") == tuple(reversed(stored))
        assert store.recommendations.find(model="other") == ()
        assert store.revisions.publish(sample_recommendation("a")) == stored[0], "the answer may have been lost"
        with pytest.raises(StoreError, match="already published"):
            store.revisions.publish(sample_recommendation("a", nodes=1))
        assert len(store.recommendations.find()) == 3
        with pytest.raises(NotFoundError):
            store.recommendations.get("z")

    def test_publishing_at_once_gives_distinct_revisions(self, store_url: str) -> None:
        """Eight writers with connections of their own get 1 to 8."""
        together = threading.Barrier(8)

        def publish(number: int) -> int:
            with open_store(store_url) as own:
                together.wait(timeout=30)
                return own.revisions.publish(sample_recommendation(f"r{number}")).revision

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(publish, range(8))) == list(range(1, 9))

    def test_threads_share_a_store(self, store: Store) -> None:
        """While one thread adds trials, another sees only whole ones, and never fewer than before."""

        def add() -> None:
            for number in range(30):
                store.trials.add("abc123", sample_trial(number, messages=5))

        store.studies.open(sample_study())
        with ThreadPoolExecutor(1) as pool:
            added = pool.submit(add)
            seen = [0]
            while seen[-1] < 30 and (added.running() or not added.exception()):
                kept = store.trials.find("abc123")
                assert all(len(trial.result.measurements) == 5 for trial in kept)
                seen.append(len(kept))
            added.result(timeout=60)
        assert seen == sorted(seen)
        assert seen[-1] == 30

    def test_changes_of_what_jobs_are_given_are_noted(self, store: Store, store_url: str) -> None:
        """By any process: publishing, a check, a replaced workload; measuring changes nothing."""

        def news() -> set[tuple[str, str]]:
            number, pairs = store.recommendations.changes(numbers[-1])
            numbers.append(number)
            return set(pairs)

        numbers = [0]
        with open_store(store_url) as other:
            other.revisions.publish(sample_recommendation("a"))
            assert news() == {("pair", "toy")}
            other.revisions.publish(sample_recommendation("b"))
            other.workloads.add(sample_workload("mine"))
            assert news() == {("pair", "toy"), ("", "mine")}
            other.studies.open(sample_study())
            other.trials.add("abc123", sample_trial(0))
        assert news() == set()

    def test_keys_are_found_by_the_hash_of_their_secret(self, store: Store) -> None:
        """Oldest first; the secret is not there; revoking is final and keeps its first time."""
        keys = {digest: ApiKey(id=digest[:3], role=Role.ENV, clusters=("pair",)) for digest in ("bbb1", "aaa2")}
        for digest, key in keys.items():
            store.keys.add(key, digest=digest)
        assert list(store.keys.find().items()) == list(keys.items())
        with pytest.raises(StoreError, match="already stored"):
            store.keys.add(keys["bbb1"], digest="other")
        assert store.keys.revoke("bbb", now="2026-11-22").revoked == "2026-11-22"
        assert store.keys.revoke("bbb", now="2026-11-23").revoked == "2026-11-22"
        assert [bool(key.revoked) for key in store.keys.find().values()] == [True, False]
        with pytest.raises(NotFoundError):
            store.keys.revoke("zzz", now="2026-11-22")

    def test_the_catalogue_joins_shipped_and_added(self, store: Store) -> None:
        """Shipped names are taken, added ones are replaced on demand, unknown ones get close names."""
        store.workloads.add(sample_workload("mine"))
        assert [(workload.name, shipped) for workload, shipped in store.workloads.entries()] == [
            ("bert", True),
            ("mine", False),
        ]
        assert store.workloads.get("mine") == sample_workload("mine")
        with pytest.raises(UsageError, match="shipped"):
            store.workloads.add(sample_workload("bert"), replace=True)
        with pytest.raises(UsageError, match="already"):
            store.workloads.add(sample_workload("mine"))
        store.workloads.add(sample_workload("mine", messages=3), replace=True)
        assert len(store.workloads.get("mine").messages) == 3
        with pytest.raises(NotFoundError) as caught:
            store.workloads.get("brt")
        assert "did you mean bert? `ncclt profile list`" in caught.value.hint
        store.clusters.add(sample_cluster("home"))
        assert list(store.clusters.entries()) == [(sample_cluster("home"), False)]
        assert store.clusters.get("home") == sample_cluster("home")

    def test_kill_9_loses_no_trial(self, store_url: str) -> None:
        """Every trial reported as added is there and whole, and the study can be continued."""
        program = f"from store_contract import write_trials_for_ever as w; w({store_url!r})"
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
        ) as writer:
            assert writer.stdout is not None
            said = [int(next(writer.stdout)) for _ in range(10)]
            writer.send_signal(signal.SIGKILL)
            said += [int(line) for line in writer.stdout if line.endswith("\n")]
        with open_store(store_url) as store:
            kept = store.trials.find("abc123")
            assert [trial.number for trial in kept][: len(said)] == said
            assert len(kept) <= len(said) + 1
            assert all(trial == sample_trial(trial.number, messages=20) for trial in kept)
            store.trials.add("abc123", sample_trial(len(kept)))

    def test_processes_that_open_a_fresh_store_at_once_do_not_clash(self, store_url: str) -> None:
        """All of them wait for the one that migrates."""
        program = f"from ncclt.store import open_store; print(open_store({store_url!r}).migration())"
        runs = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
        with open_store(store_url):
            answers = [run.communicate(timeout=60)[0].strip() for run in runs]
            assert answers == [HEAD] * 3

    def test_a_damaged_document_is_an_error_of_the_store(self, store: Store, store_url: str) -> None:
        """Both ways of reading refuse it without crashing."""
        store.revisions.publish(sample_recommendation("a"))
        self.execute(store_url, """UPDATE recommendations SET document = '{"schema":1}'""")
        with pytest.raises(StoreError, match="cannot be read"):
            store.recommendations.find()
        with pytest.raises(StoreError, match="cannot be read"):
            published(store_url, cluster="pair", model="toy")
