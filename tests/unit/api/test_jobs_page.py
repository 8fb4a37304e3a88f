"""The page of tuning jobs, and the forms that start, cancel and retry one."""

import pytest
from fastapi.testclient import TestClient

from ncclt.core.study import StudyEntry
from ncclt.core.tuning_job import JobResult, JobState, JobStatus, TuningJob
from ncclt_api.app import create_app
from ncclt_api.pages import jobs as job_pages
from ncclt_api.pages.environment import render_page
from ncclt_api.sign_in import Visitor

JOB = {"cluster": "leonardo", "model": "bert"}


@pytest.fixture
def browser(empty_store):
    with TestClient(create_app(empty_store, fresh_s=0), headers={"Accept": "text/html"}) as opened:
        yield opened


def jobs(browser, **query):
    return browser.get("/jobs", params={**query, "format": "json"}).json()["jobs"]


def test_a_study_is_started_cancelled_and_tried_again(browser, post_form):
    assert "No jobs." in browser.get("/jobs").text
    answer = post_form(browser, "/jobs", **JOB, trials="7", nodes="", priority="2")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
    (row,) = jobs(browser)
    job = row["job"]
    assert (job["trials"], job["priority"], job["nodes"], row["state"]) == (7, 2, None, "queued")
    page = browser.get("/jobs").text
    assert 'hx-trigger="every 5s"' in page
    assert "ncclt admin worker <span>--cluster</span> leonardo" in page  # an option is not broken after its hyphens
    cancel = f"/jobs/{job['id']}/cancel"
    assert f'action="{cancel}"' in page
    assert browser.post(cancel, data={"token": "wrong"}).status_code == 403
    assert post_form(browser, cancel).status_code == 303
    assert jobs(browser)[0]["state"] == "cancelled"
    assert 'hx-trigger="every 5s"' not in browser.get("/jobs").text
    retry = f"/jobs/{job['id']}/retry"
    assert browser.post(retry, data={"token": "wrong"}).status_code == 403
    assert post_form(browser, retry).status_code == 303
    assert [one["state"] for one in jobs(browser)] == ["queued", "cancelled"]
    assert [one["state"] for one in jobs(browser, state="queued")] == ["queued"]
    assert jobs(browser, cluster="elsewhere") == []


def test_the_part_that_lives_is_answered_alone(browser, post_form):
    post_form(browser, "/jobs", **JOB)
    part = browser.get("/jobs", headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert 'id="queue"' in part


def test_an_invalid_job_is_refused_with_a_page(browser, post_form):
    for wrong in ({"trials": "0"}, {"trials": "x"}, {"priority": "10"}, {"nodes": "-1"}, {"model": "nothing-like-it"}):
        answer = post_form(browser, "/jobs", **{**JOB, **wrong})
        assert answer.status_code in (404, 422), wrong
        assert answer.headers["content-type"].startswith("text/html"), wrong
    assert jobs(browser) == []


def test_without_the_queue_the_page_says_what_to_install(browser, monkeypatch):
    monkeypatch.setattr(job_pages, "is_installed", lambda: False)
    page = browser.get("/jobs").text
    assert "pip install &#39;ncclt[jobs]&#39;" in page
    assert 'method="post"' not in page


def test_the_queue_shows_progress_and_result(samples):
    study = samples.study()
    job = TuningJob(id="a", cluster="leonardo", model="bert", trials=40, study=study.name)
    summary = StudyEntry(study=study, trials=12, best_us=None, default_us=None, recommendation=None)
    result = JobResult(state=JobState.DONE, study="5e1f", trials=51, decision="tuned", recorded="recorded: x")
    rows = []
    for status in (
        JobStatus(job=job, state=JobState.RUNNING, worker="login1"),
        JobStatus(job=job, state=JobState.RUNNING, worker="login1", cancelling=True),
        JobStatus(job=job, state=JobState.DONE, result=result),
    ):
        values = {"rows": [status], "running": {study.name: summary}, "live": False, "newer": "", "older": ""}
        rows.append(render_page("_queue.html", visitor=Visitor(key=None, signed_in=False, token="t"), **values))
    live, ending, done = rows
    for text in (f'href="/studies/{study.id}"', "on login1", 'value="12"', "max 40", ">simulated<", "/jobs/a/cancel"):
        assert text in live, text
    assert ">cancelling</span>" in ending
    assert "/jobs/a/" not in ending
    for text in ('href="/studies/5e1f"', "<bdi>tuned</bdi>", ">51<", 'title="recorded: x"', "/jobs/a/retry"):
        assert text in done, text
