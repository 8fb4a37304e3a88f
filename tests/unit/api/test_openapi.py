"""The committed description of the API."""

import json
from pathlib import Path

import pytest

from ncclt_api.openapi import openapi_text

COMMITTED = Path(__file__).parents[3] / "docs" / "openapi.json"


@pytest.mark.docs
def test_the_committed_document_is_current():
    """Write it anew with `python -m ncclt_api.openapi > docs/openapi.json`."""
    assert COMMITTED.read_text(encoding="utf-8") == openapi_text()


def test_operations_have_unique_names_and_problems():
    paths = json.loads(openapi_text())["paths"]
    operations = [operation for path in paths.values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names) == 42
    versioned = {path: methods for path, methods in paths.items() if path.startswith("/v1/")}
    assert len(versioned) == len(paths) - 2, "all but /healthz and /readyz"
    writing = {path: set(methods) - {"get"} for path, methods in versioned.items() if set(methods) != {"get"}}
    verbs = ("approve", "activate", "rollback", "pin", "unpin", "retire")
    assert writing == {
        "/v1/attestations": {"post"},
        "/v1/step-times": {"post"},
        "/v1/jobs": {"post"},
        "/v1/workloads": {"post"},
        "/v1/jobs/{id}/cancel": {"post"},
        "/v1/jobs/{id}/retry": {"post"},
        "/v1/clusters/{cluster}/rules": {"put"},
        "/v1/jobs/stale": {"post"},
        "/v1/answers": {"post"},
        "/v1/keys": {"post"},
        "/v1/keys/{id}": {"delete"},
        "/v1/roll-outs/{id}/pause": {"post"},
        "/v1/roll-outs/{id}/resume": {"post"},
        **{f"/v1/recommendations/{{id}}/{verb}": {"post"} for verb in verbs},
    }
    for operation in (operation for methods in versioned.values() for operation in methods.values()):
        assert {"401", "403", "404", "422", "429", "503"} <= set(operation["responses"])
        assert list(operation["responses"]["422"]["content"]) == ["application/problem+json"]


def test_the_pages_are_not_part_of_the_api():
    assert all(path.startswith(("/v1/", "/healthz", "/readyz")) for path in json.loads(openapi_text())["paths"])
