"""Clusters and workloads."""


def test_clusters_are_listed_and_shown(client):
    listed = client.get("/v1/clusters").json()["items"]
    assert [item["name"] for item in listed] == ["leonardo"]
    assert listed[0]["shipped"] is True
    assert client.get("/v1/clusters/leonardo").json() == listed[0]


def test_an_unknown_cluster_names_close_ones(client):
    problem = client.get("/v1/clusters/leonrado").json()
    assert problem["status"] == 404
    assert "leonardo" in problem["hint"]


def test_workloads_are_listed_and_shown(client, samples):
    listed = client.get("/v1/workloads").json()["items"]
    assert [item["name"] for item in listed] == ["bert"]
    shown = client.get("/v1/workloads/bert").json()
    assert shown == listed[0]
    assert shown["digest"] == samples.workload().digest()
    assert shown["schema"] == 1
    assert len(shown["messages"]) == 6


def test_an_unknown_recommendation_is_pointed_to_the_list_of_them(client):
    hint = client.get("/v1/recommendations/nope").json()["hint"]
    assert hint == "GET /v1/recommendations shows what was published"


def test_an_unknown_workload_names_close_ones(client):
    problem = client.get("/v1/workloads/brt").json()
    assert problem["status"] == 404
    assert "bert" in problem["hint"]
