"""The pages in a real browser, from a real server."""

import dataclasses
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclt.core.revision import Actor, ClusterRules
from ncclt.core.rollout import JobTime, RollOutState
from ncclt.core.setting import DEFAULT
from ncclt.core.study import StudyState
from ncclt.prove import rollout as prove_rollout
from ncclt.store import open_store
from ncclt.testing.samples import sample_ticket

playwright_api = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.browser

SCREENSHOTS = os.environ.get("NCCLT_TEST_SCREENSHOTS")
"""Folder to keep pictures in, for a look by eye."""


def load_samples():
    """Return the module of hand-made studies."""
    path = Path(__file__).parents[1] / "unit" / "api" / "samples.py"
    spec = importlib.util.spec_from_file_location("e2e_samples", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


samples = load_samples()


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving):
    """Address of a service with three studies."""
    folder = tmp_path_factory.mktemp("pages")
    profiles = samples.store_profiles(folder / "profiles")
    with open_store(f"sqlite:///{folder}/ncclt.db", profiles=profiles) as store:
        samples.fill(store)
        with serving(store) as address:
            yield address


@pytest.fixture
def visit(browser, server):
    """Open a path and return its page; fails at the end if the browser complained about anything."""
    contexts, complaints = [], []

    def go(path, *, width=1280, scheme="light", wait_until="load"):
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda failed: complaints.append(f"{failed.url}: {failed.failure}"))
        page.on("response", lambda answer: answer.status >= 400 and complaints.append(f"{answer.status} {answer.url}"))
        page.on("request", lambda sent: sent.url.startswith(server) or complaints.append(f"loads {sent.url}"))
        page.on("dialog", lambda dialog: (complaints.append("a script ran"), dialog.dismiss()))
        page.goto(server + path, wait_until=wait_until)
        if SCREENSHOTS:
            name = f"{path.strip('/').replace('/', '-')}-{width}-{scheme}.png"
            page.screenshot(path=Path(SCREENSHOTS) / name, full_page=True)
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []


def fits(page):
    """Tell whether the page itself does not scroll sideways; its tables may."""
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_no_narrow_dark_page_complains_or_scrolls_sideways(visit):
    """Of the wide ones, the other tests say that."""
    for path in ("/studies", "/studies/5e1f00aa", "/studies/7a6bbb02", "/studies/bad00003"):
        page = visit(path, width=390, scheme="dark", wait_until="networkidle")
        assert fits(page), path
        answers = [page.locator(".lead"), *([page.locator(".answers")] if path != "/studies" else [])]
        assert all(part.bounding_box()["y"] < 900 for part in answers), "the first screen answers"


def test_a_study_shows_verdict_pictures_and_evidence(visit):
    page = visit("/studies/5e1f00aa")
    assert page.locator("h1").inner_text() == "bert on leonardo"
    assert "SIMULATED" in page.locator(".banner").inner_text()
    assert "1.083× faster than the NCCL default on simulated times" in page.locator(".lead").inner_text()
    assert "Simulated" in page.locator(".answers").inner_text()
    assert page.locator("#evidence-heading").is_visible()
    playwright_api.expect(page.locator("#interval-chart canvas")).to_have_count(1)
    assert "ncclt run" not in page.locator("main").inner_text(), "a simulated result is given to no job"
    assert fits(page)


def test_parts_of_a_study_are_links(visit):
    page = visit("/studies/5e1f00aa")
    page.locator("#tab-search").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/studies/5e1f00aa?tab=search")
    playwright_api.expect(page.locator("#search-chart canvas")).to_have_count(1)
    assert "Revision 1 published" in page.locator("ol.log").inner_text()
    assert fits(page)


def test_a_study_is_readable_without_scripts(browser, server):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(server + "/studies/5e1f00aa")
    page.locator("#tab-sizes").click()
    wins = page.locator("#wins-chart .as-table table")
    playwright_api.expect(wins).to_be_visible()
    assert "tree/ll128 c=8" in wins.inner_text()
    playwright_api.expect(page.locator("#wins-chart .plot")).to_be_hidden()
    context.close()


def test_a_running_study_changes_without_reload_until_it_ends(browser, serving, tmp_path):
    """Polling replaces the open part of the page, and stops with the study."""
    study = samples.study(state=StudyState.RUNNING)
    with open_store(f"sqlite:///{tmp_path}/live.db") as store, serving(store) as address:
        store.studies.open(study)
        store.trials.add(study.id, samples.trial(0, DEFAULT, study))
        context = browser.new_context()
        page = context.new_page()
        complaints = []
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{address}/studies/{study.id}?tab=search")
        loaded = []
        page.on("load", lambda: loaded.append(page.url))
        verdict = page.locator("#verdict")
        playwright_api.expect(verdict).to_contain_text("1 launch")
        store.trials.add(study.id, samples.trial(1, samples.TREE, study))
        playwright_api.expect(verdict).to_contain_text("2 launches", timeout=120_000)
        playwright_api.expect(page.locator("ol.log")).to_contain_text("Best single setting")
        playwright_api.expect(page.locator("#search-chart canvas")).to_have_count(1)
        store.studies.set_state(study.id, StudyState.DONE, "enough was seen")
        playwright_api.expect(verdict).to_contain_text("no verdict", timeout=120_000)
        playwright_api.expect(page.locator("main")).to_have_count(1)
        assert page.locator("[hx-trigger^=every]").count() == 0
        assert loaded == complaints == []
        context.close()


def report_step_times(store, rollout, numbers):
    """Start jobs and keep their step times, those with the new revision 10 % faster, while the roll-out runs."""
    for number in numbers:
        job, issued_s = f"job-{number}", time.time() - 1.0
        start = store.revisions.claim_start(rollout.id, job, issued_s=issued_s)
        if start is None:
            return
        got = start.recommendation
        ticket = sample_ticket(store.ticket_secret(), job, issued_s=issued_s, recommendation=got, rollout=rollout.id)
        step_us = 10.0 if got == rollout.control else 9.0
        seen = prove_rollout.report_job_time(
            store,
            ticket,
            JobTime(
                rollout=rollout.id,
                job=job,
                recommendation=got,
                step_us=step_us,
                steps=40,
                who="ann",
                address="127.0.0.1",
            ),
        )
        if seen.state is not RollOutState.RUNNING:
            return


@pytest.mark.thorough
def test_a_roll_out_is_compared_without_reload_until_it_ends(browser, serving, tmp_path, monkeypatch):
    """The page follows the reports of jobs; a win awaits approval, which ends it."""
    monkeypatch.setattr(prove_rollout, "_LEAST_GRACE_S", 0.0)  # jobs of a real cluster take longer than these
    with open_store(f"sqlite:///{tmp_path}/live.db") as store, serving(store) as address:
        samples.fill(store)
        active = store.recommendations.get("0c0ffee1")
        store.revisions.set_rules(ClusterRules(cluster=active.cluster, percent=50), Actor(who="ann"))
        rules = tuple(dataclasses.replace(one, channels=7) for one in active.table.policy.rules)
        policy = dataclasses.replace(active.table.policy, rules=rules)
        table = dataclasses.replace(active.table, policy=policy)
        store.revisions.publish(dataclasses.replace(active, id="0c0ffee9", table=table), by=Actor(who="ann"))
        (rollout,) = store.revisions.rollouts(recommendation="0c0ffee9")
        first = next(n for n in range(1, 500) if rollout.find_arm(f"job-{n - 1}") is not None)
        page = browser.new_page()
        complaints = []
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.goto(f"{address}/roll-outs/{rollout.id}")
        loaded = []
        page.on("load", lambda: loaded.append(page.url))
        expect, badge = playwright_api.expect, page.locator(".hero .lead .badge")
        jobs = page.locator("#live tbody tr").first.locator("td").nth(3)
        expect(badge).to_have_text("running")
        expect(jobs).to_have_text("0")
        expect(page.get_by_text("to 50 % of the jobs that start")).to_be_visible()
        report_step_times(store, rollout, range(first))
        expect(jobs).to_have_text("1", timeout=60_000)
        report_step_times(store, rollout, range(first, 500))
        expect(badge).to_have_text("won", timeout=60_000)
        store.revisions.approve("0c0ffee9", Actor(who="bob"))
        expect(badge).to_have_text("promoted", timeout=60_000)
        expect(page.locator("main")).to_have_count(1)
        assert page.locator("[hx-trigger^=every]").count() == 0
        assert loaded == complaints == []
        page.close()


def test_a_report_opened_from_a_disk_shows_verdict_and_charts_and_requests_nothing(browser, tmp_path):
    """Written by the command itself; no server is there that it could ask."""
    with open_store(f"sqlite:///{tmp_path}/ncclt.db", profiles=samples.store_profiles(tmp_path / "profiles")) as store:
        samples.fill(store)
        url = store.url
    file = tmp_path / "report.html"
    subprocess.run([sys.executable, "-m", "ncclt", "report", "5e1f00aa", "-o", str(file), "--storage", url], check=True)
    page = browser.new_page()
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda sent: requests.append(sent.url))
    page.goto(file.as_uri(), wait_until="networkidle")
    assert "1.083×" in page.locator("#verdict").inner_text()
    assert page.locator("[data-chart]").count() > 3
    for chart in page.locator("[data-chart]").all():
        chart.scroll_into_view_if_needed()
        playwright_api.expect(chart.locator("canvas")).to_have_count(1)
    assert fits(page)
    assert requests == [file.as_uri()]
    assert complaints == []
    page.close()


def test_hostile_names_are_only_text(visit):
    page = visit("/studies/bad00003")
    assert page.locator("h1").inner_text() == f"{samples.HOSTILE} on {samples.HOSTILE}"
    mine = page.locator('script[src^="/assets/"], script[type="application/json"]')
    assert page.locator("script").count() == mine.count() > 0
    assert fits(page)
