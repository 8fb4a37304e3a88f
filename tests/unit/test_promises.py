"""docs/internals/promises.md names code and tests that exist."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
ROWS = [
    line.split("|")[2:4]
    for line in (ROOT / "docs" / "internals" / "promises.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]


def test_every_promise_names_code_and_tests():
    assert len(ROWS) > 25
    assert all("`" in code and "`" in tests for code, tests in ROWS)


@pytest.mark.parametrize(("column", "folders"), [(0, ("tuner/ncclt", ".")), (1, ("tests",))], ids=["code", "tests"])
def test_what_is_named_exists(column, folders):
    named = {path for row in ROWS for path in re.findall(r"`([\w/]+\.(?:py|c))`", row[column])}
    missing = [path for path in sorted(named) if not any((ROOT / folder / path).is_file() for folder in folders)]
    assert named
    assert missing == []
