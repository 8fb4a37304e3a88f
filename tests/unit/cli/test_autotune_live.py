"""`ncclt autotune --live`: publication of a win inside a job."""

import json
import sys
from pathlib import Path

import pytest
import typer
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from ncclt.cli.autotune import autotune
from ncclt.cli.studies import show
from ncclt.core.recommendation import Decision
from ncclt.core.revision import Actor, RevisionState
from ncclt.core.trial import LIVE
from ncclt_api.app import create_app

JOB = (sys.executable, str(Path(__file__).parents[2] / "fakes" / "live_job.py"), "0.05")
SHAPE = ("--cluster", "leonardo", "--nodes", "2", "--gpus-per-node", "4")


@pytest.fixture
def tune(command, tmp_path, monkeypatch):
    """Return a caller of live tuning, which gets words before and after --; it returns both outputs."""
    plugin = tmp_path / "plugin.so"
    plugin.write_bytes(b"never loaded")
    monkeypatch.chdir(tmp_path)
    environ = {"NCCLT_STORAGE": command.url, "NCCLT_PLUGIN": str(plugin), "NCCL_VERSION": "2.28.9"}
    app = typer.Typer()
    app.command(context_settings={"allow_interspersed_args": False})(autotune)

    def call(*words, backend="nccl", ranks="8", **more):
        done = CliRunner(env=environ | more).invoke(
            app, ["--live", *SHAPE, *words, "--", *JOB, backend, ranks], catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        return done

    return call


def test_a_win_awaits_approval_as_a_revision_with_evidence_live(tune, command):
    said = tune("--model", "bert").stdout
    (found,) = command.store.recommendations.find(cluster="leonardo", model="bert")
    assert (found.launcher, found.table.verdict.decision, found.variables) == (LIVE, Decision.TUNED, None)
    assert found.fingerprint.nccl_version == "2.28.9"
    assert "training steps are faster: +5.0 %" in found.table.verdict.reason
    assert found.table.verdict.reason.endswith("inside one job; live: experimental, not yet seen on several GPUs)")
    assert f"Revision {found.id} is a candidate, not yet for all jobs" in said
    assert command.store.revisions.status(found.id).state is RevisionState.CANDIDATE
    (verification,) = command.store.records.verifications(recommendation=found.id)
    assert verification.verdict == found.table.verdict
    assert found.table.verdict.reason in command(show, found.study)
    assert json.loads(command(show, found.study, "--json"))["gain_ms"] is None, "the times are of steps"
    with TestClient(create_app(command.store)) as client:
        page = client.get(f"/studies/{found.study}?tab=jobs").text
    assert "steps-chart" in page
    assert "steps-interval-chart" in page

    command.store.revisions.approve(found.id, Actor(who="ada"))
    assert command.store.recommendations.newest(cluster="leonardo", model="bert")[0].id == found.id
    again = tune("--model", "bert").stdout
    assert f"Revision {found.id} was published before" in again


@pytest.mark.parametrize(
    ("words", "more", "why"),
    [
        ((), {}, "to publish a win, run `ncclt profile record --name "),
        (("--model", "bert"), {"backend": "gloo"}, "trained over gloo, where NCCL settings have no effect"),
        (("--model", "bert"), {"backend": "cpu:gloo,cuda:gloo"}, "trained over cpu:gloo,cuda:gloo, where"),
        (("--model", "bert"), {"ranks": "2"}, "the job had 2 ranks, not 2x4; set --nodes"),
        (("--model", "bert"), {"NCCL_PROTO": "LL"}, "compared with your NCCL_PROTO, not with the NCCL default"),
    ],
)
def test_a_win_of_less_than_nccl_default_against_candidate_is_not_published(tune, command, words, more, why):
    document = json.loads(tune(*words, "--json", NCCL_RUNTIME_CONNECT="0", **more).stdout)
    assert document["publication"].startswith("Not published: ")
    assert why in document["publication"]
    assert command.store.recommendations.find() == ()
    (verification,) = command.store.records.verifications()
    assert verification.recommendation == ""
    assert dict(verification.base_env) == {"NCCL_RUNTIME_CONNECT": "0"} | {
        k: v for k, v in more.items() if k[:4] == "NCCL"
    }
