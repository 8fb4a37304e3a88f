"""Every error is a problem document."""

import re
from typing import Literal

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ncclt import errors
from ncclt_api.app import create_app
from ncclt_api.problems import problem_of


class RaisingStore:
    """A store with a bug."""

    def clusters(self):
        raise ZeroDivisionError("secret of the house")


def test_each_error_of_ours_has_its_status(subtests):
    for error, status, kind in [
        (errors.UsageError, 422, "usage"),
        (errors.SettingError, 422, "setting"),
        (errors.NotFoundError, 404, "not-found"),
        (errors.NoRecommendationError, 404, "no-recommendation"),
        (errors.InputError, 422, "input"),
        (errors.TraceError, 422, "trace"),
        (errors.StoreError, 503, "store"),
        (errors.ServerError, 500, "server"),
    ]:
        with subtests.test(error=error):
            problem = problem_of(error("what", hint="do this"))
            assert (problem.status, problem.detail, problem.hint) == (status, "what", "do this")
            assert problem.type == f"urn:ncclt:problem:{kind}"


WRONG = [
    *(("GET", path, 404) for path in ("/nothing", "/assets/nothing.css", "/v1/studies/nothing")),
    ("POST", "/v1/studies", 405),
    *(("GET", f"/v1/studies?{query}", 422) for query in ("limit=0", "limit=many", "cursor=nonsense")),
    *(("GET", path, 422) for path in ("/v1/clusters/leonardo/env", "/?nonsense=1")),
]
"""(method, path, status)"""


def test_whatever_goes_wrong_the_answer_is_a_problem(client, subtests):
    for method, path, status in WRONG:
        with subtests.test(f"{method} {path}"):
            answer = client.request(method, path)
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/problem+json"
            problem = answer.json()
            assert (problem["status"], problem["request_id"]) == (status, answer.headers["x-request-id"])
            assert all(problem[name] for name in ("title", "detail", "hint"))


def test_a_refused_request_names_the_field(client):
    problem = client.get("/v1/studies?limit=0").json()
    assert problem["errors"] == [{"where": "query.limit", "message": "must be at least 1"}]
    assert problem["detail"] == "query.limit: must be at least 1"


class Every(BaseModel):
    """One field for each way in which a value can be refused."""

    model_config = ConfigDict(extra="forbid")

    whole: int = 0
    small: int = Field(0, ge=1, le=5)
    between: float = Field(0.5, gt=0, lt=1, allow_inf_nan=False)
    yes: bool = True
    word: str = Field("ab", min_length=2, max_length=3, pattern="^[a-z]+$")
    names: list[str] = Field([], max_length=1)
    choice: Literal["a", "b"] = "a"
    inner: dict[str, int] = {}


def test_no_phrase_of_the_framework_reaches_users(subtests):
    for field, value, said in [
        ("whole", "two", "must be a whole number"),
        ("whole", 1.5, "must be a whole number"),
        ("whole", "9" * 5000, "has too many digits"),
        ("whole", None, "must be a whole number"),
        ("small", 0, "must be at least 1"),
        ("small", 6, "must be at most 5"),
        ("between", "x", "must be a number"),
        ("between", float("nan"), "must be a number"),
        ("between", 0, "must be above 0"),
        ("between", 1, "must be below 1"),
        ("yes", "maybe", "must be true or false"),
        ("yes", [], "must be true or false"),
        ("word", 1, "must be a string"),
        ("word", "a", "must have at least 2 characters"),
        ("word", "abcd", "must have at most 3 characters"),
        ("word", "AB", "must match '^[a-z]+$'"),
        ("names", "a", "must be a list"),
        ("names", ["a", "b"], "must have at most 1 item"),
        ("choice", "c", "must be 'a' or 'b'"),
        ("inner", 1, "must be a JSON object"),
        ("more", 1, "is unknown"),
    ]:
        with subtests.test(field=field):
            with pytest.raises(ValidationError) as refused:
                Every.model_validate({field: value})
            assert [errors.translate_refusal(row["msg"]) for row in refused.value.errors()] == [said]


def test_a_refused_body_is_named_in_a_sentence(client, subtests):
    for body, said in [
        (b"", "the body is missing"),
        (b"[]", "the body must be a JSON object"),
        (b"nope", "the body is not JSON"),
        (b"\xff", "the body cannot be read"),
        (b'{"cluster": "leonardo"}', "give one of model and profile"),
        (b'{"cluster": "leonardo", "model": "bert", "x": 1}', "body.x: is unknown"),
        (b'{"cluster": "leonardo", "model": "bert", "trials": "x"}', "body.trials: must be a whole number"),
    ]:
        with subtests.test(body=body):
            answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["detail"]) == (400 if body in (b"nope", b"\xff") else 422, said)


def test_a_misspelt_parameter_is_refused_with_the_right_one(client):
    """`node=2` taken for any number of nodes would serve the wrong result."""
    problem = client.get("/v1/clusters/leonardo/env?model=bert&node=2").json()
    assert problem["status"] == 422
    assert "did you mean 'nodes'" in problem["detail"]


def test_a_bug_is_a_500_that_tells_nothing_but_the_request_id():
    with TestClient(create_app(RaisingStore()), raise_server_exceptions=False) as client:
        answer = client.get("/v1/clusters", headers={"X-Request-ID": "job-7"})
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert not re.search("secret|Traceback", answer.text)
    assert answer.json()["request_id"] == "job-7"


def test_a_browser_gets_a_page_outside_the_api(client):
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    page = client.get("/studies/<b>nothing", headers=browser)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "&lt;b&gt;nothing" in page.text
    assert "<b>nothing" not in page.text
    assert client.get("/v1/studies/x", headers=browser).headers["content-type"] == "application/problem+json"


NO_PAGES = [
    *(("GET", path, 404) for path in ("/api/v1/studies", "/api", "/v2/env", "/assets/none.js")),
    *(("POST", path, 404) for path in ("/api/v1/env", "/nothing")),
    *(("DELETE", "/", 405), ("PUT", "/healthz", 405), ("GET", "/v1/studies?limit=x", 422)),
]
"""(method, path, status)"""


def test_only_pages_answer_with_a_page(client, subtests):
    """A mistyped prefix or version, a wrong method and a refused request are problems for every client."""
    for method, path, status in NO_PAGES:
        for accept in ("*/*", "text/html,*/*;q=0.8"):
            with subtests.test(f"{method} {path}", accept=accept):
                answer = client.request(method, path, headers={"Accept": accept})
                assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
                assert answer.json()["status"] == status


def test_a_request_id_is_echoed_or_made(client):
    assert client.get("/healthz", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = client.get("/healthz").headers["x-request-id"]
    assert len(made) == 32
    forged = client.get("/healthz", headers={"X-Request-ID": "a b<script>"}).headers["x-request-id"]
    assert "<" not in forged


def test_every_answer_forbids_foreign_content(client):
    for path in ("/", "/v1/clusters", "/assets/ncclt.css", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"


def test_allow_names_every_method_of_a_path(client):
    for path, allowed in [
        ("/v1/workloads", "GET, HEAD, POST"),
        ("/v1/clusters/leonardo/rules", "GET, HEAD, PUT"),
        ("/v1/step-times", "POST"),
        ("/v1/studies", "GET, HEAD"),
        ("/v1/jobs/stale", "POST"),
    ]:
        answer = client.delete(path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
        assert f"use {allowed};" in answer.json()["hint"]


def test_every_list_and_document_has_an_etag(client):
    for path in ("/v1/clusters", "/v1/workloads/bert", "/v1/studies", "/v1/recommendations", "/v1/jobs"):
        first = client.get(path)
        etag = first.headers["ETag"]
        again = client.get(path, headers={"If-None-Match": etag})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", etag)
        assert client.get(path, headers={"If-None-Match": '"other"'}).content == first.content


def test_etag_changes_with_the_document(empty_store):
    path = "/v1/clusters/leonardo/rules"
    with TestClient(create_app(empty_store)) as client:
        before = client.get(path).headers["ETag"]
        assert client.put(path, json={"percent": 7}).status_code == 200
        after = client.get(path, headers={"If-None-Match": before})
        assert (after.status_code, after.json()["percent"]) == (200, 7)


SHAPE = "gpus_per_node=4&nccl_version=2.22.3"
HINTS = [
    ("/v1/clusters/nowhere", "GET /v1/clusters lists all"),
    ("/v1/studies/none", "GET /v1/studies lists all"),
    ("/v1/roll-outs/none", "GET /v1/roll-outs lists all"),
    ("/v1/recommendations/none", "GET /v1/recommendations shows what was published"),
    ("/v1/workloads/none", "POST /v1/workloads?name=NAME adds one"),
    (
        f"/v1/clusters/leonardo/env?model=bert&nodes=9&{SHAPE}",
        'POST /v1/jobs with {"model": "bert", "cluster": "leonardo", "nodes": 9, "gpus_per_node": 4, '
        '"nccl_version": "2.22.3"} to tune for this job; available, newest first:\n    nodes=2 gpus_per_node=4',
    ),
    ("/v1/clusters/leonardo/env?model=bert", "add the parameters of one of these, newest first:\n    nodes=2"),
    (f"/v1/clusters/leonardo/env?model=bert&nodes=2&{SHAPE}", "or accept it with simulated=allow"),
    (
        f"/v1/clusters/leonardo/env?model=bert&nodes=2&{SHAPE}&simulated=allow&unset=true&format=json",
        "leave them out for json",
    ),
]
"""(path, part of the hint)"""


def test_problems_of_the_api_name_requests_and_no_command(client, subtests):
    for path, hint in HINTS:
        with subtests.test(path):
            problem = client.get(path).json()
            assert hint in problem["hint"]
            assert not re.search("ncclt [a-z]|--", problem["detail"] + problem["hint"])
    asked = {"cluster": "leonardo", "model": "bert", "nodes": 9, "gpus_per_node": 4, "nccl_version": "2.22.3"}
    (item,) = client.post("/v1/answers", json={"jobs": [asked]}).json()["items"]
    assert item["problem"]["hint"] == client.get(HINTS[5][0]).json()["hint"]


def test_a_value_of_another_type_is_refused(client):
    path = "/v1/clusters/leonardo/rules"
    for name, value in (("delivery", 0), ("delivery", None), ("percent", True), ("percent", "5"), ("loss_limit", "0")):
        problem = client.put(path, json={name: value}).json()
        assert (problem["status"], problem["errors"][0]["where"]) == (422, f"body.{name}")
