"""Time and size of every page on a store with a year of studies, beside a bare route that sends as many bytes.

    python bench/pages.py [--requests 40] [--quick] [--json]

A rich store is made first (bench/rich_store.py: 2,000 studies, a million measurements, a study of 10,000 trials;
minutes), with --quick a small one. The service runs in a process of its own, as `ncclt serve` does; one
client asks for one page after the other on one connection, and each page is asked for once before it is timed. `ratio`
is the median time over that of a FastAPI route that sends the same number of bytes from memory, in the same run. The
queue of jobs is filled with as many as its page shows. Where there is a Chromium and Playwright, each page is then
opened by it at 1440 x 900 without a cache: `paint_ms` is the median time to its first contentful paint, `layout_shift`
the worst sum of layout shifts, `axe` the number of rules of axe-core that it violates. Everything stays on loopback.
"""

from __future__ import annotations

import http.client
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from ncclt.core.tuning_job import TuningJob
from ncclt.store import Store, open_store
from ncclt.store.job_queue import JobQueue, prepare
from ncclt_api.pages.jobs import JOBS_PER_PAGE
from output import Rows, build_parser
from rich_store import SMALL, Size, fill
from servers import OURS, serving

BARE = """
import sys
from fastapi import FastAPI
from starlette.responses import HTMLResponse
import uvicorn
app, body = FastAPI(), "x" * 4_000_000
@app.get("/{count}")
def send(count: int):
    return HTMLResponse(body[:count])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
"""
LONG = "10000aaaaaaa"
"""The study of 10,000 trials."""

PAGES = {
    "map": "/",
    "map, what changed": "/?days=30",
    "map as JSON": "/?format=json",
    "running studies": "/live",
    "list of studies": "/studies",
    "find": "/find?q=hall",
    "cluster": "/clusters/hall-a",
    "gain over time": "/clusters/{cluster}/workloads/{model}",
    "stale": "/?state=stale",
    "workload": "/workloads/chat-13b?with=chat-13b-r2",
    "workload, many messages": "/workloads/nasnetmobile-unfused",
    "compare releases": "/compare?model=chat-13b&cluster=hall-a",
    "study": "/studies/{study}",
    "study as JSON": "/studies/{study}?format=json",
    "study's trials as CSV": "/studies/{study}/trials?format=csv",
    "study of 10,000 trials": f"/studies/{LONG}",
    "its sizes": f"/studies/{LONG}?tab=sizes",
    "its search": f"/studies/{LONG}?tab=search",
    "its trials, slowest": f"/studies/{LONG}?tab=trials&sort=-time&page=2",
    "its trials, filtered": f"/studies/{LONG}?tab=trials&phase=search&algorithm=tree&sort=time",
    "its jobs": f"/studies/{LONG}?tab=jobs",
    "trial": "/studies/{study}/trials/0",
    "trial of the 10,000": f"/studies/{LONG}/trials/500",
    "recommendation": "/recommendations/{recommendation}",
    "what a job gets": "/recommendations?{job}",
    "roll-outs": "/roll-outs",
    "roll-out": "/roll-outs/{rollout}",
    "jobs": "/jobs",
}
"""Path of each page; the names in braces are filled in from the store."""

VISITS = 3
"""Of the browser, to each page."""

SHIFTS = """
window.shifted = 0;
new PerformanceObserver((seen) => { for (const entry of seen.getEntries()) window.shifted += entry.value; })
  .observe({ type: "layout-shift", buffered: true });
"""
"""Sums the layout shifts that the user did not cause, from the start of the page."""

PAINTED = """() => new Promise((resolve) => {
  new PerformanceObserver((seen) => {
    for (const entry of seen.getEntriesByName("first-contentful-paint")) resolve(entry.startTime);
  }).observe({ type: "paint", buffered: true });
})"""

CLUSTER = "hall-b"
"""Where the usual study and recommendation are from."""


def timed(port: int, path: str, requests: int) -> tuple[list[float], int]:
    """Return the times of some requests after a first one, ms, and the bytes of the last answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    times = []
    for number in range(requests + 1):
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"pages: {path} answers {answer.status}: {body[:300]!r}")
        if number:
            times.append(1e3 * (time.perf_counter() - began))
    connection.close()
    return times, len(body)


def percentile_95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20, method="inclusive")[-1]


def names(store: Store) -> dict[str, str]:
    """Return the values for the names in `PAGES`: those of the newest result and roll-out of a cluster."""
    newest = store.recommendations.newest_each(cluster=CLUSTER)[0]
    job = {"cluster": newest.cluster, "model": newest.model}
    (rollout, *_) = store.revisions.rollouts(cluster=CLUSTER, limit=1)
    return {
        "study": newest.study,
        "recommendation": newest.id,
        "job": urlencode(job),
        "cluster": quote(rollout.cluster),
        "model": quote(rollout.model),
        "rollout": rollout.id,
    }


def queue_jobs(url: str) -> None:
    """Fill a page of the queue; the same jobs again are queued once."""
    prepare(url)
    with JobQueue(url) as queue:
        for number in range(JOBS_PER_PAGE):
            queue.submit(TuningJob(id=f"{number:016x}", cluster=CLUSTER, model="bert"))


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a Chromium driven by Playwright; None, with a line on stderr, where there is none."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright  # only the development extra has it
    except ImportError:
        program = None
    if program is None:
        print("pages: no Chromium with Playwright here: paint and layout shift are not measured", file=sys.stderr)
        yield None
        return
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield chromium
        finally:
            chromium.close()


def painted(chromium: Any, address: str) -> tuple[float, float]:
    """Return the median time to the first contentful paint, ms, and the largest sum of layout shifts of a visit."""
    paints, shifts = [], []
    for _ in range(VISITS):
        context = chromium.new_context(viewport={"width": 1440, "height": 900})  # a new one has an empty cache
        page = context.new_page()
        page.add_init_script(SHIFTS)
        page.goto(address, wait_until="load")
        paints.append(float(page.evaluate(PAINTED)))
        page.wait_for_timeout(200)  # what scripts do after loading shifts, too
        shifts.append(float(page.evaluate("window.shifted")))
        context.close()
    return statistics.median(paints), max(shifts)


def count_violations(chromium: Any, address: str) -> int | None:
    """Return the number of rules of axe-core that a page violates; None without axe-core."""
    try:
        from axe_playwright_python.sync_playwright import Axe  # only the development extra has it
    except ImportError:
        return None
    # axe-core is injected: only for that, the page's own policy against such scripts is set aside.
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.goto(address, wait_until="load")
    violations = Axe().run(page).response["violations"]
    for violation in violations:
        print(f"pages: {address} violates {violation['id']}: {violation['nodes'][0]['target']}", file=sys.stderr)
    context.close()
    return len(violations)


def measured(url: str, requests: int) -> Iterator[dict[str, Any]]:
    with open_store(url) as store:
        filled = names(store)
    queue_jobs(url)
    with ExitStack() as stack:
        (ours, _), (bare, _) = stack.enter_context(serving(OURS, url)), stack.enter_context(serving(BARE))
        chromium = stack.enter_context(browser())
        for page, unfilled in PAGES.items():
            path = unfilled.format_map(filled)
            count = max(6, requests // 4) if LONG in path else requests
            times, size = timed(ours, path, count)
            empty, _ = timed(bare, f"/{size}", requests)
            paint = shift = axe = None
            if chromium and "format=" not in path:
                paint, shift = painted(chromium, f"http://127.0.0.1:{ours}{path}")
                axe = None if path == "/live" else count_violations(chromium, f"http://127.0.0.1:{ours}{path}")
            yield {
                "page": page,
                "ms_p50": round(statistics.median(times), 1),
                "ms_p95": round(percentile_95(times), 1),
                "kilobytes": round(size / 1e3, 1),
                "bare_ms_p50": round(statistics.median(empty), 2),
                "ratio": round(statistics.median(times) / statistics.median(empty), 1),
                "paint_ms": None if paint is None else round(paint),
                "layout_shift": None if shift is None else round(shift, 4),
                "axe": axe,
            }


def main(argv: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--requests", type=int, default=40, help="of each page")
    parser.add_argument("--quick", action="store_true", help="a small store")
    arguments = parser.parse_args(argv)
    if arguments.requests < 5:
        parser.error("--requests is at least 5")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/rich.db"
        with open_store(url) as store:
            fill(store, SMALL if arguments.quick else Size())
        rows = Rows(as_json=arguments.json)
        for row in measured(url, arguments.requests):
            rows.add(row)
    rows.end()


if __name__ == "__main__":
    main()
