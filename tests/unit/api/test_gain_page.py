"""Gain over time: the page of a workload on a cluster, the sum of recent verdicts and the list of stale ones."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient

from ncclt.core.recheck import Freshness
from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.core.revision import Actor
from ncclt.core.rollout import JobTime
from ncclt.core.trial import ON_STEPS
from ncclt_api.app import create_app
from ncclt_api.pages.gain import JOBS_PER_PAGE

PAGE = "/clusters/leonardo/workloads/bert"
MEASURED = {"simulated": False, "launcher": "slurm"}
NOW = datetime.now(UTC)


@pytest.fixture
def store(empty_store):
    return empty_store


@pytest.fixture
def client(store):
    with TestClient(create_app(store, fresh_s=0)) as client:
        yield client


@pytest.fixture
def publish(store, samples):
    """Return a function that publishes a verdict that was reached so many days ago."""

    def published(id, *, days=1.0, version="2.22.3", factor=1.0, decision=Decision.TUNED, model="bert", **changes):
        when = (NOW - timedelta(days=days)).isoformat()
        study = samples.study(id, model=model, created=when, updated=when, **MEASURED)
        study = replace(study, cluster=replace(study.cluster, nccl_version=version))
        verdict = samples.verdict(decision)
        verdict = replace(verdict, default_us=verdict.default_us * factor)
        table = PolicyVerdict(policy=samples.POLICY, verdict=verdict)
        return samples.publish(store, study, f"r{id}", plain=False, table=table, created=when, **changes)

    return published


@pytest.fixture
def recheck(store, samples):
    def add(found, id, freshness, *reasons, days=0.5):
        created = (NOW - timedelta(days=days)).isoformat()
        samples.add_recheck(store, found, id, freshness, *reasons, created=created)

    return add


def timeline(client, **query):
    return client.get(PAGE, params={"format": "json", **query}).json()["timeline"]


def line(chart, label):
    return next(one for one in chart["lines"] if one["label"].startswith(label) and one["mark"] != "stem")


def test_medians_step_with_the_nccl_release_and_a_slower_default_is_marked(client, publish):
    for number, factor in enumerate((1.0, 1.02, 1.01)):
        publish(f"a{number}", days=90 - number, factor=factor)
    publish("b0", days=40, version="2.27.7", factor=1.02)
    publish("c0", days=20, version="2.28.9", factor=1.1)
    publish("c1", days=10, version="2.28.9", factor=1.12)
    chart = timeline(client)
    default, tuned = line(chart, "default, median"), line(chart, "with ncclt, median")
    assert [round(time / 34_210, 4) for time in default["y"]] == [1.01, 1.02, 1.11, 1.11]
    assert [slow / fast for slow, fast in zip(default["y"], tuned["y"], strict=True)] == pytest.approx([1.083] * 4)
    assert default["x"] == sorted(default["x"])
    assert [(level["label"], level["tone"]) for level in chart["levels"]] == [
        ("NCCL 2.22.3", "quiet"),
        ("NCCL 2.27.7: +1.0 %", "quiet"),
        ("NCCL 2.28.9: +8.8 %", "failed"),
    ]


def test_times_before_and_after_a_change_of_the_workload_are_not_compared(client, publish):
    publish("a", days=9)
    publish("b", days=3, factor=2.0, workload_digest="0" * 12)
    chart = timeline(client)
    assert chart["levels"][1]["label"] == "NCCL 2.22.3, changed workload"
    assert [row[1].endswith(", changed workload") for row in chart["table"]["rows"]] == [True, False]


def test_each_verdict_has_its_interval_and_one_that_tuned_nothing_delivers_the_default(client, publish):
    found = publish("a", days=3)
    publish("b", days=2, decision=Decision.KEEP_DEFAULT)
    chart = timeline(client)
    low, high = found.table.verdict.interval
    (stem, _) = [one for one in chart["lines"] if one["mark"] == "stem"]
    assert stem["label"] == "tuned policy"
    assert (stem["low"], stem["high"]) == ([34_210 / high], [34_210 / low])
    assert line(chart, "tuned policy")["notes"] == ["tuned 1.083× (1.061–1.104), measured, NCCL 2.22.3, revision 1"]
    assert len(line(chart, "tested policy, not used")["x"]) == 1
    rows = chart["table"]["rows"]
    assert [row[1].split()[0] for row in rows] == ["keep", "tuned"]
    assert rows[0][2] == rows[0][3]


def test_other_origins_and_jobs_are_a_choice_of_their_own_and_marked(client, publish):
    publish("a", days=9)
    publish("b", days=1, simulated=True, launcher="simulate")
    view = client.get(PAGE, params={"format": "json"}).json()
    assert view["groups"] == ["2 × 4 A100-SXM-64GB, measured", "2 × 4 A100-SXM-64GB, simulated"]
    assert len(line(view["timeline"], "NCCL default")["x"]) == 1
    assert "2 tuned" not in view["timeline"]["description"]
    chart = timeline(client, jobs=view["groups"][1])
    assert "1 tuned, simulated (demonstration)." in chart["description"]
    for label in ("tuned policy", "NCCL default"):
        drawn = line(chart, label)
        assert drawn["label"].startswith(f"{label}, simulated")
        assert drawn["mark"] == "ring"
        assert all("simulated" in note for note in drawn["notes"])


@pytest.mark.parametrize("launcher", sorted(ON_STEPS))
def test_step_times_are_not_drawn_with_communication_times(client, publish, launcher):
    publish("a", days=9)
    publish("b", days=1, launcher=launcher)
    groups = client.get(PAGE, params={"format": "json"}).json()["groups"]
    assert [group.partition(", ")[2] for group in groups] == ["step times of jobs", "measured"]
    assert [timeline(client, jobs=group)["y"]["label"] for group in groups] == [
        "step time of jobs",
        "communication per step",
    ]


def test_rechecks_stale_marks_and_roll_outs_are_on_the_same_axis(client, store, publish, samples, recheck):
    found = publish("a", days=3)
    recheck(found, "fresh", Freshness.FRESH, days=2)
    recheck(found, "stale", Freshness.STALE, "the gain is lost", days=1)
    rollout = roll_out(store, publish, samples)
    chart = timeline(client)
    assert line(chart, "recheck")["notes"] == ["fresh", "stale"]
    (why,) = line(chart, "stale")["notes"]
    assert why.endswith("the gain is lost")
    start, end = line(chart, "roll-out")["x"]
    assert start == int(datetime.fromisoformat(rollout.created).timestamp()) < end
    events = [row[1].partition(":")[0] for row in chart["table"]["rows"]]
    assert {"recheck", "stale", f"roll-out {rollout.id} started"} < set(events)
    store.revisions.retire(rollout.arms[0].recommendation, Actor(who="ann", why="enough"))
    assert f"roll-out {rollout.id} ended" in str(timeline(client)["table"]["rows"])


def roll_out(store, publish, samples):
    """Open a roll-out to half of the jobs and return it."""
    found = publish("active", days=0.4)
    new = samples.revised(replace(found, revision=0, created=""), "0c0ffee9")
    store.revisions.publish(new, for_rollout=True)
    return store.revisions.rollout(store.revisions.approve(new.id, Actor(who="ann"), percent=50))


def test_jobs_are_compared_with_the_median_of_the_control_of_their_roll_out(client, store, publish, samples):
    rollout = roll_out(store, publish, samples)
    starts = [rollout.start(f"job-{number}", issued_s=NOW.timestamp() - 9000 + number) for number in range(40)]
    store.revisions.add_job_starts(starts)
    reported = starts[:-1]
    for number, start in enumerate(reported):
        step_us = 0.9e6 if start.recommendation == "0c0ffee9" else 1e6 + 1e3 * (number % 3)
        told = {"rollout": rollout.id, "job": start.job, "recommendation": start.recommendation}
        store.revisions.add_job_time(JobTime(**told, step_us=step_us, steps=10, waited_s=60.0))
    view = client.get(PAGE, params={"format": "json"}).json()
    rows = view["jobs"]
    assert [row["start"]["job"] for row in rows] == [f"job-{39 - number}" for number in range(JOBS_PER_PAGE)]
    assert (rows[0]["step_us"], rows[0]["change"], rows[0]["is_missing"]) == (None, None, True)
    for row in rows[1:]:
        assert row["is_control"] == (row["start"]["recommendation"] != "0c0ffee9")
        assert (row["change"] < -0.09) != row["is_control"]
    following = client.get(PAGE, params={"format": "json", "before": view["before"]}).json()
    assert [row["start"]["job"] for row in following["jobs"]] == [f"job-{14 - number}" for number in range(15)]
    assert following["before"] is None
    page = client.get(PAGE).text
    assert "report missing" in page
    assert page.count(f'href="/roll-outs/{rollout.id}"') == JOBS_PER_PAGE
    assert f"before={view['before']}#jobs" in page
    assert rollout.seed not in page + json.dumps(view)


def test_many_verdicts_and_jobs_are_read_by_as_many_queries_as_few(store, publish, samples, recheck, statements):
    def count_statements():
        with TestClient(create_app(store, fresh_s=0)) as fresh:
            fresh.get("/studies")
            before = len(statements)
            assert fresh.get(PAGE).status_code == 200
            return len(statements) - before

    rollout = roll_out(store, publish, samples)
    store.revisions.add_job_starts([rollout.start("0", issued_s=NOW.timestamp())])
    few = count_statements()
    for number in range(5):
        revision = publish(f"m{number}", days=20 + number, version=f"2.2{number}.3")
        recheck(revision, f"c{number}", Freshness.FRESH)
    store.revisions.add_job_starts([rollout.start(str(job), issued_s=NOW.timestamp()) for job in range(1, 9)])
    assert count_statements() == few > 0


def test_a_pair_without_a_verdict_names_the_command_and_an_unknown_name_is_not_found(client):
    assert "ncclt tune --model bert --cluster leonardo" in client.get(PAGE).text
    assert client.get("/clusters/leonardo/workloads/nothing").status_code == 404
    assert client.get("/clusters/nowhere/workloads/bert").status_code == 404


def test_the_map_sums_up_the_measured_verdicts_of_the_last_days(client, publish):
    publish("a", days=3)
    publish("b", days=5, model="gpt2", decision=Decision.KEEP_DEFAULT)
    publish("c", days=20, model="resnet101")
    publish("d", days=40, model="vit-l-32")
    publish("e", days=1, model="llama-7b", simulated=True, launcher="simulate")
    assert "Last 30 days: 3 measured verdicts, 2 tuned (median <strong>1.083×</strong>)" in client.get("/").text
    assert "Last 7 days: 2 measured verdicts, 1 tuned" in client.get("/?days=7").text
    assert "Last day: 0 measured verdicts</p>" in client.get("/?days=1").text
    gain = client.get("/?format=json&model=gpt2").json()["gain"]
    assert gain == {"days": 30, "verdicts": 1, "tuned": 0, "stale": 0, "median": None}


def test_the_number_of_stale_results_leads_to_their_list(client, store, publish, recheck):
    publish("b", model="gpt2")
    recheck(publish("a"), "lost", Freshness.STALE, "the gain is lost")
    address = re.search(r'<a class="loss-word" href="([^"]*)">1 stale</a>', client.get("/").text)[1]
    page = client.get(address.replace("&amp;", "&")).text
    assert page.count("/recommendations/") == 1
    assert 'href="/recommendations/ra"' in page
    assert "the gain is lost" in page
    assert '<table class="map">' not in page
    assert "No recommendation is stale." in client.get("/?state=stale&model=gpt2").text
    made_up = publish("c", model="a model", simulated=True, launcher="simulate")
    recheck(made_up, "lost too", Freshness.STALE, "the gain is lost")
    listed = re.findall(r'href="/recommendations/(\w+)"', client.get("/?state=stale").text)
    assert listed == ["ra", "rc"], "measured ones first"


def test_a_job_that_can_still_report_is_not_missing(client, store, publish, samples):
    rollout = roll_out(store, publish, samples)
    store.revisions.add_job_starts([rollout.start("young", issued_s=NOW.timestamp() - 60)])
    assert "no report yet" in client.get(PAGE).text
    assert "report missing" not in client.get(PAGE).text


def test_a_gain_that_is_lost_is_not_summed_up(client, store, publish, recheck):
    recheck(publish("a"), "lost", Freshness.STALE, "the gain is lost")
    recheck(publish("b", days=90, model="gpt2"), "lost too", Freshness.STALE, "the gain is lost")
    assert "1 measured verdict, 0 tuned, 2 became stale" in client.get("/").text
