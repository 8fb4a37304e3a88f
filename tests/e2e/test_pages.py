"""The pages in a real browser, from a real server."""

import importlib.util
import os
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest
import uvicorn

from ncclt.store import open_store
from ncclt_api.app import create_app

playwright_api = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
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
def server(tmp_path_factory):
    """Address of a service with three studies."""
    folder = tmp_path_factory.mktemp("pages")
    profiles = samples.store_profiles(folder / "profiles")
    with open_store(f"sqlite:///{folder}/ncclt.db", profiles=profiles) as store, socket.socket() as listening:
        samples.fill(store)
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(create_app(store), log_level="warning")
        process = uvicorn.Server(config)
        thread = threading.Thread(target=process.run, kwargs={"sockets": [listening]})
        thread.start()
        deadline = time.monotonic() + 240
        while not process.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.started
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        process.should_exit = True
        thread.join(timeout=240)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium of the system."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(params=["light-wide", "dark-wide", "light-narrow", "dark-narrow"])
def visit(browser, server, request):
    """Open a path and return its page; fails at the end if the browser complained about anything."""
    scheme, width = request.param.split("-")
    size = {"wide": {"width": 1280, "height": 900}, "narrow": {"width": 390, "height": 844}}[width]
    context = browser.new_context(color_scheme=scheme, viewport=size)
    page = context.new_page()
    complaints = []
    page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda failed: complaints.append(f"{failed.url}: {failed.failure}"))
    page.on("response", lambda answer: answer.status >= 400 and complaints.append(f"{answer.status} {answer.url}"))
    page.on("request", lambda sent: sent.url.startswith(server) or complaints.append(f"loads {sent.url} from outside"))
    page.on("dialog", lambda dialog: (complaints.append("a script ran"), dialog.dismiss()))

    def go(path, *, picture):
        page.goto(server + path, wait_until="networkidle")
        if SCREENSHOTS:
            page.screenshot(path=Path(SCREENSHOTS) / f"{picture}-{request.param}.png", full_page=True)
        return page

    yield go
    context.close()
    assert complaints == []


def fits(page):
    """Tell whether the page itself does not scroll sideways; its tables may."""
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_list_shows_every_study(visit):
    page = visit("/", picture="index")
    assert page.locator("h1").inner_text() == "Studies"
    assert page.locator("tbody tr").count() == 3
    assert page.locator("svg.interval").count() == 2
    assert page.locator(".badge.simulated").count() == 2
    assert "1.083×" in page.locator("tbody tr", has_text="bert on").first.inner_text()
    assert "in a job: partly" in page.locator("tbody tr", has_text="bert on").first.inner_text()
    assert fits(page)


def test_a_study_shows_verdict_pictures_and_evidence(visit):
    page = visit("/studies/5e1f00aa", picture="study")
    assert page.locator("h1").inner_text() == "bert on leonardo"
    assert "SIMULATED" in page.locator(".banner").inner_text()
    assert "In the simulation 1.083×" in page.locator(".lead").inner_text()
    assert page.locator("svg.plot").count() == 2
    assert page.locator("svg.plot circle.trial").count() > 20
    assert page.locator("#evidence-heading").is_visible()
    assert "ncclt run --cluster leonardo --model bert" in page.locator(".copyable code").first.inner_text()
    assert fits(page)


def test_a_study_shows_what_real_jobs_told(visit):
    page = visit("/studies/5e1f00aa", picture="jobs")
    jobs = page.locator("section", has=page.locator("#jobs-heading"))
    assert jobs.locator(".badge").all_inner_texts()[:2] == ["partly", "took effect"]
    jobs.locator("summary").first.click()
    assert "offers no such choice" in jobs.locator("details table").first.inner_text()
    assert "1.050×" in jobs.inner_text()
    assert fits(page)


def test_keeping_the_default_is_said_in_words(visit):
    page = visit("/studies/7a6bbb02", picture="kept")
    assert "NCCL's own choice stays" in page.locator(".lead").inner_text()
    assert page.locator(".banner").count() == 0
    assert page.locator(".copyable").count() == 0


def test_hostile_names_are_only_text(visit):
    page = visit("/studies/bad00003", picture="hostile")
    assert page.locator("h1").inner_text() == f"{samples.HOSTILE} on {samples.HOSTILE}"
    assert page.locator("script").count() == 1
    assert fits(page)


def test_the_line_can_be_copied(visit):
    page = visit("/studies/5e1f00aa", picture="copy")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator("[data-copy]").first
    button.click()
    page.wait_for_function("document.querySelector('[data-copy]').textContent === 'Copied'")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator(".copyable code").first.text_content()
