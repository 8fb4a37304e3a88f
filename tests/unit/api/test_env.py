"""The environment of a job over HTTP."""

import contextlib
import time
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from ncclt.client.answer import GROUP_FORMS
from ncclt.core.revision import Actor, ClusterRules
from ncclt.deliver.render.formats import FORMATS, render
from ncclt.errors import StoreError
from ncclt.store import open_store
from ncclt_api.app import create_app

ENV = "/v1/clusters/leonardo/env"
SHAPE = {"nodes": 2, "gpus_per_node": 4, "nccl_version": "2.22.3"}
JOB = {**SHAPE, "simulated": "allow"}


def ask(client, headers=None, **changes):
    return client.get(ENV, params={"model": "bert", **JOB, **changes}, headers=headers)


@pytest.mark.parametrize("format", [format for format in FORMATS if format not in ("slurm-taskprolog", *GROUP_FORMS)])
def test_the_text_is_what_the_core_renders(client, filled_store, format):
    answer = ask(client, format=format)
    served = {"variant": "active", "reason": "TARGETING_MATCH", "rollout": ""}
    expected = render(filled_store.recommendations.get("0c0ffee1"), format=format, said=served)
    assert (answer.status_code, answer.text) == (200, expected)
    media = "application/json" if format == "json" else "text/plain; charset=utf-8"
    facts = {"recommendation": "0c0ffee1", "simulated": "true", "decision": "tuned"}
    facts |= {"variant": "active", "reason": "TARGETING_MATCH"}
    headers = {"content-type": media} | {f"x-ncclt-{name}": value for name, value in facts.items()}
    assert headers.items() <= dict(answer.headers).items()


def test_options_of_a_group_that_was_not_measured_by_itself_are_not_served(client, subtests):
    for form in ({"format": "pg-options"}, {"format": "megatron-yaml", "group": "tp"}):
        with subtests.test(form=form):
            answer = ask(client, **form)
            assert (answer.status_code, "measured by itself" in answer.json()["detail"]) == (404, True)
    assert ask(client, format="megatron-yaml").status_code == 422


def test_keeping_the_default_is_an_answer_and_not_an_error(client):
    answer = ask(client, model="resnet101")
    assert answer.headers["x-ncclt-decision"] == "keep-default"
    assert answer.headers["x-ncclt-simulated"] == "false"
    assert "export NCCL_" not in answer.text


def test_a_known_tag_is_answered_without_a_body(client):
    first = ask(client)
    assert "stale-if-error" in first.headers["cache-control"]
    for given in (first.headers["etag"], f'W/{first.headers["etag"]}, "other"', "*"):
        again = ask(client, {"If-None-Match": given})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert again.headers["x-ncclt-recommendation"] == "0c0ffee1"
    other = ask(client, {"If-None-Match": '"other"'})
    assert other.status_code == 200


def test_formats_have_different_tags(client):
    answers = [ask(client, format=format) for format in FORMATS]
    tags = [answer.headers["etag"] for answer in answers if answer.status_code == 200]
    assert len(set(tags)) == len(tags) == len(FORMATS) - 3


@pytest.mark.parametrize("job", [{"nodes": 4}, {"gpus_per_node": 8}, {"nccl_version": "2.28.9"}])
def test_another_job_gets_nothing(client, job):
    answer = ask(client, **job)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:ncclt:problem:no-recommendation")
    assert "POST /v1/jobs" in answer.json()["hint"]
    assert [{part: row[part] for part in SHAPE} for row in answer.json()["available"]] == [SHAPE]


@pytest.mark.parametrize("left_out", [tuple(SHAPE), *((part,) for part in SHAPE)])
def test_a_job_that_is_not_known_gets_a_list_of_what_there_is(client, left_out):
    """The whole shape or nothing: the hint has the parameters as text, `available` as values."""
    job = {part: value for part, value in SHAPE.items() if part not in left_out}
    answer = client.get(ENV, params={"model": "bert", **job})
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (409, "urn:ncclt:problem:no-recommendation")
    parameters = " ".join(f"{part}={SHAPE[part]}" for part in left_out)
    assert f"\n    {parameters}   (SIMULATED)" in problem["hint"]
    (row,) = problem["available"]
    assert row == {**SHAPE, "recommendation": "0c0ffee1", "simulated": True, "recorded": False, "stale": False}
    assert ask(client, **{part: row[part] for part in SHAPE}).status_code == 200


def test_shells_and_undoing_are_rendered_as_asked(client, filled_store, subtests):
    for options in [{"shell": "fish"}, {"shell": "csh", "unset": True}, {"unset": True}]:
        with subtests.test(options=options):
            answer = ask(client, **options)
            expected = render(filled_store.recommendations.get("0c0ffee1"), format="export", **options)
            assert (answer.status_code, answer.text) == (200, expected)


def test_an_option_that_makes_no_sense_is_a_problem(client, subtests):
    for options in [{"shell": "zsh"}, {"format": "json", "unset": True}, {"channels": 0}, {"channels": 4}]:
        with subtests.test(options=options):
            assert ask(client, **options).json()["status"] == 422


def test_what_was_not_measured_is_only_for_a_job_that_allows_it(client):
    """A real cluster may have the name, shape and NCCL of a simulated one."""
    for options in ({}, {"recorded": "allow"}):
        refused = client.get(ENV, params={"model": "bert", **SHAPE, **options})
        assert refused.status_code == 409
        assert "is SIMULATED, not measured there" in refused.json()["detail"]
        assert "simulated=allow" in refused.json()["hint"]
        assert refused.json()["available"][0]["simulated"] is True
    given = ask(client)
    assert (given.status_code, given.headers["x-ncclt-recorded"]) == (200, "false")
    assert "SIMULATED" in given.text
    assert client.get(ENV, params={"model": "bert", **SHAPE, "simulated": "yes"}).status_code == 422


def test_a_job_that_names_its_driver_or_topology_gets_nothing_of_another(client):
    for name, word in (("driver", "driver"), ("topology", "topology")):
        refused = ask(client, **{name: "x1"})
        assert refused.status_code == 409
        assert f"{word}: measured with an unknown one, asked for x1" in refused.json()["detail"]


def test_accept_stands_in_for_the_format(client):
    for accept, start, media in (
        ("text/x-shellscript", "export ", "text/x-shellscript; charset=utf-8"),
        ("application/json", "{", "application/json"),
        ("text/html, text/csv;q=0.9", "# ncclt-table", "text/csv; charset=utf-8"),
        ("*/*", "export ", "text/plain; charset=utf-8"),
    ):
        answer = ask(client, {"Accept": accept})
        assert answer.text.startswith(start)
        assert answer.headers["content-type"] == media


def test_no_text_of_a_query_reaches_a_header(client):
    for name, value in (("wait", "1"), ("etag", "\u20ac"), ("job", "\u20ac\r\nX-Evil: 1")):
        answer = ask(client, **{name: value})
        assert answer.status_code == (200 if name == "job" else 422)
        assert "x-evil" not in answer.headers


@pytest.fixture
def replicas(samples, profiles, tmp_path):
    """Two processes of a service on one store, and the store."""
    with contextlib.ExitStack() as stack:
        stores = [
            stack.enter_context(open_store(f"sqlite:///{tmp_path}/ncclt.db", profiles=profiles)) for _ in range(2)
        ]
        samples.fill(stores[0])
        yield *(stack.enter_context(TestClient(create_app(store, fresh_s=0))) for store in stores), stores[0]


KEPT = {"model": "bert", **JOB, "format": "json", "job": "night-1", "kept": "true"}


def test_all_nodes_of_a_job_get_one_answer_where_a_roll_out_begins_between_two_requests(replicas, samples):
    """Half of the jobs get the candidate; a job whose first node was answered before stays with what that got."""
    one, two, store = replicas
    first = {name: one.get(ENV, params={**KEPT, "job": name}).json() for name in ("a", "b", "c", "d", "e", "f")}
    store.revisions.set_rules(ClusterRules(cluster="leonardo", percent=50), Actor(who="ann"))
    store.revisions.publish(samples.revised(store.recommendations.get("0c0ffee1"), "0c0ffee9"))

    for name, answer in first.items():
        assert (answer["job"], answer["recommendation"]) == (name, "0c0ffee1")
        for replica in (one, two):
            assert replica.get(ENV, params={**KEPT, "job": name}).json() == answer
    later = {two.get(ENV, params={**KEPT, "job": f"later-{i}"}).json()["variant"] for i in range(20)}
    assert later == {"candidate", "active"}
    (rollout,) = store.revisions.rollouts()
    deadline = time.monotonic() + 30
    while len(starts := store.revisions.job_starts(rollout.id)) < 20:  # those of the control are stored a moment later
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert {start.job for start in starts} == {f"later-{i}" for i in range(20)}


def test_a_job_whose_first_node_got_nothing_gets_nothing(replicas):
    one, two, store = replicas
    asked = {**KEPT, "nodes": 4}
    nothing = one.get(ENV, params=asked)
    assert nothing.status_code == 409
    found = store.recommendations.get("0c0ffee1")
    store.revisions.publish(replace(found, id="0c0ffee4", fingerprint=replace(found.fingerprint, nodes=4)))
    again = two.get(ENV, params=asked)
    assert (again.status_code, again.json()["detail"]) == (404, nothing.json()["detail"])
    assert two.get(ENV, params={**asked, "job": "night-2"}).json()["recommendation"] == "0c0ffee4"


def test_nodes_that_ask_for_different_things_are_refused(client):
    assert client.get(ENV, params={**KEPT, "job": "odd"}).status_code == 200
    other = client.get(ENV, params={**KEPT, "job": "odd", "nccl_version": "2.28.9"})
    shape = "model bert, nodes 2, gpus_per_node 4, nccl_version 2.2"
    detail = f"asked for {shape}2.3, simulated allow, and this one for {shape}8.9, simulated allow"
    assert (other.status_code, other.json()["detail"]) == (422, f"another node of the job odd {detail}")
    assert client.get(ENV, params={**KEPT, "job": ""}).status_code == 422


def test_an_answer_is_not_kept_from_memory_while_the_store_is_away(replicas, monkeypatch):
    """A launcher that asked for agreement would else get another answer than a node that asks another process."""
    one, _two, _store = replicas
    assert one.get(ENV, params=KEPT).status_code == 200

    def away(*_, **_fields):
        raise StoreError("the store is away")

    monkeypatch.setattr("ncclt.store.revisions.Revisions.find_job_decision", away)
    assert one.get(ENV, params=KEPT).status_code == 503


def test_answers_to_several_jobs_are_those_of_each(client):
    job = {"cluster": "leonardo", "model": "bert", **JOB}
    asked = [job, job | {"nodes": 3}, job | {"cluster": "nowhere"}]
    found = client.post("/v1/answers", json={"jobs": asked})
    first, other, unknown = found.json()["items"]
    alone = ask(client, format="json").json()
    assert (found.status_code, first) == (200, {"answer": alone, "problem": None})
    assert (other["answer"], other["problem"]["status"]) == (None, 409)
    assert (unknown["problem"]["status"], "GET /v1/clusters" in unknown["problem"]["hint"]) == (404, True)
    for wrong in ({"jobs": []}, {"jobs": asked * 40}, {"jobs": [{**asked[0], "node": 2}]}):
        assert client.post("/v1/answers", json=wrong).status_code == 422
