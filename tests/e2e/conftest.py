"""The command line as a newcomer types it, in a process and a home of its own; and a browser on a served store.

What is waited for is forked from a process that has imported ncclt; what runs beside a test starts with an interpreter.
"""

import contextlib
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
STAND_IN = Path(__file__).resolve().parents[1] / "fakes" / "nccl_tests_stand_in.py"
SCREENSHOTS = os.environ.get("NCCLT_TEST_SCREENSHOTS")
"""Folder to keep pictures in, for a look by eye."""

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@dataclass
class Shell:
    """Runs ncclt in a folder, away from the user's own files and variables."""

    folder: object
    popen: object
    nursery: object
    variables: dict = field(default_factory=dict)

    @property
    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "SLURM", "XDG_"))}
        return {**kept, "HOME": str(self.folder), "NO_COLOR": "1", **self.variables}

    def argv(self, *words):
        return [sys.executable, "-m", "ncclt", *map(str, words)]

    def __call__(self, *words, rc=0):
        done = subprocess.CompletedProcess(words, *self.nursery(words, self.environment, self.folder))
        assert rc is None or done.returncode == rc, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done

    def start(self, *words):
        return self.popen(
            self.argv(*words),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def ncclt(tmp_path, start, nursery):
    """The command line in an empty folder; what it starts ends with the test."""
    return Shell(tmp_path, start, nursery)


@pytest.fixture
def local(ncclt):
    """Words of a study on this machine, with a stand-in for nccl-tests in place: invented times."""
    folder = ncclt.folder / "nccl-tests"
    folder.mkdir()
    runpy.run_path(str(STAND_IN))["install"](folder)
    job = ("--model", "nasnetmobile", "--cluster", "dgx-a100", "--nodes", "1", "--gpus-per-node", "2")
    return ("tune", *job, "--launcher", "local", "--nccl-tests", folder)


@pytest.fixture(scope="session")
def serving():
    """Return a context manager that serves a store on loopback and gives its address."""
    uvicorn = pytest.importorskip("uvicorn")
    from ncclt_api.app import create_app

    @contextlib.contextmanager
    def served(store):
        server = uvicorn.Server(uvicorn.Config(create_app(store, fresh_s=0), port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=240)
        assert not thread.is_alive()

    return served


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium of the system."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, server):
    """Open a path and return its page; fails at the end if the browser complained about anything."""
    contexts, complaints = [], []

    def go(path="/", *, width=1280, height=900, scheme="light", scripts=True, wait_until="load"):
        viewport = {"width": width, "height": height}
        context = browser.new_context(color_scheme=scheme, viewport=viewport, java_script_enabled=scripts)
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


@pytest.fixture(scope="session")
def fill_rich_store():
    """Return the function that fills a store with a year of made-up studies."""
    path = Path(__file__).parents[2] / "bench" / "rich_store.py"
    spec = importlib.util.spec_from_file_location("rich_store", path)
    module = sys.modules["rich_store"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fill
