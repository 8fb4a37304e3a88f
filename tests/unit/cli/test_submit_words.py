"""The command line that a job of Slurm runs: its script is shown to others, its environment is not."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclt.cli.tune import _storage_by_environment, _variables
from ncclt.errors import UsageError

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


def test_a_job_is_handed_the_store_and_every_option_that_a_variable_gives():
    """Whatever `--export` lets through; what ranks and other programs get is not the job's."""
    environ = {"NCCLT_CLUSTER": "mine", "NCCLT_LAUNCH": "mark", "XDG_DATA_HOME": "/data", "HOME": "/home/ana", "X": "1"}
    store = SimpleNamespace(path=Path("/data/ncclt/ncclt.db"))
    none = ("--export=NONE",)
    assert dict(_variables(store, ["tune"], none, environ)) == {
        "NCCLT_CLUSTER": "mine",
        "NCCLT_STORAGE": "sqlite:////data/ncclt/ncclt.db",
        "XDG_DATA_HOME": "/data",
    }
    assert "NCCLT_STORAGE" not in dict(_variables(store, ["tune", "--storage=sqlite:///x.db"], none, environ))


@pytest.mark.parametrize(
    ("words", "shell", "refused"),
    [
        ((), {}, False),
        (("--export=ALL,X=1",), {}, False),
        (("--export=NCCLT_STORAGE",), {}, False),
        (("--export=NONE",), {}, True),
        ((), {"SBATCH_EXPORT": "NIL"}, True),
    ],
)
def test_a_password_that_the_job_would_not_inherit_is_refused(words, shell, refused):
    """It must not stand in the script either."""
    store = SimpleNamespace(path=None)
    environ = {"NCCLT_STORAGE": URL, **shell}
    if not refused:
        assert _variables(store, ["tune"], words, environ) == ()
        return
    with pytest.raises(UsageError, match="keeps NCCLT_STORAGE from the job") as caught:
        _variables(store, ["tune"], words, environ)
    assert "hunt" not in caught.value.message + caught.value.hint
