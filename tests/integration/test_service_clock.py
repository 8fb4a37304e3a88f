"""The clock of the service goes 700 days forward and back: what jobs are given depends on no clock, keys do and return.

The service runs in this process, so that its clock can be set; so does everything that keeps a time.
"""

import datetime as datetimes
import sys
import time

import pytest
from fastapi.testclient import TestClient

from ncclt.core.api_key import ApiKey, Role, hash_secret
from ncclt.core.revision import Actor, ClusterRules, RevisionState
from ncclt.core.rollout import FIRST_STARTS
from ncclt.store import leases, open_store
from ncclt.store.clock import utc_now
from ncclt.testing.samples import sample_recommendation, sample_study, sample_ticket, sample_workload
from ncclt_api.app import create_app

DAYS = 700
ENV = "/v1/clusters/pair/env?model=toy&nodes=2&gpus_per_node=4&nccl_version=2.28.9&simulated=allow&format=json"
FAR = "far-away/4026531836/77/1"
"""A worker on another machine, which only its renewals tell about."""


class Clock:
    """The wall clock of this process; the monotonic one goes on."""

    def __init__(self):
        self.days = 0
        self._time = time.time

    def time(self):
        return self._time() + self.days * 86400.0


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(time, "time", made.time)

    class Moved(datetimes.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetimes.datetime.fromtimestamp(made.time(), tz)

    for name, module in tuple(sys.modules.items()):
        is_ours = name.partition(".")[0] in ("ncclt", "ncclt_api")
        if is_ours and getattr(module, "datetime", None) is datetimes.datetime:
            monkeypatch.setattr(module, "datetime", Moved)
    return made


@pytest.fixture
def store(tmp_path, clock):
    with open_store(f"sqlite:///{tmp_path}/ncclt.db", clock=utc_now) as opened:
        opened.clusters.add(sample_study().cluster)
        opened.workloads.add(sample_workload())
        opened.studies.open(sample_study())
        opened.revisions.publish(sample_recommendation("first"))
        yield opened


def served(service, **headers):
    answer = service.get(ENV, headers=headers)
    assert answer.status_code == 200, answer.text
    assert "warning" not in answer.headers
    assert "age" not in answer.headers
    return answer.json()["recommendation"]


def test_the_newest_revision_is_served_whatever_the_clock_says(store, clock):
    with TestClient(create_app(store, fresh_s=0)) as service:
        assert served(service) == "first"
        clock.days = DAYS
        assert served(service) == "first"
        store.revisions.publish(sample_recommendation("of-the-future"))
        assert served(service) == "of-the-future"
        clock.days = 0
        assert served(service) == "of-the-future"
        store.revisions.publish(sample_recommendation("last"))
        assert served(service) == "last", "the order of arrival counts, not the date"
        for path in ("/", "/live", "/studies", "/recommendations/last", "/studies/abc123", "/clusters/pair"):
            for clock.days in (DAYS, 0, -DAYS):
                assert service.get(path).status_code == 200, (path, clock.days)


def test_keys_expire_by_the_clock_and_are_back_with_it(store, clock):
    in_a_year = (datetimes.datetime.now(datetimes.UTC) + datetimes.timedelta(days=365)).isoformat()
    store.keys.add(
        ApiKey(id="a-year", role=Role.READ, created=utc_now(), expires=in_a_year), digest=hash_secret("a-year")
    )
    store.keys.add(ApiKey(id="always", role=Role.READ, created=utc_now()), digest=hash_secret("always"))
    with TestClient(create_app(store, fresh_s=0)) as service:

        def status(key):
            return service.get(ENV, headers={"Authorization": f"Bearer {key}"}).status_code

        assert (status("a-year"), status("always")) == (200, 200)
        clock.days = DAYS
        assert (status("a-year"), status("always")) == (401, 200)
        store.keys.revoke("always", now=utc_now())
        clock.days = 0
        assert (status("a-year"), status("always")) == (200, 401), "what was revoked stays so"


def test_leases_of_a_dead_worker_end_soon_and_those_of_a_living_one_stay(store, clock, monkeypatch):
    clock.days = DAYS
    store.leases.enter("abc123", FAR)
    store.jobs.enter_worker(FAR, cluster="pair")
    mine = leases.this_worker()
    store.leases.enter("abc123", mine)
    store.jobs.enter_worker(mine, cluster="pair")
    assert store.leases.workers("abc123") == tuple(sorted((FAR, mine)))
    clock.days = 0
    assert store.jobs.workers("pair") == (mine,)
    given_back = []
    store.jobs.bury_workers("pair", holders=lambda: (), give_back=given_back.append)
    assert given_back == [FAR]
    assert store.leases.workers("abc123") == (mine,)
    assert store.jobs.renew_worker(mine)
    assert not store.jobs.renew_worker(FAR), "a living one is told, and takes no job of another"


def test_a_dead_worker_of_this_machine_is_found_though_the_clock_was_set_back(store, clock):
    clock.days = DAYS
    dead = leases.this_worker().rpartition("/")[0] + "/1"
    store.jobs.enter_worker(dead, cluster="pair")
    clock.days = 0
    given_back = []
    store.jobs.bury_workers("pair", holders=lambda: (), give_back=given_back.append)
    assert given_back == [dead]


def test_a_roll_out_is_decided_by_jobs_and_no_clock(store, clock):
    store.revisions.set_rules(ClusterRules(cluster="pair", percent=50), Actor(who="admin"))
    store.revisions.publish(sample_recommendation("second"))
    (rollout,) = store.revisions.rollouts()
    with TestClient(create_app(store, fresh_s=0)) as service:
        jobs = [f"job {n}" for n in range(20)]

        def given():
            return [service.get(f"{ENV}&job={job}").json()["recommendation"] for job in jobs]

        before = given()
        assert set(before) == {"first", "second"}
        assert before.count("second") == FIRST_STARTS
        for clock.days, job, id in zip((DAYS, 0, -DAYS, 0), jobs, before, strict=False):
            assert given() == before
            told = {"rollout": rollout.id, "recommendation": id}
            ticket = sample_ticket(store.ticket_secret(), job, issued_s=time.time() - 10, **told)
            told |= {"ticket": ticket, "job": job, "steps": 20, "step_us": 1e5}
            assert service.post("/v1/step-times", json=told).status_code == 200
        assert store.revisions.status("second").state is RevisionState.CANDIDATE
