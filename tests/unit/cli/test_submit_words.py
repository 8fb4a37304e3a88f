"""The command line that a job of Slurm runs: its script is shown to others, its environment is not."""

import os

import pytest

from ncclt.cli.submit import _storage_by_environment

URL = "postgresql://ncclt:hunt@r2@db/ncclt"


@pytest.mark.parametrize("words", [["--storage", URL], [f"--storage={URL}"]], ids=["two words", "one word"])
def test_a_password_is_handed_on_by_the_environment(monkeypatch, words):
    monkeypatch.setenv("NCCLT_STORAGE", "sqlite:///of-the-shell.db")

    assert _storage_by_environment(["tune", *words, "--nodes", "2"]) == ["tune", "--nodes", "2"]
    assert os.environ["NCCLT_STORAGE"] == URL


@pytest.mark.parametrize("words", [["--storage", "postgresql://me@db/x"], ["--storage=postgresql://me@db/x"], []])
def test_a_url_without_one_stays_where_it_is(monkeypatch, words):
    monkeypatch.delenv("NCCLT_STORAGE", raising=False)

    assert _storage_by_environment(["tune", *words, "--nodes", "2"]) == ["tune", *words, "--nodes", "2"]
    assert "NCCLT_STORAGE" not in os.environ
