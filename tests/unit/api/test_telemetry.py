"""One log line per request and figures for Prometheus, of which neither shows a secret."""

import json
import subprocess
import sys

import pytest
import structlog
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from ncclt.errors import StoreError
from ncclt.store.store import Store
from ncclt.store.studies import Studies
from ncclt_api import telemetry
from ncclt_api.app import create_app

JOB = "model=bert&nodes=2&gpus_per_node=4&nccl_version=2.22.3&simulated=allow"
ENV = f"/v1/clusters/leonardo/env?{JOB}"


@pytest.fixture
def lines(filled_store):
    """The service, and a function that returns the events that it has logged."""
    log = structlog.testing.CapturingLogger()
    app = create_app(filled_store, fresh_s=0, log=structlog.wrap_logger(log, processors=[]))
    with TestClient(app) as service:
        yield service, lambda: [call.kwargs | {"level": call.method_name} for call in log.calls]


def figures(service):
    text = service.get("/metrics").text
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_request_is_one_line_without_its_query_or_headers(lines):
    service, events = lines
    service.get(ENV, headers={"Authorization": "Bearer ncclt_secret", "X-Request-ID": "job-7"})
    service.get(f"/v1/clusters/{'x' * 5000}")
    first, second = events()
    assert (first["event"], first["level"], first["status"]) == ("request", "info", 200)
    assert (first["path"], first["request_id"]) == ("/v1/clusters/leonardo/env", "job-7")
    assert first["ms"] > 0
    assert (second["status"], len(second["path"])) == (404, 200)
    assert "secret" not in str(events())
    assert "2.22.3" not in str(events())


def test_every_refusal_for_the_service_s_own_sake_names_its_cause(lines, monkeypatch):
    service, events = lines

    def away(*_words, **_options):
        raise StoreError("the database postgresql://me:pass@db/x is away")

    monkeypatch.setattr(Studies, "get", away)
    assert service.get("/v1/studies/5e1f00aa").status_code == 503
    assert (events()[-1]["status"], events()[-1]["level"]) == (503, "error")
    assert "is away" in events()[-1]["cause"]
    assert "pass" not in events()[-1]["cause"]

    monkeypatch.setattr(Studies, "get", lambda *_, **_scope: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        service.get("/v1/studies/5e1f00aa")
    assert (events()[-1]["status"], "ZeroDivisionError" in events()[-1]["cause"]) == (500, True)


def test_figures_count_requests_answers_and_rows(lines, filled_store):
    service, _events = lines
    for _ in range(3):
        service.get(ENV)
    service.get(ENV.replace("&simulated=allow", ""))
    service.get("/nothing/here")
    found = figures(service)
    env = ("route", "/v1/clusters/{cluster}/env")
    assert found["ncclt_requests_total", ("method", "GET"), env, ("status", "200")] == 3
    assert found["ncclt_requests_total", ("method", "GET"), env, ("status", "409")] == 1
    assert found["ncclt_requests_total", ("method", "GET"), ("route", "none"), ("status", "404")] == 1
    assert found["ncclt_request_seconds_count", env] == 4
    served = {key[2]: value for key, value in found.items() if key[0] == "ncclt_served_total"}
    assert served == {("kept", "no"): 1, ("kept", "yes"): 2}
    assert ("ncclt_served_total", ("decision", "tuned"), ("kept", "yes"), ("origin", "simulated")) in found
    assert found["ncclt_database_up",] == 1
    assert sum(value for key, value in found.items() if key[0] == "ncclt_studies") == len(
        filled_store.studies.page().items
    )
    assert found["ncclt_trials", ("outcome", "ok")] > 0


def test_paths_of_strangers_do_not_fill_the_memory(lines):
    service, _events = lines
    for number in range(20):
        service.get(f"/wp-admin/{number}")
        service.get(f"/v1/clusters/{number}/env?model=x")
    routes = {dict(key[1:]).get("route") for key in figures(service) if key[0] == "ncclt_requests_total"}
    assert routes == {"none", "/v1/clusters/{cluster}/env"}


def test_figures_outlive_the_database(lines, monkeypatch):
    service, _events = lines
    known = figures(service)
    monkeypatch.setattr(telemetry, "_COUNTED_AGAIN_S", 0.0)

    def away(_self):
        raise StoreError("away")

    monkeypatch.setattr(Store, "counts", away)
    found = figures(service)
    assert found["ncclt_database_up",] == 0
    assert found["ncclt_trials", ("outcome", "ok")] == known["ncclt_trials", ("outcome", "ok")]


def test_the_log_is_json_where_no_one_reads_along(tmp_path):
    script = (
        "import logging; from ncclt_api.telemetry import start_log; "
        "start_log().info('request', path='/x', status=200); "
        "logging.getLogger('uvicorn.error').info('started %s', 1)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    rows = [json.loads(line) for line in done.stderr.splitlines()]
    assert (rows[0]["event"], rows[0]["path"], rows[0]["level"]) == ("request", "/x", "info")
    assert (rows[1]["event"], rows[1]["level"]) == ("started 1", "info")
    assert all(row["timestamp"].endswith("Z") for row in rows)
