"""Fixtures that every room uses."""

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public traces, outputs and measurements beside the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the public data are not beside this checkout")
    return SHARED_DATA
