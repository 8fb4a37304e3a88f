"""Values of the files reach every command that takes them, and no other."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ncclt.cli.application import app
from ncclt.cli.configuration import default_map, storage_url


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "ncclt.toml").write_text('storage = "sqlite:///here.db"\ncluster = "mine"\nlauncher = "simulate"\n')


@pytest.mark.usefixtures("project")
def test_the_store_is_the_same_for_all_that_speak_with_one(monkeypatch):
    assert storage_url() == "sqlite:///here.db"
    monkeypatch.setenv("NCCLT_STORAGE", "sqlite:///there.db")
    assert storage_url() == "sqlite:///there.db"
    done = CliRunner().invoke(app, ["studies", "list", "--storage", "sqlite:///flag.db"])
    assert "there is no store at flag.db" in done.stderr
    assert storage_url() == "sqlite:///there.db"


def test_the_default_store_is_shown_with_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("NCCLT_STORAGE", raising=False)
    shown = json.loads(CliRunner().invoke(app, ["config", "show", "--json"]).stdout)["values"]
    assert shown["storage"] == {"value": f"sqlite:///{tmp_path}/ncclt/ncclt.db", "origin": "default"}
    assert shown["server"] == {"value": None, "origin": "default"}


@pytest.mark.usefixtures("project")
def test_nothing_is_filtered_or_started_by_a_file():
    found = default_map()
    assert "studies" not in found
    assert "launcher" not in found["doctor"]
    assert found["recheck"] == {"cluster": "mine", "launcher": "simulate"}


def test_the_home_of_somebody_else_holds_no_file_of_ours(tmp_path):
    home = tmp_path / "theirs"
    home.mkdir()
    (home / ".config").mkdir(mode=0)
    ask = (
        "import os; from ncclt.cli.configuration import origins\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "print({one.origin for one in origins()})"
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NCCLT_", "XDG_"))}
    argv, environ = [sys.executable, "-c", ask], {**kept, "HOME": str(home)}
    done = subprocess.run(argv, env=environ, cwd="/", capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{'default'}\n", "")


@pytest.mark.parametrize("command", [["env"], ["run", "--dry-run"]])
def test_the_store_named_before_a_plain_command_is_the_one_it_reads(tmp_path, command):
    words = ["--storage", "nonsense", *command, "--cluster", "leonardo", "--model", "bert"]
    job = ["--", "true"] if command[0] == "run" else []
    done = subprocess.run(
        [sys.executable, "-m", "ncclt", *words, *job], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "'nonsense' is not a database URL" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["studies", "list", "--storage", ""],
        ["report", "one", "--storage", ""],
        ["serve", "--port", "0", "--storage", ""],
    ],
)
def test_an_empty_store_is_not_the_users_own(words, tmp_path):
    done = CliRunner(env={"HOME": str(tmp_path), "NCCLT_STORAGE": f"sqlite:///{tmp_path}/own.db"}).invoke(app, words)
    assert (done.exit_code, "'' is not a database URL" in done.stderr) == (2, True), done.output


@pytest.mark.parametrize("named_before", [True, False])
@pytest.mark.parametrize(
    "words",
    [
        ["attest", "no-file"],
        ["admin", "jobs", "submit", "--stale"],
    ],
)
def test_a_server_and_a_store_are_not_both_taken(words, named_before):
    storage = ["--storage", "sqlite:///any.db"]
    line = [*storage, *words] if named_before else [*words, *storage]
    done = CliRunner().invoke(app, [*line, "--server", "http://127.0.0.1:1"])
    assert (done.exit_code, "--server and --storage cannot be combined" in done.stderr) == (2, True), done.output
