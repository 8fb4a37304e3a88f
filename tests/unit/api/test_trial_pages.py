"""The list of trials, the page of one, and the files of all, without a browser."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from ncclt.core.algorithms import Algorithm
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Phase
from ncclt.core.trial import Outcome
from ncclt.store.trials import TrialFilter
from ncclt_api.app import create_app
from ncclt_api.pages.trials import TRIALS_PER_PAGE, message_key

ID = "5e1f00aa"
NUMBER = re.compile(r'aria-label="Trial (\d+)"')


@pytest.fixture
def long_client(empty_store, empty_client, samples):
    """A service with a study of two pages of trials."""
    study = samples.study()
    samples.open_study(empty_store, study, samples.search_trials(study, TRIALS_PER_PAGE + 5))
    return empty_client


def numbers(page):
    return [int(number) for number in NUMBER.findall(page)]


def test_every_page_of_the_list_leads_to_every_trial(long_client):
    first, last = (long_client.get(f"/studies/{ID}?tab=trials&page={page}").text for page in (1, 99))
    assert numbers(first) + numbers(last) == list(range(TRIALS_PER_PAGE + 5))
    assert "page 2 of 2" in last
    assert all(f'href="/studies/{ID}/trials/{number}"' in first + last for number in (0, TRIALS_PER_PAGE + 4))


def test_the_list_is_filtered_and_sorted_by_the_store(empty_store, long_client):
    every = empty_store.trials.outline(ID)
    by_time = sorted(every, key=lambda t: (t.score_us is None, t.score_us or 0, t.number))
    asked = {
        "outcome=crashed": [t for t in every if t.result.outcome is Outcome.CRASHED],
        "algorithm=tree": [t for t in every if t.setting.algorithm is Algorithm.TREE],
        "phase=prove": [],
        "phase=&outcome=timeout&message=&algorithm=": [every[9]],
        "sort=-number": every[: -TRIALS_PER_PAGE - 1 : -1],
        "sort=time": by_time[:TRIALS_PER_PAGE],
    }
    for query, expected in asked.items():
        page = long_client.get(f"/studies/{ID}?tab=trials&{query}").text
        assert numbers(page) == [t.number for t in expected], query
    assert "No trial matches" in long_client.get(f"/studies/{ID}?tab=trials&phase=prove").text


def test_a_message_shows_the_time_of_its_calls(empty_store, long_client):
    message = empty_store.studies.get(ID).workload.messages[0].message
    part = empty_store.trials.select(ID, TrialFilter(message=message), limit=3)
    for item in part.items:
        measured = empty_store.trials.get(ID, item.trial.number).result.measurements
        assert [item.call_us] == [row.time_us for row in measured if row.message == message]
    assert (part.matching, part.total, part.failed) == (TRIALS_PER_PAGE + 3, TRIALS_PER_PAGE + 5, 2)
    page = long_client.get(f"/studies/{ID}", params={"tab": "trials", "message": message_key(message)}).text
    assert "Per call of all_reduce" in page
    refused = long_client.get(f"/studies/{ID}?message=nonsense", headers={"Accept": "application/json"})
    assert refused.status_code in (400, 422)


def test_the_page_of_a_trial(client, filled_store):
    page = client.get(f"/studies/{ID}/trials/0").text
    for words in ("Trial 0", "SIMULATED", "Samples by message as a table", "as forced (simulated)"):
        assert words in page
    failed = client.get(f"/studies/{ID}/trials/4").text
    assert "rank 3: &lt;script&gt;" in failed
    assert "Nothing measured." in failed
    twin = client.get(f"/studies/{ID}/trials/0?format=json").json()
    assert twin["trial"]["number"] == 0
    assert len(twin["messages"]) == len(filled_store.studies.get(ID).workload.messages)


def test_no_page_of_a_whole_file_speaks_of_a_step(empty_store, empty_client, samples):
    study = samples.study()
    origin = replace(study.workload.provenance, whole_file=True)
    study = replace(study, workload=replace(study.workload, provenance=origin))
    samples.open_study(empty_store, study, samples.whole_trials(study))
    for id in ("a", "b"):
        empty_store.revisions.publish(samples.recommendation(study, id))
    of_study = (f"/studies/{ID}{part}" for part in ("", "?tab=search", "/trials/0"))
    for path in (*of_study, "/compare?revision=a&revision=b"):
        page = empty_client.get(path).text
        assert "for the whole file" in page, path
        assert not re.findall(r"Calls / step|µs/step|\bper step\b|\bof the step\b|\ba step\b", page), path


def test_an_unknown_trial_is_a_404_and_an_invalid_number_refused(client):
    for path in (f"/studies/{ID}/trials/9999", "/studies/unknown/trials/0"):
        answer = client.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 404
        assert "There is no" in answer.text or "no trial" in answer.text or "no study" in answer.text
    for number in (-1, 99999999999):
        assert client.get(f"/studies/{ID}/trials/{number}").status_code == 422


def test_a_launched_trial_shows_its_commands_and_repeats(empty_store, empty_client, samples):
    study = samples.study(launcher="slurm", simulated=False)
    line = "env NCCL_ALGO=Ring srun all_reduce_perf --token '[removed]'"
    one = samples.trial(0, samples.RING, study)
    one = replace(one, result=replace(one.result, commands=(line,)))
    samples.open_study(empty_store, study, [one, replace(one, number=1, repeat=1)])
    assert empty_store.trials.get(study.id, 1).result.commands == (line,)
    page = empty_client.get(f"/studies/{ID}/trials/1").text
    assert "srun all_reduce_perf <span>--token</span> &#39;[removed]&#39;" in page
    assert f'<a href="/studies/{ID}/trials/0" aria-label="Trial 0">' in page
    assert "SIMULATED" not in page


def test_a_table_that_was_confirmed_is_drawn_and_is_no_launch_of_the_default(empty_store, empty_client, samples):
    study = samples.study(launcher="slurm", simulated=False)
    rule = Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING)
    confirmed = samples.trial(2, DEFAULT, study, phase=Phase.CONFIRM, wobble=0.25)
    searched = [samples.trial(number, setting, study) for number, setting in enumerate((DEFAULT, samples.RING))]
    samples.open_study(empty_store, study, [*searched, replace(confirmed, policy=Policy(rules=(rule,)))])
    view = empty_client.get(f"/studies/{ID}?format=json").json()["view"]
    entries = {one["event"]: one["detail"] for one in view["log"]}
    assert "median of 1" in entries["NCCL default measured"]
    assert entries["Candidates confirmed"].startswith("the best policy (1 launch), because")
    assert "policy of 1 rule" in empty_client.get(f"/studies/{ID}?tab=trials").text


def test_all_trials_are_exported(client, filled_store):
    every = filled_store.trials.find(ID)
    answer = client.get(f"/studies/{ID}/trials?format=json")
    document = json.loads(answer.text)
    assert document["label"] == "SIMULATED"
    assert [one["number"] for one in document["trials"]] == [trial.number for trial in every]
    listed = client.get(f"/studies/{ID}/trials?format=csv")
    assert listed.headers["Content-Type"].startswith("text/csv")
    assert "attachment" in listed.headers["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(listed.text, newline="")))
    assert len(rows) == sum(max(1, len(trial.result.measurements)) for trial in every)
    assert {row["label"] for row in rows} == {"SIMULATED"}
    first = next(trial for trial in every if trial.result.measurements).result.measurements[0]
    calls = {one.message: one.calls_per_step for one in filled_store.studies.get(ID).workload.messages}
    assert float(rows[0]["calls_per_step"]) == calls[first.message]
    assert {len(row) for row in csv.reader(io.StringIO(listed.text, newline=""))} == {27}
    assert [float(sample) for sample in rows[0]["samples_us"].split()] == list(first.samples_us)
    failed = client.get(f"/studies/{ID}/trials?format=csv&outcome=timeout").text
    assert len(list(csv.DictReader(io.StringIO(failed, newline="")))) == 1


def test_a_cell_is_no_formula(empty_store, empty_client, samples):
    study = samples.study()
    one = samples.trial(0, samples.RING, study, outcome=Outcome.CRASHED)
    samples.open_study(empty_store, study, [replace(one, result=replace(one.result, detail="=HYPERLINK(1)\udc80"))])
    text = empty_client.get(f"/studies/{ID}/trials?format=csv").text
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["detail"] == "'=HYPERLINK(1)\\udc80"


def test_kept_outlines_belong_to_their_application(filled_store, empty_store, samples):
    """Two services of one process must not answer from each other's store."""
    samples.open_study(empty_store, samples.study(reason="another store"))
    with TestClient(create_app(filled_store)) as full, TestClient(create_app(empty_store)) as empty:
        assert "No trials yet." not in full.get(f"/studies/{ID}?tab=trials").text
        assert "No trials yet." in empty.get(f"/studies/{ID}?tab=trials").text
