"""The pages over many studies in a real browser, on a store with a year of made-up studies."""

import re

import pytest

from ncclt.store import open_store

playwright_api = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.browser

PAGES = {
    "map": "/",
    "changed": "/?days=30",
    "studies": "/studies",
    "find": "/find?q=hall",
    "stale": "/?state=stale",
    "cluster": "/clusters/hall-a",
    "gain": "/clusters/hall-a/workloads/chat-13b",
    "workload": "/workloads/chat-13b?with=chat-13b-r2",
    "compare": "/compare?model=chat-13b",
}
WITH_TABLES = ("map", "studies", "cluster", "workload", "compare")


@pytest.fixture(scope="module")
def store(tmp_path_factory, fill_rich_store):
    """A small rich store."""
    with open_store(f"sqlite:///{tmp_path_factory.mktemp('rich')}/ncclt.db") as store:
        fill_rich_store(store)
        yield store


@pytest.fixture(scope="module")
def server(store, serving):
    """Address of a service on it."""
    with serving(store) as address:
        yield address


def test_no_page_complains(visit, server, subtests):
    """A script of a page shows no other tables than the page has without; test_accessible_pages.py looks for sizes."""
    page = visit(width=360, scheme="dark")
    without = visit(width=360, scheme="dark", scripts=False)
    for name, path in PAGES.items():
        with subtests.test(name):
            page.goto(server + path, wait_until="networkidle")
            assert page.locator("h1").count() == 1
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.evaluate("document.querySelectorAll('bdi script, bdi img').length") == 0
            if name in WITH_TABLES:
                without.goto(server + path)
                assert without.locator("main table").count() == page.locator("main table").count() > 0


def test_what_is_typed_is_found_and_reached_with_the_keyboard(visit):
    page = visit("/")
    page.locator("input[name=q]").first.focus()
    page.keyboard.type("hall-b")
    # Not the list for the first letters.
    playwright_api.expect(page.locator("#found a").first).to_have_attribute("href", "/clusters/hall-b")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "/clusters/hall-b"
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.locator("h1").inner_text() == "hall-b"


def listed(page):
    """Return what of the trials is chosen and shown, from the list itself and not from the address."""
    chosen = {name: page.input_value(f"#trials select[name={name}]") for name in ("phase", "outcome")}
    sort = page.input_value("#trials input[name=sort]")
    return chosen | {"sort": sort, "rows": page.locator("#trials tbody th").all_inner_texts()}


def test_the_list_of_trials_keeps_filter_order_and_page(visit):
    """Each choice is a step of the browser's history; reload, back and forward show the list of that step."""
    page = visit("/studies/10000aaaaaaa?tab=trials")
    seen = [listed(page)]
    page.select_option("#trials select[name=outcome]", "ok")
    steps = (
        (page.locator("#trials form button"), "outcome=ok"),
        (page.locator("#trials thead a", has_text="Communication time"), "sort=time"),
        (page.locator("#trials nav a", has_text="Later"), "page=2"),
    )
    for link, query in steps:
        link.click()
        playwright_api.expect(page).to_have_url(re.compile(query))
        page.wait_for_load_state("networkidle")
        seen.append(listed(page))
    assert len({tuple(step["rows"]) for step in seen}) == len(seen)
    assert (seen[-1]["outcome"], seen[-1]["sort"]) == ("ok", "time")
    page.reload(wait_until="networkidle")
    assert listed(page) == seen[-1]
    for move, order in ((page.go_back, reversed(seen[:-1])), (page.go_forward, seen[1:])):
        for step in order:
            move(wait_until="networkidle")
            assert listed(page) == step


def test_selected_studies_are_compared(visit):
    page = visit("/studies")
    for box in page.locator("input[name=study]").all()[:3]:
        box.check()
    with page.expect_navigation():
        page.get_by_role("button", name="Compare selected").click()
    assert page.locator("table.compare thead th").count() == 3
