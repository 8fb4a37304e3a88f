"""The page of a revision: how it is used, its life, and the forms that change it."""

import re
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from ncclt.core.revision import Actor, ClusterRules
from ncclt.core.rollout import ArmState
from ncclt.deliver.render.formats import TABLE_FORMATS
from ncclt.testing.samples import settle
from ncclt_api.app import ServiceOptions, create_app

PAGE = "/recommendations/0c0ffee1"
BROWSER = {"Accept": "text/html"}


@pytest.fixture
def browser(own_store):
    app = create_app(own_store, ServiceOptions(public_url="https://tuner"), fresh_s=0)
    with TestClient(app, headers=BROWSER) as opened:
        yield opened


def newer(own_store):
    """Publish another revision for the same job, with one rule less."""
    found = own_store.recommendations.get("0c0ffee1")
    policy = replace(found.table.policy, rules=found.table.policy.rules[1:])
    return own_store.revisions.publish(
        replace(found, id="0c0ffee9", table=replace(found.table, policy=policy)), by=Actor(who="ann")
    )


@pytest.fixture
def send(browser, post_form):
    def post(verb, id="0c0ffee1", **fields):
        return post_form(browser, f"/recommendations/{id}/{verb}", **fields)

    return post


def measured(own_store, id, **changes):
    """Publish the revision as if it had been measured in place; return the address of its page."""
    found = own_store.recommendations.get("0c0ffee1")
    own_store.revisions.publish(
        replace(found, id=id, simulated=False, launcher="slurm", **changes), by=Actor(who="ann")
    )
    return f"/recommendations/{id}"


def test_a_demonstration_lists_no_command_for_a_job(browser, own_store):
    found = own_store.recommendations.get("0c0ffee1")
    for id, times, origin in (
        ("0c0ffee7", {}, "simulated"),
        ("0c0ffee8", {"simulated": False, "launcher": "replay"}, "recorded"),
    ):
        own_store.revisions.publish(replace(found, id=id, **times), by=Actor(who="ann"))
        for page in (f"/recommendations/{id}", f"/studies/{found.study}"):
            text = browser.get(page).text
            assert not re.search(r"ncclt (env|run) --cluster|--allow", re.sub(r"</?span>", "", text)), page
            assert f"{origin} timings are a demonstration" in text
            assert not re.search(r"badge[^>]*>\s*tuned", text), "its verdict is a demonstration"
        view = browser.get(f"/recommendations/{id}", params={"format": "json"}).json()
        assert (view["served"], view["snippets"], view["use"]["command"]) == (id, [], "")
        assert origin in view["recommendation"]["label"].lower()


def test_every_format_that_sets_something_has_its_command_and_output(browser, own_store):
    address = measured(own_store, "0c0ffee7")
    snippets = browser.get(address, params={"format": "json"}).json()["snippets"]
    assert len(snippets) >= 5
    for one in snippets:
        assert one["text"]
        assert "--server https://tuner" in one["command"]
        assert "--nccl-version 2.22.3" in one["command"]
        assert "--allow" not in one["command"]
    page = browser.get(address).text
    assert "<dd>2.22.3 only</dd>" in page
    assert len(page) < 200_000


def test_a_format_that_would_set_nothing_is_not_offered(browser, own_store):
    assert browser.get("/recommendations/0c0ffee2", params={"format": "json"}).json()["snippets"] == []
    address = measured(own_store, "0c0ffee7", variables=None)
    table_alone = browser.get(address, params={"format": "json"}).json()["snippets"]
    assert {one["format"] for one in table_alone} == {*TABLE_FORMATS, "json"}


def test_the_permanent_link_shows_what_the_job_gets_now(browser, own_store):
    job = {"cluster": "leonardo", "model": "bert", "nodes": 2, "gpus_per_node": 4, "nccl_version": "2.22.3"}
    assert f"nodes={job['nodes']}" in browser.get(PAGE).text
    ids = []
    for publish in (None, newer):
        if publish:
            publish(own_store)
        view = browser.get("/recommendations", params={**job, "format": "json"}).json()
        ids.append(view["recommendation"]["id"])
    assert ids == ["0c0ffee1", "0c0ffee9"]
    assert browser.get("/recommendations", params={**job, "nodes": 77}).status_code == 409
    assert browser.get("/recommendations", params={**job, "model": "none"}).status_code == 404
    assert browser.get("/recommendations").status_code == 422


def test_a_revision_that_jobs_do_not_get_has_no_command_and_shows_what_differs(browser, own_store):
    newer(own_store)
    view = browser.get(PAGE, params={"format": "json"}).json()
    assert (view["served"], view["snippets"]) == ("0c0ffee9", [])
    assert view["differences"]
    page = browser.get(PAGE).text
    assert '<a href="/recommendations/0c0ffee9">Served revision</a>' in page
    assert "<ins>" in page
    assert "ncclt env" not in page
    assert [row["id"] for row in view["revisions"]] == ["0c0ffee9", "0c0ffee1"]


def test_a_candidate_is_approved_by_name_and_rolled_back(browser, own_store, send):
    own_store.revisions.set_rules(ClusterRules(cluster="leonardo", require_approval=True), Actor(who="ann"))
    newer(own_store)
    assert "candidate" in browser.get("/recommendations/0c0ffee9").text
    answer = send("approve", "0c0ffee9", why="looked at the pilot", percent="100")
    assert (answer.status_code, answer.headers["location"]) == (303, "/recommendations/0c0ffee9")
    view = browser.get("/recommendations/0c0ffee9", params={"format": "json"}).json()
    assert [(one["who"], one["why"]) for one in view["approvals"]] == [
        ("local user of the service", "looked at the pilot")
    ]
    assert send("rollback").status_code == 303
    assert own_store.recommendations.newest(cluster="leonardo", model="bert")[0].id == "0c0ffee1"
    refused = send("rollback")
    assert (refused.status_code, refused.headers["content-type"]) == (409, "text/html; charset=utf-8")


def test_who_marks_it_stale_says_why_and_it_is_no_longer_served(browser, own_store, send):
    assert send("stale").status_code == 422
    assert own_store.recommendations.get("0c0ffee1").stale == ""
    assert send("stale", why="hangs on rack 7").status_code == 303
    assert "hangs on rack 7 (local user of the service)" in own_store.recommendations.get("0c0ffee1").stale
    page = browser.get(PAGE).text
    assert "hangs on rack 7" in page
    assert "ncclt env" not in page


def test_a_win_awaits_approval_on_the_page(browser, own_store, send):
    own_store.revisions.set_rules(ClusterRules(cluster="leonardo", percent=50), Actor(who="ann"))
    newer(own_store)
    (rollout,) = own_store.revisions.rollouts(recommendation="0c0ffee9")
    settle(own_store, rollout, ArmState.WON, "steps are faster")
    page = browser.get(f"/roll-outs/{rollout.id}").text
    assert "<bdi>Steps are faster</bdi>. Awaits approval; the share is unchanged meanwhile" in page
    page = browser.get("/recommendations/0c0ffee9").text
    assert f'<a href="/roll-outs/{rollout.id}">steps are faster</a>' in page
    assert "serve it to all jobs" in page
    assert 'name="percent"' not in page, "a winner goes to all jobs"
    assert send("approve", "0c0ffee9").status_code == 303
    assert own_store.recommendations.newest(cluster="leonardo", model="bert")[0].id == "0c0ffee9"


def test_approval_offers_the_share_of_the_rules(browser, own_store, send):
    own_store.revisions.set_rules(ClusterRules(cluster="leonardo", percent=25, require_approval=True), Actor(who="ann"))
    newer(own_store)
    assert 'max="100" value="25"' in browser.get("/recommendations/0c0ffee9").text
    for percent in ({}, {"percent": ""}):
        assert send("approve", "0c0ffee9", **percent).status_code == (409 if percent else 303)
    (rollout,) = own_store.revisions.rollouts(recommendation="0c0ffee9")
    assert rollout.percent == 25


def test_pin_unpin_and_retire(browser, own_store, send):
    for verb, state in (("pin", True), ("unpin", False)):
        assert send(verb).status_code == 303
        assert own_store.revisions.status("0c0ffee1").pinned is state
    assert send("retire").status_code == 303
    assert own_store.revisions.status("0c0ffee1").state == "retired"
    assert send("explode").status_code == 422
