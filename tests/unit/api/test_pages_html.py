"""What the pages say, without a browser."""

import html
import re
from dataclasses import replace

from fastapi.testclient import TestClient

from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.core.revision import Actor
from ncclt.core.study import Phase, StudyState
from ncclt.pipeline.on_jobs import plan_on_jobs, start_on_jobs
from ncclt.prove.proof import evidence_document
from ncclt.prove.study_summary import summarize_study
from ncclt_api.app import ServiceOptions, create_app
from ncclt_api.pages.report import study_report


def test_a_filter_without_a_study_says_so_and_keeps_the_choice(client):
    for path, words in (("/", "Nothing matches"), ("/studies", "No study matches")):
        page = client.get(f"{path}?cluster=elsewhere&model=").text
        assert words in page
        assert '<option value="elsewhere" selected>' in page
        page = client.get(path, params={"cluster": "$(reboot); x", "model": ""}).text
        assert "--cluster &#39;$(reboot); x&#39;" in page


def test_the_list_is_paged_on_the_server(empty_store, empty_client, samples):
    for number in range(30):
        empty_store.studies.open(samples.study(f"{number:08x}", name=f"study {number}"))
    first = empty_client.get("/studies").text
    assert len(re.findall('class="study"', first)) == 25
    older = re.search(r'href="(/studies\?[^"]*cursor=[^"]*)">Older', first)[1].replace("&amp;", "&")
    second = empty_client.get(older).text
    assert len(re.findall('class="study"', second)) == 5
    assert "Newest" in second


def test_every_file_a_page_loads_is_served(client):
    page = client.get("/studies/5e1f00aa").text
    files = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page)
    assert len(files) >= 7
    assert {client.get(file).status_code for file in files} == {200}


def test_an_unfinished_study_shows_its_state(empty_store, empty_client, samples):
    empty_store.studies.open(samples.study(name="mine", state=StudyState.INTERRUPTED))
    page = empty_client.get("/studies/mine").text
    assert "interrupted" in page
    assert "Nothing measured yet." in page
    study = samples.study("5e1f00bb", state=StudyState.RUNNING)
    samples.open_study(empty_store, study, samples.search_trials(study))
    assert "not validated" in empty_client.get(f"/studies/{study.id}").text


def test_the_command_names_the_configured_server_and_never_the_host_of_the_request(empty_store, samples):
    study = samples.study(simulated=False, launcher="slurm")
    samples.publish(empty_store, study)
    for public_url, source in (("", ""), ("https://tuner", " --server https://tuner")):
        with TestClient(create_app(empty_store, ServiceOptions(public_url=public_url))) as client:
            page = client.get(f"/studies/{study.id}", headers={"Host": "evil.example:9000"}).text
        line = "ncclt run --cluster leonardo --model bert --nodes 2 --gpus-per-node 4 --nccl-version 2.22.3"
        line += f"{source} --shared . --job NAME -- torchrun --nnodes=2 --nproc-per-node=4 train.py"
        assert "evil.example" not in page
        assert page.count('<div class="copyable">') == 1
        assert f"<code>{line}</code>" in re.sub("</?span>", "", page)


def test_the_gain_of_a_study_is_its_verdict(empty_store, empty_client, samples):
    """A speed-up that was not validated, or is stale, is no gain."""

    def shown_gain(id):
        return re.search(r"<dt>Gain</dt>\s*<dd><strong>(.*?)</strong>", empty_client.get(f"/studies/{id}").text)[1]

    gains = {}
    for decision in Decision:
        study = samples.study(decision.value, simulated=False, launcher="slurm")
        table = PolicyVerdict(policy=samples.POLICY, verdict=samples.verdict(decision, 1.083, (1.061, 1.104)))
        found = samples.publish(empty_store, study, f"r-{decision}", decision, plain=False, table=table)
        gains[decision] = shown_gain(study.id)
    assert gains == {"tuned": "1.083×", "keep-default": "None", "undecided": "Undecided", "untried": "Untried"}
    samples.make_stale(empty_store, found.id, reason="the gain is lost: 1.07 before, 0.99 now")
    assert shown_gain(found.study) == "Stale"


def test_simulated_studies_are_marked_and_their_cost_too(client):
    for id, is_simulated in (("5e1f00aa", True), ("7a6bbb02", False)):
        page = client.get(f"/studies/{id}?tab=search").text
        assert ("SIMULATED" in page) == is_simulated
        assert ('<p class="note">Total: about ' in page) == is_simulated


def test_the_page_of_a_study_reads_only_the_measurements_that_it_shows(empty_store, empty_client, samples, monkeypatch):
    study = samples.study()
    samples.open_study(empty_store, study, samples.search_trials(study))
    whole, outline = empty_store.trials.find(study.id), empty_store.trials.outline(study.id)
    assert empty_store.trials.with_measurements(study.id, outline) == whole
    assert not any(trial.result.measurements for trial in outline)
    monkeypatch.setattr(type(empty_store.trials), "find", None)
    assert empty_client.get(f"/studies/{study.id}").status_code == 200


def test_a_study_and_its_evidence_read_only_the_measurements_of_the_proof(filled_store, client, monkeypatch):
    study = filled_store.studies.get("5e1f00aa")
    (found,) = filled_store.recommendations.find(study=study.id)
    whole, read = filled_store.trials.find(study.id), filled_store.trials.with_proof(study.id)
    assert sum(bool(one.result.measurements) for one in read if one.phase is not Phase.PROVE) == 1
    assert summarize_study(study, read, found) == summarize_study(study, whole, found)
    assert evidence_document(found, read, study.workload) == evidence_document(found, whole, study.workload)
    monkeypatch.setattr(type(filled_store.trials), "find", None)
    for path in (f"/v1/studies/{study.id}", f"/v1/studies/{study.id}/evidence"):
        assert client.get(path).status_code == 200, path


def test_a_superseded_study_links_to_what_jobs_are_given(empty_store, empty_client, samples):
    store, client = empty_store, empty_client
    samples.fill(store)
    page = client.get("/studies/5e1f00aa").text
    assert "Superseded." not in page
    assert 'href="/clusters/leonardo"' in page
    assert 'href="/workloads/bert"' in page
    assert 'href="/compare?model=bert"' in page
    store.studies.open(samples.study("5e1f00bb", name="later"))
    store.revisions.publish(replace(store.recommendations.get("0c0ffee1"), id="0c0ffeeb", study="5e1f00bb"))
    page = client.get("/studies/5e1f00aa").text
    assert "Superseded." in page
    assert 'href="/studies/5e1f00bb"' in page
    assert "Superseded." not in client.get("/studies/5e1f00bb").text


def test_no_page_says_that_an_untried_candidate_was_measured(empty_store, empty_client):
    cluster = empty_store.clusters.get("leonardo").sized(nodes=2, gpus_per_node=4, nccl_version=None)
    workload = empty_store.workloads.get("bert")
    plan = plan_on_jobs(workload, cluster, empty_store, by_plugin=True, deterministic=False)
    start_on_jobs(plan, empty_store, by=Actor(who="ann"), max_cost=0.01)
    study, candidate = plan.study.id, plan.candidates[0].id
    texts = [
        empty_client.get(path).text for path in ("/", "/studies", f"/studies/{study}", f"/recommendations/{candidate}")
    ]
    texts.append(study_report(empty_store, empty_store.studies.get(study)))
    for text in texts:
        plain = " ".join(html.unescape(re.sub("<[^>]+>", " ", text)).split())
        assert not re.search(r"no policy beat|no candidate reached|1\.0+[x×]|faster than", plain), plain
    assert "Nothing to do" not in texts[2]
    assert "No evidence yet: jobs try it in a roll-out." in texts[2]
    assert "activate" not in empty_client.get(f"/recommendations/{candidate}?format=json").json()["actions"]
    (rollout,) = empty_store.revisions.rollouts()
    page = empty_client.get(f"/roll-outs/{rollout.id}").text
    assert "/retire" in page
    assert "/activate" not in page
