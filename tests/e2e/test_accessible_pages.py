"""Every page against axe-core's rules, and the way from the map to a copied command with the keyboard alone."""

import contextlib
import re

import pytest

from ncclt.core.api_key import ApiKey, Role, hash_secret, new_secret
from ncclt.core.revision import Actor, ClusterRules
from ncclt.core.tuning_job import TuningJob
from ncclt.store import open_store
from ncclt.store.job_queue import JobQueue, prepare

playwright_api = pytest.importorskip("playwright.sync_api")
axe_api = pytest.importorskip("axe_playwright_python.sync_playwright")
expect = playwright_api.expect

pytestmark = pytest.mark.browser

PATIENT_MS = 120_000


@pytest.fixture(scope="module")
def store(tmp_path_factory, fill_rich_store):
    """A small rich store with a roll-out and jobs in the queue."""
    with open_store(f"sqlite:///{tmp_path_factory.mktemp('accessible')}/ncclt.db") as opened:
        fill_rich_store(opened)
        found = tuned(opened)
        opened.revisions.set_rules(ClusterRules(cluster=found.cluster, percent=50), Actor(who="ann"))
        prepare(opened.url)
        with JobQueue(opened.url) as queue:
            for id, model in (("00000000000000aa", "bert"), ("00000000000000bb", "<b>'\"&")):
                queue.submit(TuningJob(id=id, cluster="hall-a", model=model))
            queue.cancel("00000000000000bb")
        yield opened


def tuned(store):
    """Return a revision that jobs of hall-a get and that has a command."""

    from ncclt.deliver.render.delivery import choose_form

    served = store.recommendations.newest_each(cluster="hall-a")
    return next(one for one in served if choose_form(one).command)


@pytest.fixture(scope="module")
def address(store, serving):
    with serving(store) as url:
        yield url


@contextlib.contextmanager
def opened(browser, **options):
    """Yield a page in a context of its own, with time for a busy machine."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENT_MS)
    context.set_default_navigation_timeout(PATIENT_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


@pytest.fixture(scope="module")
def paths(store):
    """Every kind of page, by name."""
    found = tuned(store)
    return {
        "map": "/",
        "studies": "/studies",
        "find": "/find?q=hall",
        "stale": "/?state=stale",
        "cluster": "/clusters/hall-a",
        "gain": f"/clusters/{found.cluster}/workloads/{found.model}",
        "workload": "/workloads/chat-13b?with=chat-13b-r2",
        "compare": "/compare?model=chat-13b",
        "study": f"/studies/{found.study}",
        **{f"study, {tab}": f"/studies/{found.study}?tab={tab}" for tab in ("sizes", "search", "trials", "jobs")},
        "trial": f"/studies/{found.study}/trials/3",
        "recommendation": f"/recommendations/{found.id}",
        "roll-outs": "/roll-outs",
        "roll-out": f"/roll-outs/{store.revisions.rollouts()[0].id}",
        "jobs": "/jobs",
        "error": "/nothing",
    }


BY_LOOK = ["color-contrast", "link-in-text-block", "scrollable-region-focusable"]
"""Rules of axe-core that colours and the size of the window decide; all others are decided by the same elements."""


def violations(page, rules=None):
    """Return what axe-core finds, each rule with the first places."""
    options = {"resultTypes": ["violations"], **({"runOnly": {"type": "rule", "values": rules}} if rules else {})}
    found = axe_api.Axe().run(page, options=options).response["violations"]
    return [(one["id"], [node["target"] for node in one["nodes"][:3]]) for one in found]


@pytest.mark.parametrize(
    ("scheme", "width", "rules"),
    [("light", 1440, None), pytest.param("dark", 360, BY_LOOK, marks=pytest.mark.thorough)],
    ids=["wide and light", "narrow and dark"],
)
def test_axe_finds_nothing(browser, address, paths, subtests, scheme, width, rules):
    """axe-core is injected: only for that, the page's own policy against such scripts is set aside."""
    window = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    with opened(browser, bypass_csp=True, **window) as page:
        for name, path in paths.items():
            page.goto(address + path)
            page.evaluate("[...document.querySelectorAll('details')].slice(0, 12).forEach(one => { one.open = true; })")
            with subtests.test(name):
                assert violations(page, rules) == []
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def press_until(page, selector):
    """Press Tab until what has the focus fits a selector."""
    for _ in range(400):
        page.keyboard.press("Tab")
        if page.evaluate("selector => !!document.activeElement.closest(selector)", selector):
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"Tab does not reach {selector} on {page.url}")


def test_from_the_map_to_a_copied_command_with_the_keyboard_alone(browser, address, store):
    found = tuned(store)
    with opened(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(address + "/?cluster=hall-a")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        press_until(page, f"td.cell a[href='/studies/{found.study}']")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/studies/{found.study}")
        press_until(page, f"a[href='/recommendations/{found.id}']")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/recommendations/{found.id}")
        press_until(page, "button[data-copy]")
        page.keyboard.press("Enter")
        expect(page.locator("button[data-copy]").first).to_have_text("Copied", timeout=PATIENT_MS)
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator(".copyable code").first.text_content()
    assert re.match(r'eval "\$\(ncclt env |ncclt run ', copied)
    assert f"--model {found.model}" in copied


def test_sign_in_and_out_in_a_browser(browser, serving, tmp_path):
    """Also by a link on another site, which does not bring the strict cookie."""
    secret = new_secret()
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as store:
        store.keys.add(ApiKey(id="reader", role=Role.READ), digest=hash_secret(secret))
        with serving(store) as url, opened(browser, bypass_csp=True) as page:
            page.goto(url + "/studies")
            expect(page.locator("h1")).to_have_text("Sign in")
            assert violations(page) == []
            page.locator("input[name=key]").fill(secret)
            page.keyboard.press("Enter")
            page.wait_for_url(url + "/studies")
            (cookie,) = page.context.cookies()
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
            assert secret not in str(cookie) + page.content()
            link = tmp_path / "chat.html"
            link.write_text(f"<a href='{url}/jobs'>look</a>")
            page.goto(link.as_uri())
            page.locator("a").click()
            page.wait_for_url(url + "/jobs")
            expect(page.locator("h1")).to_have_text("Jobs")
            page.get_by_role("button", name="Sign out").click()
            page.wait_for_url("**/sign-in")
            assert page.context.cookies() == []
            page.goto(url + "/jobs")
            expect(page.locator("h1")).to_have_text("Sign in")
