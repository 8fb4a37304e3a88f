"""The command line that a job of Slurm runs: its script is shown to others, its environment is not."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from ncclt.cli.submit import _storage_by_environment, _variables
from ncclt.cli.tune import tune
from ncclt.errors import UsageError
from ncclt.testing.samples import sample_cluster, sample_workload


def submitted(command, tmp_path, monkeypatch, *words):
    """Submit a study with a stand-in for sbatch; return what the login node printed."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\ncat >/dev/null; echo 42\n")
    (tmp_path / "sbatch").chmod(0o755)
    for name, value in {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "NCCLT_STORE_IS_SHARED": "1",
        "NCCL_IB_HCA": "mlx5_0",
        "NCCL_PROTO": "Simple",
        "NCCL_DEBUG": "INFO",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    command.store.clusters.add(sample_cluster())
    command.store.workloads.add(sample_workload())
    job = ("--model", sample_workload().name, "--cluster", sample_cluster().name, "--launcher", "slurm", "--no-wait")
    monkeypatch.setattr("sys.argv", ["ncclt", "tune", *job, *words])
    app = typer.Typer()
    app.command()(tune)
    done = CliRunner(env={"NCCLT_STORAGE": command.url}).invoke(app, [*job, *words], catch_exceptions=False)
    assert (done.exit_code, "submitted job 42" in done.output) == (0, True)
    return done.stderr


def test_the_login_node_says_what_trials_make_of_its_variables(command, tmp_path, monkeypatch):
    """The job says it in its own log, which is read later."""
    printed = submitted(command, tmp_path, monkeypatch)

    assert "ncclt: kept in every trial (variables of the site): NCCL_IB_HCA\n" in printed
    assert "ncclt: your own tuning, only in trials of the A/B test: NCCL_PROTO\n" in printed
    assert "ncclt: removed from trials (debugging): NCCL_DEBUG\n" in printed


def test_a_dry_run_says_that_the_job_would_be_refused(command, tmp_path, monkeypatch):
    """Unless the user has said that the nodes see the store."""
    monkeypatch.setattr("ncclt.launch.slurm.sbatch.node_local_folder", lambda _path: "it is on a local disk")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    command.store.clusters.add(sample_cluster())
    command.store.workloads.add(sample_workload())
    words = ("--model", sample_workload().name, "--cluster", sample_cluster().name, "--launcher", "slurm")
    app = typer.Typer()
    app.command()(tune)

    def call(*more, **environ):
        done = CliRunner(env={"NCCLT_STORAGE": command.url, **environ}).invoke(app, [*words, *more])
        return done.stderr, done.exception

    refused = call()[1]
    assert isinstance(refused, UsageError)
    assert call("--dry-run")[0] == f"ncclt: without --dry-run, this stops: {refused.message}\n  hint: {refused.hint}\n"
    assert call("--dry-run", NCCLT_STORE_IS_SHARED="1") == ("", None)


def test_variables_that_the_job_does_not_inherit_are_not_listed(command, tmp_path, monkeypatch):
    only = ("--launcher-option", "sbatch-arg=--export=NCCL_IB_HCA")
    printed = submitted(command, tmp_path, monkeypatch, *only)

    assert "variables of the site): NCCL_IB_HCA\n" in printed
    assert "NCCL_PROTO" not in printed


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
