"""The pages over many studies: what they say, without a browser."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from full_records import fill_record

from ncclt.core.cluster import NO_GPU
from ncclt.core.policy import Policy
from ncclt.core.preflight import Preflight, State
from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.core.revision import Actor
from ncclt.core.setting import DEFAULT
from ncclt.core.study import StudyState
from ncclt.prove.verdict import keep_default
from ncclt_api.pages.compare import ComparisonRow
from ncclt_api.pages.wording import format_time

HOSTILE = ("<script>alert('x')</script>", "\"'&amp;</bdi>", "cluster-\u202egnp.exe", "w" * 5000, "a/../b?c#d")
PAGES = (
    *("/", "/?days=30", "/live", "/studies", "/find?q=leo", "/?state=stale", "/roll-outs", "/jobs"),
    *("/clusters/leonardo", "/clusters/leonardo/workloads/bert", "/workloads/bert", "/recommendations/0c0ffee1"),
    *("/studies/5e1f00aa", "/studies/7a6bbb02", "/studies/5e1f00aa/trials/0"),
    "/compare?study=5e1f00aa&study=7a6bbb02",
)


class Checker(HTMLParser):
    """Notices what must not be in a page: scripts of its own, handlers, styles, other hosts, ids that occur twice."""

    def __init__(self):
        super().__init__()
        self.found, self.ids = [], []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if "id" in named:
            self.ids.append(named["id"])
        wrong = [name for name in named if name.startswith("on") or name == "style"]
        wrong += [name for name in ("src", "href") if re.match("(https?:)?//", named.get(name) or "")]
        is_data = named.get("type") == "application/json"
        is_ours = (named.get("src") or "").startswith("/assets/") and "defer" in named
        if tag == "style" or (tag == "script" and not is_data and not is_ours):
            wrong.append(tag)
        if wrong:
            self.found.append((tag, wrong))


def checked(page):
    checker = Checker()
    checker.feed(page)
    assert checker.found == []
    assert len(checker.ids) == len(set(checker.ids))
    return page


def publish(store, samples, id, *, days=0, model="bert", cluster="leonardo", **changes):
    """Store a study that ended so many days ago with a recommendation, and return it."""
    when = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    study = samples.study(id, model=model, cluster_name=cluster, created=when, updated=when)
    return samples.publish(store, study, f"r{id}", created=when, **changes)


def test_every_page_is_inert_html_of_one_answer(client, subtests):
    for path in PAGES:
        with subtests.test(path):
            answer = client.get(path)
            assert answer.status_code == 200
            checked(answer.text)
            assert len(answer.content) < 200_000


def test_every_page_has_a_json_twin(client, subtests):
    for path in [path for path in PAGES if "days" not in path]:
        with subtests.test(path):
            answer = client.get(path + ("&" if "?" in path else "?") + "format=json")
            assert answer.headers["content-type"] == "application/json"
            assert answer.json()


def test_a_study_over_gloo_is_no_verdict_about_nccl(empty_store, empty_client, samples):
    publish(empty_store, samples, "5e1f00aa", launcher="slurm", simulated=False)
    here = replace(samples.study("5e1f00bb").cluster.fingerprint(), gpu=NO_GPU)
    publish(empty_store, samples, "5e1f00bb", launcher="torchrun", simulated=False, fingerprint=here, cluster="cpus")
    assert "Last 30 days: 1 measured verdict," in empty_client.get("/").text


def test_the_map_in_json_has_the_same_numbers(client):
    answer = client.get("/?format=json")
    cells = {(cell["cluster"], cell["model"]): cell for cell in answer.json()["map"]["cells"]}
    verdict = cells["leonardo", "bert"]["verdict"]
    assert (verdict["decision"], verdict["speedup"], verdict["interval"]) == ("tuned", 1.083, [1.061, 1.104])
    assert cells["leonardo", "bert"]["origin"] == "simulated"
    assert cells["leonardo", "resnet101"]["origin"] == "measured"
    studies = {cell["study"] for cell in cells.values() if "study" in cell}
    assert studies == set(re.findall(r'<td class="cell [^"]*">\s*<a href="/studies/(\w+)"', client.get("/").text))
    assert "rules" not in json.dumps(answer.json()["map"])  # /v1/recommendations has the policies


def test_a_stale_cell_promises_nothing_and_shows_the_former_gain(empty_store, empty_client, samples):
    publish(empty_store, samples, "aa", source_digest="0" * 12)  # not that of the workload that is shipped
    page = empty_client.get("/").text
    for text in ('<td class="cell failed shade0">', "<strong>stale</strong>", "1 stale", ">was 1.083×</span>"):
        assert text in page


def test_a_gain_for_another_nccl_version_is_neither_green_nor_counted(empty_store, empty_client, samples):
    empty_store.clusters.add(replace(samples.cluster("hall"), nccl_version="2.28.9"))
    publish(empty_store, samples, "aa", cluster="hall")
    page = empty_client.get("/").text
    assert '<td class="cell other shade0">' in page
    assert '<span class="range">for NCCL 2.22.3</span>' in page
    assert '<p class="lead">0 tuned' in page
    assert "1 for another NCCL version" in page
    page = empty_client.get("/clusters/hall").text
    served = page[page.index("served-heading") : page.index("history-heading")]
    assert '<span class="badge open">for NCCL 2.22.3</span>' in served
    assert "not served to jobs with NCCL 2.28.9" in served
    study = empty_store.recommendations.find(cluster="hall")[0].study
    page = empty_client.get(f"/studies/{study}").text
    assert '<span class="badge open">for NCCL 2.22.3</span>' in page
    assert '<span class="badge tuned">' not in page
    assert "Tuned with NCCL 2.22.3; jobs with NCCL 2.28.9" in page
    publish(empty_store, samples, "bb", cluster="gone")  # its version is not known
    assert '<td class="cell tuned' in empty_client.get("/?cluster=gone").text


def test_the_best_setting_of_the_search_is_hidden_by_a_verdict(empty_store, empty_client, samples):
    kept = PolicyVerdict(policy=Policy(), verdict=keep_default(8_000.0, why="below the minimum"))
    publish(empty_store, samples, "aa", table=kept, plain=False)
    empty_store.studies.open(samples.study("bb", cluster_name="other", state=StudyState.INTERRUPTED))
    for study in ("aa", "bb"):
        for number, (setting, score_us) in enumerate(((DEFAULT, 9_000.0), (samples.TREE, 7_000.0))):
            one = samples.trial(number, setting, empty_store.studies.get(study))
            empty_store.trials.add(study, replace(one, score_us=score_us))
    rows = dict(re.findall(r'/studies/(..)">(.*?)</tr>', empty_client.get("/studies").text, re.DOTALL))
    assert "8.00 ms" in rows["aa"]
    assert "7.00 ms" not in rows["aa"]
    assert '<span class="quiet">default</span>' in rows["aa"]
    assert "9.00 ms" in rows["bb"]
    assert '7.00 ms<span class="under">not validated</span>' in rows["bb"]
    assert (
        '<td class="num">8.00 ms</td><td class="num"><span class="quiet">default</span></td>'
        in empty_client.get("/clusters/leonardo").text
    )
    page = empty_client.get("/studies/aa").text
    assert "no candidate reached the threshold" in page
    assert not re.search("95.% CI", page)


def test_a_running_study_is_live_and_first(empty_store, empty_client, samples):
    publish(empty_store, samples, "aa")
    empty_store.studies.open(samples.study("bb", state=StudyState.RUNNING))
    page = empty_client.get("/").text
    assert 'hx-get="/live"' in page
    assert page.index("/studies/bb") < page.index("Recent studies")
    assert "1 searching" in page
    assert "/studies/bb" in empty_client.get("/live").text
    empty_store.studies.set_state("bb", StudyState.DONE, "")
    assert "hx-get" not in empty_client.get("/live").text


def test_changed_results_are_marked_and_repeated_ones_are_not(empty_store, empty_client, samples):
    publish(empty_store, samples, "a1", days=40)
    publish(empty_store, samples, "a2", days=2)  # the same again
    publish(empty_store, samples, "b1", days=40, model="gpt2", decision=Decision.KEEP_DEFAULT)
    publish(empty_store, samples, "b2", days=3, model="gpt2")
    publish(empty_store, samples, "c1", days=4, model="new one")
    cells = empty_client.get("/?days=30&format=json").json()["map"]["cells"]
    assert {cell["model"]: cell["change"] for cell in cells if cell["change"]} == {"gpt2": "was keep", "new one": "new"}
    assert "<strong>2 changed</strong> in the last 30 days" in empty_client.get("/?days=30").text


def test_filters_are_in_the_address_and_stay_in_the_form(client):
    for path, chosen in (("/?cluster=leonardo&model=bert&days=7", 3), ("/studies?cluster=leonardo&model=bert", 2)):
        page = client.get(path).text
        assert (page.count(" selected>"), "5e1f00aa" in page, "7a6bbb02" in page) == (chosen, True, False)
    assert client.get("/?colour=red").status_code == 422
    assert client.get("/?days=0").status_code == 422


def test_find_answers_a_fragment_to_the_field_and_a_page_to_a_form(client):
    fragment = client.get("/find?q=leon", headers={"HX-Request": "true"}).text
    assert fragment.lstrip().startswith("<ul")
    assert 'href="/clusters/leonardo"' in fragment
    assert "<html" in client.get("/find?q=leon").text
    assert "No cluster, workload or study matches." in client.get("/find?q=nothing-like-it").text
    assert client.get(f"/find?q={'x' * 201}").status_code == 422


def test_hostile_names_are_text_on_every_page(empty_store, empty_client, samples):
    for number, name in enumerate(HOSTILE):
        place = replace(samples.cluster(), name=name, description=name, sources=(name,))
        empty_store.clusters.add(place)
        empty_store.workloads.add(samples.workload(name))
        published = publish(empty_store, samples, f"a{number}", model=name, cluster=name)
        empty_store.records.add_attestation(samples.attestation(published, notes=(name,), tuner_lines=(name,)))
    empty_store.revisions.pin("ra0", Actor(who="ann", why=HOSTILE[0]))
    named = [("/", {"cluster": name}) for name in HOSTILE] + [("/find", {"q": name[:200]}) for name in HOSTILE]
    whole = [("/", {}), ("/studies", {}), ("/jobs", {}), ("/compare", {"study": ["a0", "a1"]})]
    whole += [(f"/recommendations/ra{number}", {}) for number in range(len(HOSTILE))]
    for path, parameters in [*whole, *named]:
        page = checked(empty_client.get(path, params=parameters).text)
        assert HOSTILE[0] not in page
    for name in HOSTILE:
        hits = empty_client.get("/find", params={"q": name[:200], "format": "json"}).json()["hits"]
        assert [hit["kind"] for hit in hits] == ["cluster", "workload", "study"]
        assert "/" not in hits[0]["href"].removeprefix("/clusters/")
        for hit in hits[:2]:
            answer = empty_client.get(hit["href"])
            assert answer.status_code == 200, hit
            checked(answer.text)
            assert len(answer.content) < 200_000
        served = {"cluster": name, "model": name, "format": "json"}
        assert empty_client.get("/recommendations", params=served).status_code == 200
        path = "/workloads/".join(hit["href"].rpartition("/")[2] for hit in hits[:2])
        assert f"/clusters/{path}" in empty_client.get(hits[0]["href"]).text
        checked(empty_client.get(f"/clusters/{path}").text)


def test_an_unknown_cluster_is_not_found_but_one_that_left_the_catalogue_is(empty_store, empty_client, samples):
    assert empty_client.get("/clusters/leonard").status_code == 404
    publish(empty_store, samples, "aa", cluster="gone")
    page = empty_client.get("/clusters/gone").text
    assert "No longer in the catalogue" in page


def publish_release(store, samples, id, version, factor=1.0, **changes):
    """Store a verdict under an NCCL version whose default takes `factor` times as long."""
    study = replace(samples.study(id), cluster=replace(samples.cluster(), nccl_version=version))
    verdict = replace(samples.verdict(), default_us=samples.verdict().default_us * factor)
    table = PolicyVerdict(policy=samples.POLICY, verdict=verdict)
    samples.publish(store, study, f"r{id}", plain=False, table=table, **changes)


def test_releases_of_nccl_are_compared_on_the_default(empty_store, empty_client, samples):
    for id, version, factor in (("a1", "2.22.3", 1.0), ("a2", "2.27.7", 1.1), ("a3", "2.28.9", 1.11)):
        publish_release(empty_store, samples, id, version, factor)
    view = empty_client.get("/clusters/leonardo?format=json").json()
    assert view["versions"] == ["2.22.3", "2.27.7", "2.28.9"]
    first, second, third = view["by_release"]["bert"]
    assert (first["slowdown"], second["slowdown"]) == (None, pytest.approx(0.1))
    assert 0 < third["slowdown"] < 0.03
    page = empty_client.get("/clusters/leonardo").text
    assert re.findall(r'<span class="(\w*)">(\+[^<]*)</span>', page) == [("loss", "+10.0 %"), ("", "+0.9 %")]
    assert re.search(r"Default with NCCL [^<]*</dt><dd><a [^>]*>0 of 1 workload slower", page)
    assert [era["revisions"] for era in view["eras"]] == [1, 1, 1]
    assert page.count(">current</span>") == 1


def test_a_simulated_preflight_is_not_the_health_of_a_fabric(empty_store, empty_client):
    def fabric():
        return re.search(r"<dt>Fabric</dt><dd>(.*?)</dd>", empty_client.get("/clusters/leonardo").text)[1]

    drawn = fill_record(Preflight, cluster="leonardo", state=State.DEGRADED, simulated=True, readings=())
    empty_store.records.add_preflight(drawn)
    assert "not examined" in fabric()
    empty_store.records.add_preflight(replace(drawn, id="measured", state=State.UNMEASURED, simulated=False))
    empty_store.records.add_preflight(replace(drawn, id="later"))
    assert "unmeasured" in fabric()


def test_a_workload_shows_the_maximum_gain(empty_store, empty_client, samples):
    recorded = replace(samples.workload("mine"), step_time_us=100_000.0, exposed_us=20_000.0)
    empty_store.workloads.add(recorded)
    page = empty_client.get("/workloads/mine").text
    assert "20 % of a step is exposed communication" in page
    assert "<strong>1.250×</strong>" in page
    assert "Maximum gain unknown" in empty_client.get("/workloads/bert").text


def test_a_workload_is_compared_with_another(empty_store, empty_client, samples):
    base = samples.workload("mine")
    more = replace(base.messages[0], calls_per_step=99.0)
    empty_store.workloads.add(replace(base, messages=(more, *base.messages[2:])))
    page = empty_client.get("/workloads/bert?with=mine").text
    assert "removes 1, and changes the calls of 1; 4 are unchanged" in page
    assert "Both workloads have the same messages" in empty_client.get("/workloads/bert?with=bert").text
    assert empty_client.get("/workloads/bert?with=nope").status_code == 404


def test_studies_side_by_side_mark_what_differs(client):
    page = client.get("/compare?study=5e1f00aa&study=7a6bbb02").text
    assert '<tr class="differs"><th scope="row">Times' in page
    assert '<tr><th scope="row">NCCL' in page
    assert "not the times" not in page
    view = client.get("/compare?study=5e1f00aa&study=7a6bbb02&format=json").json()
    assert view["best"] is None  # one is simulated, the other is not
    assert 'class="best"' not in page
    facts = {row["name"]: row for row in view["facts"]}
    assert facts["Times"]["values"] == ["SIMULATED", "measured"]


def test_nobody_whose_interval_overlaps_is_best(empty_store, empty_client, samples):
    for name, interval in (("low", (1.03, 1.07)), ("near", (1.06, 1.10)), ("apart", (1.08, 1.12))):
        table = PolicyVerdict(policy=samples.POLICY, verdict=samples.verdict(Decision.TUNED, 1.09, interval))
        publish(empty_store, samples, name, cluster=name, table=table, plain=False)
    for others, best in (("low", 1), ("near", 0)):
        page = empty_client.get(f"/compare?model=bert&cluster=apart&cluster={others}").text
        assert page.count('class="best"') == page.count('<strong class="big">') == best
        assert ("No best result: intervals overlap" in page) == (not best)


def test_of_three_columns_only_the_odd_one_is_bold():
    assert ComparisonRow(name="NCCL", values=("2.27", "2.27", "2.28")).marks == (False, False, True)
    assert ComparisonRow(name="NCCL", values=("2.27", "2.28")).marks == (True, True)
    assert ComparisonRow(name="Time", values=("1 ms", "2 ms"), has_noise=True).marks == (False, False)


def test_ranges_of_policies_are_split_where_any_of_them_changes(empty_store, empty_client, samples):
    publish(empty_store, samples, "aa", plain=False)
    other = PolicyVerdict(policy=samples.PLAIN, verdict=samples.verdict())
    publish(empty_store, samples, "bb", cluster="other", plain=False, table=other)
    view = empty_client.get("/compare?model=bert&cluster=leonardo&cluster=other&format=json").json()
    rows = [(row["name"], row["values"]) for row in view["rules"]]
    assert rows == [
        ("all_reduce, up to 1 MiB", ["tree/ll128 c=8", "ring/simple c=16"]),
        ("all_reduce, above 1 MiB", ["ring/simple c=16", "ring/simple c=16"]),
    ]
    page = empty_client.get("/compare?model=bert&cluster=leonardo&cluster=other").text
    assert '<tr class="differs"><th scope="row">all_reduce, up to 1 MiB' in page
    assert '<tr><th scope="row">all_reduce, above 1 MiB' in page


def test_one_cluster_compares_its_releases_and_revisions_compare_themselves(empty_store, empty_client, samples):
    earlier = replace(samples.cluster(), nccl_version="2.27.7").fingerprint()
    first = publish(empty_store, samples, "aa", fingerprint=earlier)
    second = publish(empty_store, samples, "bb")
    by_release = empty_client.get("/compare?model=bert&cluster=leonardo&format=json").json()
    by_revision = empty_client.get(f"/compare?revision={second.id}&revision={first.id}&format=json").json()
    places = [column["recommendation"]["fingerprint"] for column in by_release["columns"]]
    assert [place["nccl_version"] for place in places] == ["2.22.3", "2.27.7"]
    assert by_release["columns"] == by_revision["columns"]
    assert by_release["best"] is None  # equal intervals overlap


def test_a_workload_on_many_clusters_is_compared_on_the_first_and_says_how_many_are_left(
    empty_store, empty_client, samples
):
    for number in range(8):
        origin = {} if number < 5 else {"simulated": False, "launcher": "slurm"}
        publish(empty_store, samples, f"c{number}", cluster=f"hall-{number}", **origin)
    view = empty_client.get("/compare?model=bert&format=json").json()
    shown = [column["study"]["cluster"]["name"] for column in view["columns"]]
    assert shown == ["hall-5", "hall-6", "hall-7", "hall-0", "hall-1", "hall-2"]
    assert "2 more clusters are not shown" in empty_client.get("/compare?model=bert").text
    every = "&".join(f"cluster=hall-{number}" for number in range(8))
    assert "8 results selected: select at most 6" in empty_client.get(f"/compare?model=bert&{every}").text


def test_a_selection_that_cannot_be_compared_is_refused_with_its_reason(client):
    for query, words in (
        ("", "Select two to six results"),
        ("?study=5e1f00aa", "Only one result"),
        ("?model=bert&cluster=elsewhere&cluster=nowhere", "No result"),
        ("?" + "&".join(["study=5e1f00aa"] * 7), "7 results selected: select at most 6"),
    ):
        assert words in client.get(f"/compare{query}").text, query
        assert client.get(f"/compare{query}{'&' if query else '?'}format=json").status_code == 422, query
    assert client.get("/compare?study=nope").status_code == 404


def test_times_are_in_the_ratio_of_the_speed_up_on_every_page(empty_store, empty_client, samples):
    samples.fill(empty_store)
    published = next(one for one in empty_store.recommendations.find() if one.study == "5e1f00aa")
    verdict = replace(published.table.verdict, policy_us=2 * published.table.verdict.policy_us)
    empty_store.revisions.publish(replace(published, id="0c0ffee9", table=replace(published.table, verdict=verdict)))
    shown = format_time(verdict.default_us / verdict.speedup)
    cluster = published.cluster
    for path in (f"/studies?cluster={cluster}", f"/clusters/{cluster}", "/compare?study=5e1f00aa&study=7a6bbb02"):
        assert f">{shown}<" in empty_client.get(path).text


def test_releases_are_not_compared_over_a_change_of_the_workload(empty_store, empty_client, samples):
    publish_release(empty_store, samples, "a1", "2.22.3")
    publish_release(empty_store, samples, "a2", "2.28.9", workload_digest="0" * 12)
    (_, second) = empty_client.get("/clusters/leonardo?format=json").json()["by_release"]["bert"]
    assert (second["slowdown"], second["is_changed"]) == (None, True)
    assert "workload changed · " in empty_client.get("/clusters/leonardo").text
