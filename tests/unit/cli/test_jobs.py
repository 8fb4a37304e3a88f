"""`ncclt admin jobs` and what `ncclt admin worker` refuses."""

import json
from functools import partial

import pytest
from typer.testing import CliRunner

from ncclt.cli import worker
from ncclt.cli.application import app as program
from ncclt.cli.jobs import app
from ncclt.errors import NotFoundError, StoreError, UsageError
from ncclt.pipeline.job_worker import JobWorker
from ncclt.store import open_store

WHAT = ("--cluster", "leonardo", "--model", "bert")


@pytest.fixture
def call(command):
    return partial(command.call, app)


def test_a_job_is_submitted_listed_cancelled_and_tried_again(call):
    id = call("submit", *WHAT, "--nodes", "2", "--trials", "7", "--priority", "2").strip()
    (job,) = json.loads(call("list", "--json"))["jobs"]
    assert (job["job"]["id"], job["state"], job["job"]["trials"], job["job"]["priority"]) == (id, "queued", 7, 2)
    assert id in call("list", "--cluster", "leonardo", "--state", "queued")
    assert id not in call("list", "--cluster", "elsewhere")
    assert f"id: {id}\n" in call("show", id)
    assert json.loads(call("cancel", id, "--json"))["state"] == "cancelled"
    assert call("logs", id) == ""
    assert call("retry", id).strip() == f"{id}-2"


@pytest.mark.parametrize(
    "words", [("list",), ("submit", "--stale"), *((word, "x") for word in ("show", "logs", "cancel", "retry"))]
)
def test_a_store_that_is_not_there_is_made_by_jobs_alone(tmp_path, words):
    url = f"sqlite:///{tmp_path}/typo.db"
    done = CliRunner(env={"NCCLT_STORAGE": url}).invoke(app, [*words], standalone_mode=False)
    assert isinstance(done.exception, StoreError)
    assert "there is no store" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_store", [False, True])
def test_reading_makes_no_queue(tmp_path, monkeypatch, has_store):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if has_store:
        open_store().close()
    before = sorted(tmp_path.rglob("*"))
    listed = CliRunner().invoke(app, ["list", "--json"], standalone_mode=False)
    assert json.loads(listed.stdout)["jobs"] == []
    for word in ("show", "logs", "cancel", "retry"):
        assert isinstance(CliRunner().invoke(app, [word, "x"], standalone_mode=False).exception, NotFoundError), word
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("submit", "--cluster", "nowhere", "--model", "bert"), NotFoundError),
        (("submit", "--cluster", "leonardo", "--model", "nothing"), NotFoundError),
        (("submit", *WHAT, "--trials", "0"), UsageError),
        (("submit", "--cluster", "mi355x-2x8", "--model", "bert", "--nodes", "4"), UsageError),
        (("submit", "--cluster", "leonardo"), UsageError),
        (("submit", "--stale", "--model", "bert"), UsageError),
        (("submit", "--stale", "--trials", "0"), UsageError),
        (("submit", "--stale", "--cluster", "nowhere"), NotFoundError),
        (("show", "nope"), NotFoundError),
        (("logs", "nope"), NotFoundError),
    ],
)
def test_bad_requests_are_refused(call, words, kind):
    with pytest.raises(kind):
        call(*words)


@pytest.mark.parametrize(
    ("words", "kind"),
    [(("--cluster", "nowhere"), NotFoundError), (("--cluster", "leonardo", "--at-once", "0"), UsageError)],
)
def test_a_worker_refuses_what_it_cannot_serve(command, words, kind):
    done = CliRunner(env={"NCCLT_STORAGE": command.url}).invoke(worker.app, [*words], standalone_mode=False)
    assert isinstance(done.exception, kind)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nonsense",), "no such option: --nonsense"),
        (("--storage", "sqlite:///other.db"), "no such option: --storage"),
        (("--launcher", "lsf"), "unknown launcher 'lsf'"),
        (("--benchmark", "nothing"), "unknown benchmark 'nothing'"),
    ],
)
def test_a_worker_refuses_options_that_every_job_would_fail_with(command, words, message, monkeypatch):
    monkeypatch.setattr(JobWorker, "serve", lambda _self: pytest.fail("it takes jobs"))
    line = ["admin", "worker", "--cluster", "leonardo", "--", *words]
    done = CliRunner(env={"NCCLT_STORAGE": command.url}).invoke(program, line)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
