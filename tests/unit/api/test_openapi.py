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


def test_operations_have_unique_names_and_problems_and_pages_are_none():
    paths = json.loads(openapi_text())["paths"]
    names = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(set(names)) == len(names)
    versioned = {path: methods for path, methods in paths.items() if path.startswith("/v1/")}
    assert paths.keys() - versioned.keys() == {"/healthz", "/readyz"}
    for operation in (operation for methods in versioned.values() for operation in methods.values()):
        assert {"401", "403", "404", "422", "429", "503"} <= set(operation["responses"])
        assert list(operation["responses"]["422"]["content"]) == ["application/problem+json"]
