"""Whatever text is stored, every page and every answer of the API can be written."""

import json
import sqlite3
from contextlib import closing

import pytest
from fastapi.testclient import TestClient

from ncclt.core.cluster import Cluster
from ncclt.core.preflight import Preflight
from ncclt.core.recheck import Recheck
from ncclt.core.recommendation import Recommendation
from ncclt.core.setting import Setting
from ncclt.core.study import Arm
from ncclt.core.verification import Verification
from ncclt.core.workload import Workload
from ncclt.deliver.render.formats import FORMATS
from ncclt.errors import NccltError
from ncclt.store import open_store
from ncclt_api.app import create_app
from ncclt_api.text import readable

BROKEN = "\udc80 \ud83d µ \x00 <b>"
COLUMNS = ("id", "name", "cluster", "model", "study", "recommendation")
"""Are columns, too, where the database refuses what is no Unicode."""

COMPARED = ("fingerprint", "source_digest")
"""Nothing is served where these differ."""


def broken(document, parse):
    """Return a document with `BROKEN` at the end of each text that need not be a word of ours."""
    document = json.loads(json.dumps(document))

    def spoil(holder, key):
        value = holder[key]
        if isinstance(value, dict | list):
            for inner in list(value) if isinstance(value, dict) else range(len(value)):
                spoil(value, inner)
        elif isinstance(value, str):
            holder[key] = value + BROKEN
            try:
                parse(document)
            except (NccltError, KeyError, TypeError, ValueError):
                holder[key] = value

    for key, value in document.items():
        if key not in COMPARED and (key not in COLUMNS or isinstance(value, dict)):
            spoil(document, key)
    assert r"\udc80" in json.dumps(document)
    return document


def trial_from_document(document):
    return Setting.from_document(document["setting"]), document["arm"] and Arm(document["arm"])


def study_from_document(document):
    return Cluster.from_document(document["cluster"]), Workload.from_document(document["workload"])


PARSERS = {
    "workloads": Workload.from_document,
    "clusters": Cluster.from_document,
    "studies": study_from_document,
    "trials": trial_from_document,
    "recommendations": Recommendation.from_document,
    "recheck": Recheck.from_document,
    "preflight": Preflight.from_document,
    "verification": Verification.from_document,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory, profiles, samples):
    """A store in which every text is broken that is no name or word; attestations are made so, for their ids' sake."""
    path = tmp_path_factory.mktemp("broken") / "ncclt.db"
    with open_store(f"sqlite:///{path}", profiles=profiles) as filled:
        samples.fill(filled)
        published = filled.recommendations.get("0c0ffee1")
        filled.records.add_attestation(
            samples.attestation(published, notes=(BROKEN, "x" * 5000), tuner_lines=(BROKEN,))
        )
        samples.make_stale(filled, "0c0ffee2", reason="slower")
        filled.clusters.add(samples.cluster("mine"))
        filled.workloads.add(samples.workload("ours"))
        with closing(sqlite3.connect(path)) as database, database:
            for table in ("workloads", "clusters", "studies", "trials", "recommendations", "records"):
                kind = "kind" if table == "records" else f"'{table}'"
                for row, name, text in database.execute(f"SELECT rowid, {kind}, document FROM {table}").fetchall():
                    if name in PARSERS:
                        document = json.dumps(broken(json.loads(text), PARSERS[name]))
                        database.execute(f"UPDATE {table} SET document = ? WHERE rowid = ?", (document, row))
        yield filled


@pytest.fixture
def service(store):
    with TestClient(create_app(store)) as service:
        yield service


JOB = "model=bert&nodes=2&gpus_per_node=4&nccl_version=2.22.3&simulated=allow"


REFUSED = {"slurm-taskprolog": 404, "pg-options": 404, "megatron-yaml": 422}

READ = (
    *("/", "/studies/5e1f00aa", "/studies/7a6bbb02", "/studies/bad00003", "/v1/studies/5e1f00aa/evidence"),
    *("/v1/clusters", "/v1/clusters/mine", "/v1/workloads", "/v1/workloads/ours", "/v1/studies"),
    *(f"/v1/studies/{id}{part}" for id in ("5e1f00aa", "bad00003") for part in ("", "/trials")),
    *("/v1/recommendations", "/v1/recommendations/0c0ffee1", "/v1/recommendations/0c0ffee2"),
    "/v1/attestations?recommendation=0c0ffee1",
)
ANSWERS = [
    *((path, 200) for path in READ),
    # A TaskProlog would set nothing: what was proven needs a table. No process group was measured by itself.
    *((f"/v1/clusters/leonardo/env?{JOB}&format={name}", REFUSED.get(name, 200)) for name in FORMATS),
    (f"/v1/clusters/leonardo/env?{JOB.replace('bert', 'resnet101')}", 410),
    *((f"{api}/studies/%ED%B2%80", 404) for api in ("/v1", "")),  # a lone surrogate
]
"""(path, status)"""


def test_every_answer_can_be_written_whatever_was_stored(service, subtests):
    for path, status in ANSWERS:
        with subtests.test(path):
            answer = service.get(path, headers={"accept": "text/html"} if not path.startswith("/v1/") else {})
            assert answer.status_code == status
            assert answer.content.decode("utf-8")


def test_what_is_no_text_is_shown_as_an_escape(service):
    (broken, *_) = service.get("/v1/attestations?recommendation=0c0ffee1").json()["items"]
    page = service.get("/studies/5e1f00aa").text
    trials = service.get("/v1/studies/5e1f00aa/trials").json()["items"]

    assert r"\udc80 \ud83d µ" in broken["notes"][0]
    assert "x" * 5000 in broken["notes"]
    assert r"\udc80 \ud83d µ" in page
    assert "&lt;b&gt;" in page
    assert any(r"\udc80" in trial["detail"] for trial in trials)


def test_text_that_can_be_written_is_left_alone():
    whole = {"a": ["µ \U0001f600 \x00", 1, None, 1.5, True], "µ": {}}
    assert readable(whole) == whole
    assert readable({"\udc80": ("\ud83d",)}) == {r"\udc80": [r"\ud83d"]}
