"""A recommendation from request to end, over HTTP: tuned, approved, fetched, attested, replaced, rolled back, refused.

PostgreSQL, the service and the workers are real processes; the times come from the recorded cluster,
and the step times of the jobs are made up.
"""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx2
import pytest
from ports import free_port
from postgresql import new_database
from waiting import until

from ncclt.core.attestation import CallOutcome, DeliveredPolicy, Form, LogEvidence, Observed, ObservedCall
from ncclt.core.message import Collective
from ncclt.deliver.attest import attest
from ncclt.store import open_store
from ncclt.testing.samples import sample_recommendation

CLUSTER = "mi355x-2x8"
REQUESTS = 200
ENV = f"/v1/clusters/{CLUSTER}/env"
SHAPE = {
    "model": "bert",
    "nodes": 2,
    "gpus_per_node": 8,
    "nccl_version": "2.28.3",
    "format": "json",
    "recorded": "allow",
}


class Site:
    """The service as its clients see it, each with a key of its own."""

    def __init__(self, ncclt, url):
        self.url = url
        self._http = httpx2.Client(base_url=url, timeout=30, trust_env=False)
        self._secrets = {
            role: ncclt("admin", "keys", "create", "--role", role).stdout.strip()
            for role in ("admin", "tune", "approve", "env", "read")
        }

    def __call__(self, role, method, path, **more):
        """Ask, and return the answer."""
        head = {"Authorization": f"Bearer {self._secrets[role]}"}
        return self._http.request(method, path, headers=head, **more)

    def is_ready(self):
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def tuned(self, **more):
        """Request a study, wait for its end, and return what came of it."""
        body = {"cluster": CLUSTER, "model": "bert", "trials": 30, "blocks": 3, **more}

        def queued():  # refused until a worker has made the tables of the queue
            answer = self("tune", "POST", "/v1/jobs", json=body)
            assert answer.status_code in (201, 503), answer.text
            return answer.json() if answer.status_code == 201 else None

        return self.ended(until(queued)["id"])["result"]

    def ended(self, id):
        """Wait for the end of a job, and return it."""

        def job():
            seen = self("read", "GET", f"/v1/jobs/{id}").json()
            return seen if seen["state"] not in ("queued", "running") else None

        seen = until(job)
        assert seen["state"] == "done", seen
        return seen

    def given(self, job=""):
        """What a job is given."""
        return self("read", "GET", ENV, params=SHAPE | ({"job": job} if job else {}))

    def close(self):
        self._http.close()

    def history(self, id):
        items = self("read", "GET", f"/v1/history?recommendation={id}").json()["items"]
        return [(item["action"], item["who"]) for item in items]


@pytest.fixture
def url(postgresql):
    return new_database(postgresql)


@pytest.fixture
def site(ncclt, url, start):
    ncclt.variables = {"NCCLT_STORAGE": url, "OMP_NUM_THREADS": "1"}
    ncclt("admin", "store", "migrate")
    port = free_port()
    made = Site(ncclt, f"http://127.0.0.1:{port}")
    for number, words in enumerate((("serve", "--port", port), *[("admin", "worker", "--cluster", CLUSTER)] * 2)):
        with (ncclt.folder / f"log{number}.txt").open("w") as log:
            start(ncclt.argv(*words), cwd=ncclt.folder, env=ncclt.environment, stdout=log, stderr=log)
    until(made.is_ready)
    yield made
    made.close()


def attestation_of(url, id):
    """What a job tells whose plugin had the table."""
    with open_store(url) as store:
        given = store.recommendations.get(id)
    table = DeliveredPolicy(
        recommendation=id,
        cluster=given.cluster,
        model=given.model,
        nccl_version=given.fingerprint.nccl_version,
        ranks=16,
        form=Form.TABLE,
        policy=given.table.policy,
    )
    # So short a study proves nothing, and its table leaves every message to NCCL.
    assert given.table.policy.rules == ()
    use = ObservedCall(
        collective=Collective.ALL_REDUCE,
        size_bytes=1 << 20,
        group_size=16,
        choice="ring/simple/8",
        outcome=CallOutcome.UNMATCHED,
        calls=16,
    )
    source = LogEvidence(kind="plugin-report", nccl_version=table.nccl_version, table=id, checksum="0" * 16, count=16)
    seen = Observed(sources=(source,), calls=(use,), variables={}, hosts=2)
    return attest(table, seen, created="2026-11-20T12:00:00+00:00").to_document()


def test_from_a_request_to_a_roll_back_and_a_refusal(site, url):
    rules = f"/v1/clusters/{CLUSTER}/rules"
    assert site("admin", "PUT", rules, json={"require_approval": True}).status_code == 200

    result = site.tuned()
    assert result["recorded"].startswith("recorded: ")
    first = result["recommendation"]
    assert site.given().status_code != 200, "nobody has approved it"
    assert site("tune", "POST", f"/v1/recommendations/{first}/approve", json={}).status_code == 403
    approved = site("approve", "POST", f"/v1/recommendations/{first}/approve", json={"why": "looked at its proof"})
    assert (approved.status_code, approved.json()["state"]) == (200, "active"), approved.text

    until(lambda: site.given().status_code == 200)
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda _: site.given(), range(REQUESTS)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].json()["recommendation"] == first
    assert answers[0].headers["x-ncclt-recorded"] == "true"

    attestation = attestation_of(url, first)
    assert site("env", "POST", "/v1/attestations", json=attestation).status_code == 422, "it lacks the job's ticket"
    proof = {"ticket": site.given("job 0").json()["ticket"]}
    told = site("env", "POST", "/v1/attestations", json=attestation | proof)
    assert told.status_code == 201, told.text
    (kept,) = site("read", "GET", "/v1/attestations", params={"recommendation": first}).json()["items"]
    assert kept["recommendation"] == first

    second = "5ec0nd"  # a study as short as the first would publish the same, which starts no roll-out
    with open_store(url) as store:
        newer = replace(store.recommendations.get(first), id=second, table=sample_recommendation("b").table)
        store.revisions.publish(newer, for_rollout=True)
    approval = {"percent": 50, "max_cost": 1}
    assert site("admin", "POST", f"/v1/recommendations/{second}/approve", json=approval).status_code == 200
    until(lambda: site.given(f"early {time.monotonic()}").json()["rollout"])
    assert site.given().json()["recommendation"] == first, "without a name a job has no part in a roll-out"
    state, jobs = "running", 0
    while state == "running" and jobs < 150:
        jobs += 1
        job = f"job {jobs}"
        given = site.given(job).json()
        slower = 1.1 if given["recommendation"] == second else 1.0
        time_ = {"rollout": given["rollout"], "job": job, "recommendation": given["recommendation"], "steps": 20}
        time_ |= {"ticket": given["ticket"], "step_us": 10 * slower}
        said = site("env", "POST", "/v1/step-times", json=time_)
        assert said.status_code == 200, said.text
        state = said.json()["state"]
    assert state == "lost"
    names = (f"later {n}" for n in itertools.count())  # a job keeps what it was given
    until(lambda: {site.given(next(names)).json()["recommendation"] for _ in range(8)} == {first})
    assert site.history(second)[0][1] == "guard"

    # The network was rewired: what was measured before fits no job there, and the refusal names the field.
    refused = site("read", "GET", ENV, params=SHAPE | {"topology": "rewired"})
    assert refused.status_code == 409, refused.text
    assert "topology" in refused.json()["detail"]
