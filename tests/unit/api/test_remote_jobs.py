"""`ncclt admin jobs --server`: the same words over HTTP, without the queue or its database here."""

import json

import pytest
from typer.testing import CliRunner

from ncclt.cli.jobs import app
from ncclt.core.api_key import ApiKey, Role, hash_secret
from ncclt.core.tuning_job import JobEvent, TuningJob
from ncclt.errors import ConflictError, NotFoundError, ServerError, UsageError
from ncclt.pipeline.remote_jobs import RemoteJobs
from ncclt.store import open_store
from ncclt.store.job_queue import JobQueue
from ncclt_api.app import create_app

pytest.importorskip("dbos")
WHAT = ("--cluster", "leonardo", "--model", "bert")


@pytest.fixture
def server(tmp_path, serving, monkeypatch):
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as store:
        for role in (Role.READ, Role.TUNE):
            store.keys.add(ApiKey(id=role.value, role=role), digest=hash_secret(role.value))
        monkeypatch.setenv("NCCLT_API_KEY", "tune")
        with serving(create_app(store, fresh_s=0)) as url:
            yield url


@pytest.fixture
def call(server):
    def run(*words):
        done = CliRunner().invoke(app, [*words, "--server", server], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.stdout

    return run


def test_a_job_is_submitted_listed_cancelled_and_tried_again(call):
    id = call("submit", *WHAT, "--nodes", "2", "--trials", "7", "--priority", "2", "--time", "9").strip()
    (job,) = json.loads(call("list", "--json"))["jobs"]
    assert (job["job"]["id"], job["state"], job["job"]["trials"], job["job"]["by"]) == (id, "queued", 7, "tune")
    assert (job["job"]["priority"], job["job"]["seconds"], job["job"]["nodes"]) == (2, 9.0, 2)
    assert id in call("list", "--cluster", "leonardo", "--state", "queued")
    assert id not in call("list", "--cluster", "elsewhere")
    assert f"id: {id}\n" in call("show", id)
    assert json.loads(call("cancel", id, "--json"))["state"] == "cancelled"
    assert call("retry", id).strip() == f"{id}-2"
    assert len(json.loads(call("list", "--limit", "1", "--json"))["jobs"]) == 1


def test_a_refusal_is_that_of_the_service(call, subtests):
    for words, kind in [
        (("submit", "--cluster", "nowhere", "--model", "bert"), NotFoundError),
        (("submit", *WHAT, "--trials", "0"), UsageError),
        (("show", "nope"), NotFoundError),
        (("retry", "nope"), NotFoundError),
        (("submit", "--stale", "--cluster", "nowhere"), NotFoundError),
    ]:
        with subtests.test(words=words):
            with pytest.raises(kind) as caught:
                call(*words)
            assert type(caught.value) is kind


def test_a_key_that_may_not_is_told_so(call, monkeypatch):
    monkeypatch.setenv("NCCLT_API_KEY", "read")
    assert json.loads(call("list", "--json"))["jobs"] == []
    with pytest.raises(ServerError, match="the key read may read; this needs tune"):
        call("submit", *WHAT)
    monkeypatch.delenv("NCCLT_API_KEY")
    with pytest.raises(ServerError, match="needs a key"):
        call("list")


def test_the_log_is_read_in_parts_to_its_end(call, monkeypatch):
    id = call("submit", *WHAT).strip()
    written = [JobEvent(number=0, kind="started", data={"worker": "w"})]
    written += [JobEvent(number=n, kind="log", data={"line": f"line {n} \u00fc: {'x' * 50}"}) for n in range(1, 30)]
    read = []

    def replay(_queue, _id, *, first):
        read.append(first)
        yield from written[first:]

    monkeypatch.setattr(JobQueue, "written", replay)
    monkeypatch.setattr("ncclt_api.routes.jobs._LONGEST_ANSWER", 300)
    assert call("logs", id).splitlines() == [event.data["line"] for event in written[1:]]
    assert len(read) > 5
    first, _ = json.JSONDecoder().raw_decode(call("logs", id, "--json"))
    assert first == {"number": 0, "kind": "started", "worker": "w"}
    call("cancel", id)
    assert call("logs", id, "--follow") == call("logs", id)


@pytest.mark.parametrize("where", ["server", "store"])
def test_stale_recommendations_are_tuned_again(server, samples, tmp_path, where):
    url = f"sqlite:///{tmp_path}/ncclt.db"

    def submit(*words):
        place = ("--server", server) if where == "server" else ()
        environ = {"NCCLT_STORAGE": url}
        done = CliRunner(env=environ).invoke(app, ["submit", "--stale", *words, *place], standalone_mode=False)
        return done.stdout, done.exception

    with open_store(url) as store:
        samples.fill(store)
        assert submit() == ("no stale recommendations\n", None)
        samples.make_stale(store, "0c0ffee1")
    (shown, failure), (again, _) = submit("--trials", "7"), submit("--cluster", "leonardo")
    (job,) = RemoteJobs(server).statuses(cluster=None, state=None, limit=9)
    tail = ": bert on leonardo, 2x4, NCCL 2.22.3: the recheck of 2026-11-21 10:00 found: the gain is lost\n"
    assert (failure, job.job.trials) == (None, 7)
    assert (shown, again) == (f"{job.job.id} queued{tail}", f"{job.job.id} already queued{tail}")
    (one,) = json.loads(submit("--json")[0])["stale"]
    assert (one["recommendation"], one["is_new"], one["status"]["state"]) == ("0c0ffee1", False, "queued")


def test_one_that_cannot_be_tuned_again_is_named_and_fails_the_command(server, samples, tmp_path):
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as store:
        done = samples.study(model="of-the-past")
        store.studies.open(done)
        store.revisions.publish(samples.recommendation(done))
        samples.make_stale(store, "0c0ffee1")
    done = CliRunner().invoke(app, ["submit", "--stale", "--server", server], standalone_mode=False)
    assert done.stdout.startswith("refused: of-the-past on leonardo, 2x4, NCCL 2.22.3: there is no workload")
    assert isinstance(done.exception, ConflictError)
    assert "0c0ffee1" in done.exception.message


@pytest.mark.parametrize("failure", ["503 behind a proxy", "the connection breaks"])
def test_a_request_without_an_answer_is_sent_again_and_queued_once(tmp_path, serving, monkeypatch, failure):
    monkeypatch.setattr("ncclt.pipeline.remote_jobs._PAUSES_S", (0.0, 0.0))
    keys = []
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as store:
        service = create_app(store, fresh_s=0)

        async def loses_the_first_answer(scope, receive, send):
            if scope["type"] != "http" or scope["method"] != "POST":
                await service(scope, receive, send)
                return
            keys.append(dict(scope["headers"])[b"idempotency-key"])

            async def lose(_message):
                pass

            await service(scope, receive, lose if len(keys) == 1 else send)
            if len(keys) == 1 and failure.startswith("503"):
                await send({"type": "http.response.start", "status": 503, "headers": []})
                await send({"type": "http.response.body", "body": b""})

        with serving(loses_the_first_answer) as url:
            jobs = RemoteJobs(url)
            for _ in range(2):
                jobs.submit(TuningJob(id="", cluster="leonardo", model="bert"), again=True)
            assert len(jobs.statuses(cluster=None, state=None, limit=9)) == 2
    assert keys[0] == keys[1] != keys[2]


def test_a_refusal_is_not_repeated(server, monkeypatch):
    monkeypatch.setattr("ncclt.pipeline.remote_jobs._PAUSES_S", (3600.0,))
    with pytest.raises(NotFoundError):
        RemoteJobs(server).submit(TuningJob(id="", cluster="nowhere", model="bert"), again=False)


def test_pages_are_read_to_the_limit(server, monkeypatch):
    monkeypatch.setattr("ncclt.pipeline.remote_jobs._PAGE", 2)
    jobs = RemoteJobs(server)
    for trials in range(10, 15):
        CliRunner().invoke(app, ["submit", *WHAT, "--trials", str(trials), "--server", server], standalone_mode=False)
    found = jobs.statuses(cluster=None, state=None, limit=4)
    assert [one.job.trials for one in found] == [14, 13, 12, 11]
    assert len(jobs.statuses(cluster=None, state=None, limit=500)) == 5


def test_what_is_no_service_is_said():
    with pytest.raises(ServerError, match="nothing listens"):
        RemoteJobs("http://127.0.0.1:9").status("a")
    with pytest.raises(UsageError, match="not a server address"):
        RemoteJobs("file:///etc/passwd").status("a")
