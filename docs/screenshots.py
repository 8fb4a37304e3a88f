"""Take the pictures of docs/operator/pages.md: a made-up store is served, and the system's Chromium looks at it.

    python docs/screenshots.py [--out docs/images] [--only map ...]

bench/rich_store.py fills the store, without the names that try to break a page. One study replays a recorded
landscape, the others are invented; the pictures show pages, not results.
"""

from __future__ import annotations

import argparse
import io
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from ncclt.store import Store, open_store
from ncclt_api.app import create_app

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 1440, 900
MOST_BYTES = 150_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
STUDY = "10000aaaaaaa"
"""The longest study, of search-encoder on hall-a."""


def shots(store: Store) -> dict[str, str]:
    """Return the address of each picture by its name; the study is the fastest tuned one that was measured."""
    tuned = [
        pair.recommendation
        for pair in store.recommendations.pairs(cluster="hall-a")
        if pair.recommendation and not pair.recommendation.stale and pair.recommendation.table.effective.rules
    ]
    best = max(tuned, key=lambda one: one.table.verdict.speedup) if tuned else None
    return {
        "map": "/",
        "study": f"/studies/{best.study if best else STUDY}",
        "cluster": "/clusters/hall-a",
    }


@contextmanager
def served(store: Store) -> Iterator[str]:
    """Serve a store until the block ends; yield the address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(store), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.05)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def small(png: bytes) -> bytes:
    """Return a picture with at most 256 colours, packed as tightly as PNG allows."""
    packed = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(colors=256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        packed, format="PNG", optimize=True
    )
    return packed.getvalue()


def take(store: Store, out: Path, only: list[str]) -> None:
    """Write the pictures; SystemExit if one is too large or there is no browser."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit(f"screenshots: none of {', '.join(BROWSERS)} is installed")
    with served(store) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        for name, path in shots(store).items():
            if only and name not in only:
                continue
            page.goto(address + path, wait_until="networkidle")
            png = small(page.screenshot())
            if len(png) > MOST_BYTES:
                raise SystemExit(f"screenshots: {name} has {len(png)} bytes")
            (out / f"page-{name}-wide.png").write_bytes(png)
            sys.stdout.write(f"page-{name}-wide.png {len(png)} bytes\n")
        browser.close()


def main(argv: list[str] | None = None) -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--only", action="append", default=[], help="name of a picture; repeatable")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/rich.db") as store:
        sys.path.insert(0, str(ROOT / "bench"))
        from rich_store import Size, fill

        fill(store, Size(measurements=60_000, long=2_000, replays=1, hostile=False))
        take(store, arguments.out, arguments.only)


if __name__ == "__main__":
    main()
