"""What a shell is offered, and for which shells completion is installed."""

import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ncclt.cli.application import app
from ncclt.deliver.render.formats import FORMATS
from ncclt.store import open_store
from ncclt.testing.samples import sample_cluster, sample_study


def offered(monkeypatch, typed, **environ):
    """Return what follows a line of a shell; its last word is completed."""
    words = typed.split(" ")
    environ |= {"_NCCLT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return CliRunner().invoke(app, [], prog_name="ncclt").stdout.split()


@pytest.mark.parametrize(
    "command",
    [
        *("tune --cluster", "run --cluster", "admin jobs submit --cluster", "admin keys create --cluster"),
        *("advise --cluster", "upgrade --cluster", "cluster show", "admin recommendations rules"),
    ],
)
def test_names_of_clusters_are_those_of_the_local_store(tmp_path, monkeypatch, command):
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as store:
        store.clusters.add(replace(sample_cluster(), name="hall-2"))
    assert offered(monkeypatch, f"ncclt {command} ha", NCCLT_STORAGE=url) == ["hall-2"]
    assert offered(monkeypatch, f"ncclt {command} leo", NCCLT_STORAGE=url) == ["leonardo"]


@pytest.mark.parametrize(
    "storage", ["sqlite:///{}/none.db", "postgresql://nobody@192.0.2.1/none", "nonsense://", "sqlite:///{}"]
)
def test_no_database_is_waited_for_and_none_is_made(tmp_path, monkeypatch, storage):
    environ = {"NCCLT_STORAGE": storage.format(tmp_path), "NCCLT_SERVER": "http://192.0.2.1:9"}
    assert offered(monkeypatch, "ncclt env --model bert", **environ) == ["bert", "bert-large"]
    for command in ("tune --model", "doctor --model", "autotune --model", "profile show"):
        assert offered(monkeypatch, f"ncclt {command} bert", **environ) == ["bert", "bert-large"]
    assert list(tmp_path.iterdir()) == []


def test_closed_lists_are_completed(tmp_path, monkeypatch):
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.studies.open(sample_study("night run", id="abc123"))
    monkeypatch.setenv("NCCLT_STORAGE", f"sqlite:///{tmp_path}/store.db")
    wrong = []
    for typed, expected in (
        ("tune --launcher s", ["simulate", "slurm", "ssh"]),
        ("tune --process-wide BUFFSIZE,MIN_CTAS", ["BUFFSIZE,MIN_CTAS"]),
        ("tune --launcher slurm --launcher-option co", ["container="]),
        ("tune --launcher kubernetes --launcher-option n", ["namespace=", "node."]),
        ("studies show ab", ["abc123"]),
        ("tune --through ", ["options", "plugin", "variables"]),
        ("profile model resnet50 --sharding f", ["fsdp"]),
        ("admin jobs list --state q", ["queued"]),
        ("tune --sam", ["--sampler"]),
    ):
        found = offered(monkeypatch, f"ncclt {typed}")
        wrong += [(typed, found)] if found != expected else []
    assert wrong == []


def test_other_values_and_options_of_env_and_run_are_completed(monkeypatch):
    assert offered(monkeypatch, "ncclt env --format ") == sorted(FORMATS)
    assert offered(monkeypatch, "ncclt run --fallback c") == ["cached"]
    assert offered(monkeypatch, "ncclt landscape show mi355x") == ["mi355x-2x8"]
    assert offered(monkeypatch, "ncclt env --cl") == ["--cluster"]
    assert offered(monkeypatch, "ncclt run --cluster leonardo -- torchrun --m") == []


@pytest.mark.parametrize(
    "words",
    [
        ("--install-completion", "nonsense"),
        ("--show-completion", "nonsense"),
        ("--install-completion=",),
    ],
)
def test_an_unknown_shell_is_refused_with_the_list(tmp_path, words):
    done = CliRunner(env={"HOME": str(tmp_path)}).invoke(app, list(words), prog_name="ncclt")
    first, second = done.stderr.splitlines()
    assert (done.exit_code, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert "does not support the shell" in first
    assert second == "  hint: one of bash, zsh, fish, powershell, pwsh"


def test_completion_is_installed_for_the_shell_that_is_named(tmp_path):
    done = CliRunner(env={"HOME": str(tmp_path)}).invoke(app, ["--install-completion", "fish"], prog_name="ncclt")
    assert (done.exit_code, done.stderr) == (0, "")
    assert (tmp_path / ".config/fish/completions/ncclt.fish").exists()
    shown = CliRunner().invoke(app, ["--show-completion=zsh"], prog_name="ncclt")
    assert shown.stdout.startswith("#compdef ncclt")
    read_only = CliRunner(env={"HOME": "/dev/null"}).invoke(app, ["--install-completion", "bash"], prog_name="ncclt")
    assert read_only.exit_code == 2
    assert "--install-completion bash fails: " in read_only.stderr


def test_env_and_run_start_without_it():
    script = "import sys, ncclt.cli.env, ncclt.cli.run_prepare; print('ncclt.cli.completion' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
