"""Time and size of every page on a store with a year of studies, beside a bare route that sends as many bytes.

    python bench/pages.py [--store FILE.db] [--requests 40] [--quick] [--json]

Without --store a rich store is made first (bench/rich_store.py: 2,000 studies, a million measurements, a study of
10,000 trials; minutes), with --quick a small one. The service runs in a process of its own, as `ncclt serve` does; one
client asks for one page after the other on one connection, and each page is asked for once before it is timed. `ratio`
is the median time over that of a FastAPI route that sends the same number of bytes from memory, in the same run. The
queue of jobs is filled with as many as its page shows. Where there is a Chromium and Playwright, each page is then
opened by it at 1440 x 900 without a cache: `paint_ms` is the median time to its first contentful paint, `layout_shift`
the worst sum of layout shifts, `axe` the number of rules of axe-core that it violates. Everything stays on loopback.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ncclt.core.tuning_job import TuningJob
from ncclt.store import Store, open_store
from ncclt.store.job_queue import JobQueue, prepare
from ncclt_api.pages.jobs import JOBS_PER_PAGE
from rich_store import SMALL, Size, fill

OURS = """
import sys
from ncclt_api.app import create_app
import uvicorn
if __name__ == "__main__":
    app = create_app(sys.argv[2], large=sys.argv[2])
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
"""
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


@contextmanager
def serving(program: str, *arguments: str) -> Iterator[int]:
    """Run a server until the block ends; yield its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "serving.py"  # a file, since a spawned process imports it
        script.write_text(program)
        process = subprocess.Popen([sys.executable, str(script), str(port), *arguments])
        try:
            for _ in range(1200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if process.poll() is not None:
                    raise SystemExit("pages: the server ended before it listened")
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            process.wait(30)


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
    found = store.recommendations.newest_each(cluster=CLUSTER)[0]
    job = {"cluster": found.cluster, "model": found.model}
    (rollout, *_) = store.revisions.rollouts(cluster=CLUSTER, limit=1)
    return {
        "study": found.study,
        "recommendation": found.id,
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
    found = Axe().run(page).response["violations"]
    for one in found:
        print(f"pages: {address} violates {one['id']}: {one['nodes'][0]['target']}", file=sys.stderr)
    context.close()
    return len(found)


def measured(url: str, requests: int) -> list[dict[str, Any]]:
    with open_store(url) as store:
        filled = names(store)
    queue_jobs(url)
    rows = []
    with ExitStack() as stack:
        ours, bare = stack.enter_context(serving(OURS, url)), stack.enter_context(serving(BARE))
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
            rows.append(
                {
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
            )
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="a store that bench/rich_store.py made")
    parser.add_argument("--requests", type=int, default=40, help="of each page")
    parser.add_argument("--quick", action="store_true", help="a small store")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.requests < 5:
        parser.error("--requests is at least 5")
    if arguments.store is not None and not arguments.store.is_file():
        parser.error(f"--store: no file {arguments.store}")
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.store or Path(folder) / "rich.db"
        url = f"sqlite:///{path.resolve()}"
        if arguments.store is None:
            with open_store(url) as store:
                fill(store, SMALL if arguments.quick else Size())
        rows = measured(url, arguments.requests)
    if arguments.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    print(
        f"{'page':26} {'ms p50':>8} {'ms p95':>8} {'kB':>8} {'bare ms':>8} {'ratio':>7} {'paint ms':>9} "
        f"{'shift':>7} {'axe':>4}"
    )
    for row in rows:
        print(
            f"{row['page']:26} {row['ms_p50']:>8} {row['ms_p95']:>8} {row['kilobytes']:>8} "
            f"{row['bare_ms_p50']:>8} {row['ratio']:>7} "
            f"{'-' if row['paint_ms'] is None else row['paint_ms']:>9} "
            f"{'-' if row['layout_shift'] is None else row['layout_shift']:>7} "
            f"{'-' if row['axe'] is None else row['axe']:>4}"
        )


if __name__ == "__main__":
    main()
