"""The service while what it stands on fails: its database, its own process, its disk; and two people who act at once.

PostgreSQL, the service and its clients are real processes.
"""

import os
import signal
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from ports import free_port
from postgresql import begin, new_database
from waiting import until

from ncclt.core.revision import Action, Actor, ClusterRules, RevisionState
from ncclt.core.study import Phase
from ncclt.errors import ConflictError, StoreError
from ncclt.store import open_store
from ncclt.store.journal import StudyTrialLog
from ncclt.testing.samples import RING, sample_recommendation, sample_study, sample_trial

pytestmark = pytest.mark.thorough

WITHIN_S = 200.0
PATH = "/v1/clusters/pair/env"


@pytest.fixture
def database(postgresql):
    """A database of this test; its server may be killed, and runs again for the tests after this one."""
    yield new_database(postgresql)
    begin(postgresql)


def lasting(act, *given, **named):
    """Do something as often as the store fails; return what it returns."""
    while True:
        try:
            return act(*given, **named)
        except StoreError:
            time.sleep(0.1)


def kill(server):
    """End PostgreSQL at once: as a crash, it has to recover from its log."""
    pid = int((Path(server.pgdata) / "postmaster.pid").read_text().splitlines()[0])
    os.kill(pid, signal.SIGQUIT)
    until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())


class Api:
    """The service as a process."""

    def __init__(self, url, start, folder):
        self._url, self._start, self._folder = url, start, folder
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.process = None

    def begin(self):
        argv = [sys.executable, "-m", "ncclt", "serve", "--port", str(self._port)]
        with (self._folder / "serve.txt").open("a") as log:
            environ = {**os.environ, "NCCLT_STORAGE": self._url, "OMP_NUM_THREADS": "1"}
            self.process = self._start(argv, env=environ, cwd=self._folder, stdout=log, stderr=log)
        until(self.is_ready)

    def is_ready(self):
        try:
            return httpx2.get(f"{self.url}/readyz", timeout=WITHIN_S, trust_env=False).status_code == 200
        except httpx2.TransportError:
            return False

    def given(self):
        """Ask for a job that was never seen."""
        params = {**SHAPE, "job": uuid.uuid4().hex}
        return httpx2.get(f"{self.url}{PATH}", params=params, timeout=WITHIN_S, trust_env=False)


SHAPE = {
    "model": "toy",
    "nodes": 2,
    "gpus_per_node": 4,
    "nccl_version": "2.28.9",
    "format": "nccl-conf",
    "simulated": "allow",
}


def filled(url):
    """A store with one study and one revision."""
    store = open_store(url)
    store.clusters.add(sample_study().cluster)
    store.studies.open(sample_study())
    store.revisions.publish(sample_recommendation("first"))
    return store


@pytest.fixture
def api(tmp_path, start):
    def begun(url):
        made = Api(url, start, tmp_path)
        made.begin()
        return made

    return begun


def test_postgresql_is_killed_and_restarted_under_load(postgresql, database, api):
    """No answer that is kept is missed, and no trial of a study that goes on is lost or written twice."""
    with filled(database) as store:
        service = api(database)
        assert service.given().status_code == 200
        answers, written, over = [], [], threading.Event()

        def load():
            while not over.wait(0.01):  # without a pause two clients take all there is of a small machine
                answers.append(service.given())

        def write():
            with StudyTrialLog(store, sample_study(), now=str) as log:
                while not over.is_set():
                    claim = lasting(log.claim, RING, phase=Phase.SEARCH)
                    if claim is None:  # it was granted, and the answer lost
                        lasting(log.refresh)
                        continue
                    trial = replace(sample_trial(claim.number), repeat=claim.repeat, started=f"launch {claim.number}")
                    written.append(lasting(log.add, trial).number)

        with ThreadPoolExecutor(4) as pool:
            work = [pool.submit(load), pool.submit(load), pool.submit(write)]
            try:
                until(lambda: len(written) > 10)
                kill(postgresql)
                seen = len(answers)
                until(lambda: len(answers) > seen + 20 and "warning" in answers[-1].headers)
                begin(postgresql)
                count = len(written)
                until(lambda: len(written) > count + 10)
                until(lambda: "warning" not in answers[-1].headers)
            finally:
                over.set()
                begin(postgresql)  # where it is still away, the writer would go on for ever
            for one in work:
                one.result()
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        assert [trial.number for trial in store.trials.find("abc123")] == written


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ncclt.db"
    return new_database(request.getfixturevalue("postgresql"))


def at_once(url, acts):
    """Let each act have a store of its own, all in the same moment; return what each returned or raised."""
    together = threading.Barrier(len(acts))

    def run(act):
        with open_store(url) as store:
            together.wait(WITHIN_S)
            try:
                return act(store)
            except ConflictError as error:
                return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def test_two_publish_and_two_approve_at_once(url):
    """Every revision is kept under a number of its own, and one of two approvals wins; the other is told."""
    with filled(url) as store:
        names = [f"new{number}" for number in range(8)]
        published = at_once(
            url,
            [
                lambda store, id=id: store.revisions.publish(replace(sample_recommendation(id), created=""))
                for id in names
            ],
        )
        assert sorted(one.revision for one in published) == list(range(2, 10))
        assert {one.id for one in store.recommendations.find()} == {"first", *names}
        states = [store.revisions.status(id).state for id in ("first", *names)]
        assert states.count(RevisionState.ACTIVE) == 1

        store.revisions.set_rules(ClusterRules(cluster="pair", require_approval=True), Actor(who="admin"))
        store.revisions.publish(replace(sample_recommendation("last"), created=""))
        people = ("ann", "bob", "cem", "dan")
        ended = at_once(url, [lambda store, who=who: store.revisions.approve("last", Actor(who=who)) for who in people])
        refused = [one for one in ended if isinstance(one, ConflictError)]
        assert len(refused) == len(people) - 1, ended
        actions = [event.action for event in store.revisions.history(recommendation="last")]
        assert actions.count(Action.APPROVED) == 1
        assert store.revisions.status("last").state is RevisionState.ACTIVE
