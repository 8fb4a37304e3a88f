"""Every error is a problem document."""

import pytest
from fastapi.testclient import TestClient

from ncclt import errors
from ncclt_api.app import create_app
from ncclt_api.problems import problem_of


class RaisingStore:
    """A store with a bug."""

    def clusters(self):
        raise ZeroDivisionError("secret of the house")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.UsageError, 422, "usage"),
        (errors.SettingError, 422, "setting"),
        (errors.NotFoundError, 404, "not-found"),
        (errors.NoRecommendationError, 404, "no-recommendation"),
        (errors.InputError, 422, "input"),
        (errors.TraceError, 422, "trace"),
        (errors.StoreError, 503, "store"),
        (errors.ServerError, 500, "server"),
    ],
)
def test_each_error_of_ours_has_its_status(error, status, kind):
    problem = problem_of(error("what", hint="do this"))
    assert (problem.status, problem.detail, problem.hint) == (status, "what", "do this")
    assert problem.type == f"urn:ncclt:problem:{kind}"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/assets/nothing.css", 404),
        ("GET", "/v1/studies/nothing", 404),
        ("POST", "/v1/studies", 405),
        ("GET", "/v1/studies?limit=0", 422),
        ("GET", "/v1/studies?limit=many", 422),
        ("GET", "/v1/studies?cursor=nonsense", 422),
        ("GET", "/v1/clusters/leonardo/env", 422),
        ("GET", "/?nonsense=1", 422),
    ],
)
def test_whatever_goes_wrong_the_answer_is_a_problem(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["hint"]
    assert problem["request_id"] == answer.headers["x-request-id"]


def test_a_refused_request_names_the_field(client):
    problem = client.get("/v1/studies?limit=0").json()
    assert problem["errors"][0]["where"] == "query.limit"


def test_a_misspelt_parameter_is_refused_with_the_right_one(client):
    """`node=2` taken for any number of nodes would serve the wrong result."""
    problem = client.get("/v1/clusters/leonardo/env?model=bert&node=2").json()
    assert problem["status"] == 422
    assert "did you mean 'nodes'" in problem["detail"]


def test_a_bug_is_a_500_that_tells_nothing_but_the_request_id():
    with TestClient(create_app(RaisingStore()), raise_server_exceptions=False) as client:
        answer = client.get("/v1/clusters", headers={"X-Request-ID": "job-7"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.json()["request_id"] == "job-7"


def test_a_browser_gets_a_page_outside_the_api(client):
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    page = client.get("/studies/<b>nothing", headers=browser)
    assert page.status_code == 404
    assert page.headers["content-type"].startswith("text/html")
    assert "&lt;b&gt;nothing" in page.text
    assert "<b>nothing" not in page.text
    assert client.get("/v1/studies/x", headers=browser).headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/api/v1/studies", 404), ("GET", "/api", 404), ("GET", "/v2/env", 404),
     ("POST", "/api/v1/env", 405), ("DELETE", "/", 405), ("PUT", "/healthz", 405), ("GET", "/v1/studies?limit=x", 422),
     ("POST", "/nothing", 404), ("GET", "/assets/none.js", 404)],
)  # fmt: skip
@pytest.mark.parametrize("accept", ["*/*", "text/html,*/*;q=0.8"])
def test_only_pages_answer_with_a_page(client, method, path, status, accept):
    """A mistyped prefix or version, a wrong method and a refused request are problems for every client."""
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
