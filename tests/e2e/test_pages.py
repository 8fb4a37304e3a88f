"""The pages in a real browser, from a real server."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ncclt.core.setting import DEFAULT
from ncclt.core.study import StudyState
from ncclt.store import open_store

playwright_api = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.browser


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
