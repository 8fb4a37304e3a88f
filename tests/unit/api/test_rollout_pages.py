"""The pages of roll-outs, and the forms that pause one or switch the delivery of a cluster."""

import re

import pytest
from fastapi.testclient import TestClient

from ncclt.core.api_key import ApiKey, Role, hash_secret
from ncclt.core.revision import Action, Actor, ClusterRules
from ncclt.core.rollout import ArmState, JobTime
from ncclt.prove.rollout import fewest_pairs
from ncclt.testing.samples import sample_roll_out, settle
from ncclt_api.app import create_app
from ncclt_api.pages.rollouts import Holds, build_row


@pytest.fixture
def store(own_store, samples):
    """A store with a roll-out of a second revision for bert on leonardo to half of the jobs."""
    own_store.revisions.set_rules(ClusterRules(cluster="leonardo", percent=50), Actor(who="ann"))
    own_store.revisions.publish(samples.revised(own_store.recommendations.get("0c0ffee1"), "0c0ffee9"))
    return own_store


@pytest.fixture
def rollout(store):
    return store.revisions.rollouts()[0]


@pytest.fixture
def browser(store):
    with TestClient(create_app(store, fresh_s=0), headers={"Accept": "text/html"}) as opened:
        yield opened


def report(store, rollout, jobs):
    """Start jobs and report those of even number; return the reports of the arm and of the control."""
    counts = {"0c0ffee9": 0, rollout.control: 0}
    for number in range(jobs):
        start = rollout.start(f"job-{number}", issued_s=60.0 * number)
        store.revisions.add_job_starts([start])
        if number % 2 == 0:
            names = {"rollout": rollout.id, "job": start.job, "recommendation": start.recommendation}
            times = {"step_us": 1e5 - 100 * (number % 7), "steps": 20, "waited_s": 600.0}
            store.revisions.add_job_time(JobTime(**names, **times))
            counts[start.recommendation] += 1
    return counts["0c0ffee9"], counts[rollout.control]


def test_the_list_tells_what_is_rolling_out_and_how_many_pairs_a_win_needs(browser, store, rollout):
    page = browser.get("/roll-outs").text
    assert "50 % of jobs" in page
    assert "1 open roll-out: no reports missing." in " ".join(page.split())
    arm, control = report(store, rollout, 24)
    (row,) = browser.get("/roll-outs?state=open&cluster=leonardo&format=json").json()["rollouts"]
    assert (row["reports"], row["controls"]) == (arm, control)
    assert row["missing_pairs"] == fewest_pairs(1) - min(arm, control)
    page = browser.get("/roll-outs").text
    assert f'href="/roll-outs/{rollout.id}"' in page
    assert ">0 % of jobs" in page, "too many starts have not reported yet"
    assert ", 1 serving no job." in " ".join(page.split())
    assert "1 rolling out</a> (1 at 0 %)" in browser.get("/").text
    assert f"A win needs at least {row['missing_pairs']} more pairs" in page
    assert rollout.seed not in page
    assert browser.get("/roll-outs?state=lost&format=json").json()["rollouts"] == []
    settle(store, rollout, ArmState.WON, "faster")
    (row,) = browser.get("/roll-outs?state=won&format=json").json()["rollouts"]
    assert (row["missing_pairs"], row["verdict"]) == (None, "faster")
    assert ", 1 won." in " ".join(browser.get("/roll-outs").text.split())


def test_the_list_marks_an_arm_whose_jobs_lack_more_reports_than_the_control(browser, store, rollout):
    arm, control = report(store, rollout, 40)
    (row,) = browser.get("/roll-outs?format=json").json()["rollouts"]
    assert row["unreported"] + row["unreported_controls"] == 40 - arm - control
    assert row["lacks_reports"] is False
    starts = {("f00d", ""): (30, 20)}
    for reported, lacks in ((10, True), (20, False)):
        counts = starts | {("f00d", "b"): (30, reported)}
        built = build_row(sample_roll_out("b", control=""), counts, None, Holds())
        assert (built["unreported"], built["unreported_controls"], built["lacks_reports"]) == (30 - reported, 10, lacks)


def test_many_roll_outs_are_read_by_as_many_queries_as_few(browser, store, samples, statements):
    many = []
    for number in range(30):
        found = store.recommendations.get("0c0ffee1")
        many.append(store.revisions.publish(samples.revised(found, f"0c0ffea{number:02}"), for_rollout=True).id)
    store.revisions.retire("0c0ffee9", Actor(who="ann"))
    for id in many:
        store.revisions.approve(id, Actor(who="ann"), percent=50)
        store.revisions.retire(id, Actor(who="ann"))
    statements.clear()
    first = browser.get("/roll-outs?format=json").json()
    of_many = len(statements)
    rest = browser.get("/roll-outs?page=2&format=json").json()
    assert (len(first["rollouts"]), first["more"]) == (25, True)
    assert (len(rest["rollouts"]), rest["more"]) == (6, False)
    assert len(statements) == 2 * of_many > 0
    assert "/roll-outs?page=2" in browser.get("/roll-outs").text


def test_a_roll_out_shows_the_guard_s_charts(browser, store, rollout):
    assert "data-chart" not in browser.get(f"/roll-outs/{rollout.id}").text
    arm, _ = report(store, rollout, 200)
    page = browser.get(f"/roll-outs/{rollout.id}").text
    assert "GPU hours (0.5 % of the GPU hours of all its jobs so far)" in page
    assert re.findall(r'class="card chart" id="(\w+)"', page) == ["gain", "starts"]
    table = re.search(r'id="starts".*?<th scope="row">revision 0c0ffee9</th>(.*?)</tr>', page, re.DOTALL)[1]
    assert re.findall(r">(\d+)<", table)[1] == str(arm)
    assert "seed" not in browser.get(f"/roll-outs/{rollout.id}?format=json").text
    assert f'hx-get="/roll-outs/{rollout.id}" hx-select="#live" hx-select-oob="#summary"' in page
    assert "Warning: jobs of this roll-out may differ in the last bits" in page
    assert rollout.seed not in page
    assert browser.get("/roll-outs/none").status_code == 404


def test_a_roll_out_is_paused_resumed_and_retired_by_forms(browser, store, rollout, post_form):
    path = f"/roll-outs/{rollout.id}"
    assert browser.post(f"{path}/pause", data={"token": "of another page"}).status_code == 403
    answer = post_form(browser, f"{path}/pause", why="rack 7")
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    page = browser.get(path).text
    assert "Paused by local user of the service: rack 7" in re.sub(r"<bdi>p", "P", page)
    assert 'action="/roll-outs/' in page
    assert "/resume" in page
    assert ">running</span>" not in page
    assert "It is paused: all jobs that start get revision 1." in browser.get("/recommendations/0c0ffee9").text
    assert post_form(browser, f"{path}/pause").status_code == 409
    post_form(browser, f"{path}/resume")
    answer = post_form(browser, "/recommendations/0c0ffee9/retire", why="too slow", rollout=rollout.id)
    assert answer.headers["location"] == path
    assert post_form(browser, "/recommendations/0c0ffee1/pin", rollout="//elsewhere").status_code == 422
    done = [(one.action, one.why) for one in store.revisions.history(recommendation="0c0ffee9", limit=4)]
    assert done[0] == (Action.RETIRED, "too slow")
    assert done[2:] == [(Action.ROLL_OUT_RESUMED, ""), (Action.ROLL_OUT_PAUSED, "rack 7")]
    assert '<form class="write"' not in browser.get(path).text


def test_an_open_roll_out_that_serves_nothing_says_why_on_every_page(browser, store, samples, rollout):
    path = f"/roll-outs/{rollout.id}"
    assert "to 50 % of the jobs that start" in browser.get(path).text
    store.revisions.set_rules(ClusterRules(cluster="leonardo", delivery=False), Actor(who="ann"))
    assert "to 0 % of the jobs that start: delivery on its cluster is off" in browser.get(path).text
    assert "Delivery on its cluster is off." in browser.get("/roll-outs").text
    assert "All jobs on leonardo keep their own settings" in browser.get("/recommendations/0c0ffee9").text
    store.revisions.set_rules(ClusterRules(cluster="leonardo"), Actor(who="ann"))
    samples.make_stale(store, rollout.control, reason="NCCL is 2.30.7 here and was 2.22.3")
    assert "to 0 % of the jobs that start: the active revision is stale; <code>ncclt recheck" in browser.get(path).text
    (row,) = browser.get("/roll-outs?format=json").json()["rollouts"]
    assert (row["percent"], row["held"].partition(";")[0]) == (0, "the active revision is stale")
    assert ">0 % of jobs" in browser.get("/roll-outs").text
    for id in ("0c0ffee9", rollout.control):
        page = browser.get(f"/recommendations/{id}").text
        assert "No job that starts gets it: the active revision is stale" in page
    assert "others get this revision" not in page
    assert 'title="Roll-out to 0 % of the jobs"' in browser.get("/").text


def test_an_ended_roll_out_replaces_the_whole_page_that_was_open(browser, store, rollout):
    path = f"/roll-outs/{rollout.id}"
    assert "HX-Retarget" not in browser.get(path).headers
    store.revisions.retire("0c0ffee9", Actor(who="ann"))
    answer = browser.get(path)
    assert answer.headers["HX-Retarget"] == "#main"
    assert "hx-trigger" not in answer.text[answer.text.index("<main") :]


def test_the_forms_are_for_those_who_may(store, rollout):
    pages = (f"/roll-outs/{rollout.id}", "/clusters/leonardo", "/recommendations/0c0ffee1")
    verbs = r'action="[^"]*/(pause|activate|delivery|pin|stale|retire)"'
    for role in (Role.READ, Role.APPROVE, Role.ADMIN):
        store.keys.add(ApiKey(id=role.value, role=role), digest=hash_secret(role.value))
    shown = {}
    with TestClient(create_app(store, fresh_s=0), headers={"Accept": "text/html"}) as client:
        for role in ("read", "approve", "admin"):
            texts = [client.get(page, headers={"Authorization": f"Bearer {role}"}).text for page in pages]
            shown[role] = [re.findall(verbs, text) for text in texts]
    of_roll_out, of_revision = ["pause", "activate", "retire"], ["pin", "stale", "retire"]
    assert shown == {
        "read": [[], [], []],
        "approve": [of_roll_out, [], of_revision],
        "admin": [of_roll_out, ["delivery"], of_revision],
    }


def test_the_cluster_shows_its_rules_and_its_delivery_is_switched(browser, store, post_form):
    page = browser.get("/clusters/leonardo").text
    assert "<dt>New revisions</dt><dd>go to 50 % of the jobs at first" in page
    assert '/roll-outs?cluster=leonardo&amp;state=open">1 open' in page
    assert post_form(browser, "/clusters/leonardo/delivery", on="false", why="fabric").status_code == 303
    assert store.revisions.rules("leonardo") == ClusterRules(cluster="leonardo", percent=50, delivery=False)
    assert "Delivery is off." in browser.get("/clusters/leonardo").text
    event = store.revisions.history(cluster="leonardo", limit=1)[0]
    assert (event.action, event.who) == (Action.RULES_CHANGED, "local user of the service")
    assert event.why.endswith(": fabric")
    assert post_form(browser, "/clusters/none/delivery", on="false").status_code == 404
    store.revisions.set_rules(ClusterRules(cluster="leonardo"), Actor(who="ann"))
    page = browser.get("/clusters/leonardo").text
    assert "<dt>New revisions</dt><dd>go to all jobs at once, without a roll-out</dd>" in page
