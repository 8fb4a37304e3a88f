"""`ncclt attest` over files of a job."""

import json
from dataclasses import replace
from functools import partial

import pytest
import typer
from plugin_report import line
from plugin_report import write_report as write
from typer.testing import CliRunner

from ncclt.cli.application import app as program
from ncclt.cli.attest import attest
from ncclt.errors import NotFoundError, TraceError, UsageError
from ncclt.testing.samples import sample_recommendation

CALL = line("all_reduce", 1024, 4, outcome="applied", algorithm="tree", protocol="ll", channels=0)
write_report = partial(write, ranks=8, nodes=2, table="rec1")


@pytest.fixture
def run(command, monkeypatch):
    """Run the command on the store of the fixture and return the result; our errors pass through."""
    for name in ("NCCLT_SERVER", "NCCLT_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    command.store.revisions.publish(sample_recommendation("rec1"))
    app = typer.Typer()
    app.command()(attest)
    return lambda *words: CliRunner(env={"NCCLT_STORAGE": command.url}).invoke(
        app, [*map(str, words)], catch_exceptions=False
    )


def test_it_took_effect(run, command, tmp_path):
    done = run(write_report(tmp_path / "a", CALL))
    assert done.exit_code == 0
    assert "rec1 (toy on pair, as table) took effect: 4 of 4 calls" in done.stdout
    assert "as-wanted" in done.stdout
    (kept,) = command.store.records.attestations(["rec1"])
    assert (kept.effect.value, kept.hosts) == ("took-effect", 1)


def test_the_folder_of_a_job_will_do(run, tmp_path):
    (tmp_path / "job").mkdir()
    write_report(tmp_path / "job" / "a.jsonl", CALL)
    (tmp_path / "job" / "b.jsonl.part").write_text("{")
    assert run(str(tmp_path / "job")).exit_code == 0
    (tmp_path / "none").mkdir()
    with pytest.raises(TraceError, match="none holds no reports"):
        run(str(tmp_path / "none"))


def test_it_did_not(run, command, tmp_path):
    done = run(write_report(tmp_path / "a", {**CALL, "outcome": "unavailable"}), "--json")
    assert done.exit_code == 1
    shown = json.loads(done.stdout)
    assert (shown["effect"], shown["rows"][0]["state"]) == ("not-at-all", "differs")
    assert command.store.records.attestations(["rec1"])[0].to_document() == shown


def test_the_table_of_another_recommendation_is_told_apart(run, command, tmp_path):
    command.store.revisions.publish(replace(sample_recommendation("rec2"), revision=2))
    files = [write_report(tmp_path / "a", CALL), write_report(tmp_path / "b", CALL, table="rec2", pid=41)]
    with pytest.raises(UsageError, match="several: rec1, rec2"):
        run(*files)
    done = run(*files, "--recommendation", "rec1")
    assert done.exit_code == 1
    assert "the ranks did not use the same table" in done.stdout
    assert "the job used the table of rec2" in done.stdout


def test_what_is_not_known_here_is_said(run, tmp_path):
    with pytest.raises(NotFoundError, match="rec9"):
        run(write_report(tmp_path / "a", CALL, table="rec9"))
    with pytest.raises(UsageError, match="the files do not name it"):
        run(write_report(tmp_path / "b", CALL, table=""))
    both = ("--server", "http://127.0.0.1:9", "--storage", "sqlite:///x.db")
    done = CliRunner().invoke(program, ["attest", str(write_report(tmp_path / "c", CALL)), *both])
    assert "--server and --storage cannot be combined" in done.stderr
