"""Studies, trials and recommendations as JSON."""

import math
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt_api.app import create_app


def test_studies_are_filtered_by_cluster_and_model(client):
    items = client.get("/v1/studies?model=resnet101").json()["items"]
    assert [item["model"] for item in items] == ["resnet101"]
    assert client.get("/v1/studies?cluster=elsewhere").json()["items"] == []
    answer = client.get("/v1/studies", params={"cluster": "leonardo", "limit": 1})
    assert "cluster=leonardo" in answer.links["next"]["url"]


def test_everything_about_a_study_says_whether_it_is_simulated(client):
    summaries = {item["id"]: item for item in client.get("/v1/studies").json()["items"]}
    for id, simulated in {"5e1f00aa": True, "7a6bbb02": False}.items():
        assert summaries[id]["simulated"] is simulated
        assert summaries[id]["recommendation"]["simulated"] is simulated
        assert client.get(f"/v1/studies/{id}").json()["simulated"] is simulated
        assert client.get(f"/v1/studies/{id}/trials").json()["simulated"] is simulated


def test_trials_carry_their_measurements_and_failures(client, filled_store):
    trials = client.get("/v1/studies/5e1f00aa/trials").json()["items"]
    assert [t["number"] for t in trials] == list(range(len(trials)))
    assert trials[0]["setting"] == {}
    assert trials[4]["outcome"] == "crashed"
    assert trials[4]["score_us"] is None
    measured = filled_store.trials.find("5e1f00aa")[0].result.measurements[0]
    assert trials[0]["measurements"][0]["samples_us"] == list(measured.samples_us)
    assert math.isclose(trials[0]["measurements"][0]["busbw_gbps"], measured.busbw_gbps)


def test_recommendations_are_filtered_by_the_job(client):
    def found(**params):
        return [item["id"] for item in client.get("/v1/recommendations", params=params).json()["items"]]

    assert sorted(found()) == ["0c0ffee1", "0c0ffee2"]
    assert found(model="bert", cluster="leonardo") == ["0c0ffee1"]
    assert found(model="bert", nodes=2, gpus_per_node=4, nccl_version="22203") == ["0c0ffee1"]
    assert found(model="bert", nodes=4) == []
    assert found(nccl_version="2.23.4") == []


def test_a_page_of_recommendations_reads_those_that_it_shows(empty_store, samples, monkeypatch):
    ids = [f"r{number:02}" for number in range(40)]
    for number, id in enumerate(ids):
        cluster = replace(samples.cluster(), nodes=4 if number % 8 == 7 else 2)
        samples.publish(empty_store, replace(samples.study(f"s{number:02}"), cluster=cluster), id)
    read, kind = [], type(empty_store.recommendations)
    find = kind.find

    def counting(self, **chosen):
        found = find(self, **chosen)
        read.append(len(found))
        return found

    monkeypatch.setattr(kind, "find", counting)
    with TestClient(create_app(empty_store)) as client:
        for nodes, wanted in ((None, ids[::-1]), (4, ids[7::8][::-1])):
            seen, cursor = [], None
            while cursor or not seen:
                params = {"limit": 2, "cursor": cursor, "nodes": nodes}
                page = client.get("/v1/recommendations", params={k: v for k, v in params.items() if v}).json()
                seen += [one["id"] for one in page["items"]]
                cursor = page["next_cursor"]
                assert sum(read) <= 4 if nodes is None else len(read) <= 5, read
                read.clear()
            assert seen == wanted
        assert client.get("/v1/recommendations?cursor=r99").status_code == 422


def test_a_recommendation_asked_for_with_an_unknown_name_is_not_an_empty_list(client):
    assert client.get("/v1/recommendations?cluster=leonrado").status_code == 404
    bad = client.get("/v1/recommendations?nccl_version=new").json()
    assert (bad["status"], bad["hint"]) == (422, "write it as 2.28.9")


def test_an_interval_without_bound_is_still_json(empty_store, empty_client, samples):
    """Too few blocks give an interval from 0 to infinity."""
    unbounded = samples.verdict(Decision.KEEP_DEFAULT, 1.0, (0.0, math.inf))
    table = PolicyVerdict(policy=samples.POLICY, verdict=unbounded)
    study = samples.publish(empty_store, samples.study(), plain=False, table=table).study
    (item,) = empty_client.get("/v1/recommendations").json()["items"]
    (cell,) = empty_client.get("/?format=json").json()["map"]["cells"]
    assert item["table"]["verdict"]["interval"] == cell["verdict"]["interval"] == [0.0, None]
    for page in ("/", f"/studies/{study}"):
        assert "unknown" in empty_client.get(page).text


def test_a_study_without_a_verdict_has_no_evidence(client):
    answer = client.get("/v1/studies/bad00003/evidence")
    assert answer.status_code == 404
    assert "no verdict yet" in answer.json()["detail"]


def test_everything_about_recorded_times_names_system_and_source(filled_store, samples):
    there = replace(samples.cluster(), description="8 x A100, lab", sources=("a paper", "its tables"))
    recorded = replace(samples.study(id="4ec04ded", name="replayed"), simulated=False, launcher="replay", cluster=there)
    filled_store.studies.open(recorded)
    label = "recorded: 8 x A100, lab, a paper"
    with TestClient(create_app(filled_store)) as client:
        assert client.get("/v1/studies/4ec04ded").json()["label"] == label
        assert f"<strong>{label}</strong>" in client.get("/studies/4ec04ded").text
        assert f'title="{label}">recorded</span>' in client.get("/").text


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/clusters", "/v1/workloads", "/v1/studies", "/v1/studies/5e1f00aa/trials", "/v1/recommendations"),
        *("/v1/history", "/v1/history?cluster=leonardo"),
    ],
)
def test_every_list_has_pages_with_the_same_parameters(client, path):
    path += "&" if "?" in path else "?"
    whole = client.get(f"{path}limit=500").json()
    assert whole["next_cursor"] is None
    assert len(whole["items"]) >= 1
    for limit in (1, 7):
        seen, following = [], f"{path}limit={limit}"
        while following:
            answer = client.get(following)
            seen += answer.json()["items"]
            assert len(answer.json()["items"]) <= limit
            following = answer.links.get("next", {}).get("url")
            assert bool(following) == (answer.json()["next_cursor"] is not None)
        assert seen == whole["items"]
    for wrong in ("cursor=no", "cursor=-2", "limit=0", "limit=501", "page=2"):
        assert client.get(f"{path}{wrong}").status_code == 422, wrong


def test_a_list_of_recommendations_has_their_states(client):
    items = client.get("/v1/recommendations").json()["items"]
    assert {item["state"] for item in items} <= {"active", "candidate", "stale", "retired"}
    for item in items:
        one = client.get(f"/v1/recommendations/{item['id']}/state").json()
        assert item["state"] == one["state"]
