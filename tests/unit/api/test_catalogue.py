"""Clusters and workloads."""


def test_both_catalogues_are_listed_and_shown(client, samples):
    for kind, name in (("clusters", "leonardo"), ("workloads", "bert")):
        (item,) = client.get(f"/v1/{kind}").json()["items"]
        assert (item["name"], item["shipped"]) == (name, True)
        assert client.get(f"/v1/{kind}/{name}").json() == item
    assert item["digest"] == samples.workload().digest()
    assert (item["schema"], len(item["messages"])) == (1, 6)


def test_an_unknown_name_is_answered_with_close_ones_or_the_list(client):
    for path, hint in (
        ("clusters/leonrado", "leonardo"),
        ("workloads/brt", "bert"),
        ("recommendations/nope", "GET /v1/recommendations shows what was published"),
    ):
        problem = client.get(f"/v1/{path}").json()
        assert problem["status"] == 404
        assert hint in problem["hint"]
