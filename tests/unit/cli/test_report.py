"""`ncclt report`: one file that loads nothing."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from ncclt.cli.application import app
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.core.study import StudyState
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls
from ncclt.store import open_store
from ncclt.testing.samples import sample_study, sample_trial

HOSTILE = {
    "script": "<script>alert(1)</script>`|[x](javascript:1) @team",
    "right to left": "a\u202egnp.exe\u2066 \u05d0\u05d1",
    "long": "x" * 5000,
    "no Unicode": "broken \udc80 name",
}
MESSAGE = Message(
    collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=1 << 20, group_size=16, spans_nodes=True
)


def call(*words):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["report", *words])


@pytest.fixture
def stored(tmp_path):
    """Return a function that stores a study of two trials with a name, and returns the options that find it."""

    def make(name="plain", **changes):
        url = f"sqlite:///{tmp_path}/{len(list(tmp_path.iterdir()))}.db"
        reason, name = name, name.replace("\udc80", "")  # only documents can hold what is no Unicode
        study = sample_study(name, id="aa00")
        calls = (MessageCalls(message=MESSAGE, calls_per_step=4.0),)
        workload = replace(study.workload, name=name, messages=calls)
        cluster = replace(study.cluster, name=name)
        study = replace(study, cluster=cluster, workload=workload, state=StudyState.DONE, reason=reason, **changes)
        measured = TrialResult(
            outcome=Outcome.OK, measurements=(Measurement(message=MESSAGE, samples_us=(80.0, 81.0)),)
        )
        crashed = TrialResult(outcome=Outcome.CRASHED, detail=f"rank 3: {reason}")
        with open_store(url) as store:
            store.studies.open(study)
            for number, (result, score_us) in enumerate(((measured, 320.0), (crashed, None))):
                trial = replace(sample_trial(number, setting=DEFAULT, score_us=score_us), repeat=number, result=result)
                store.trials.add(study.id, trial)
        return ("aa00", "--storage", url)

    return make


class Seen(HTMLParser):
    """Collects elements and what they would load."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.loads, self.attributes = [], [], set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.loads += [value for name, value in attrs if name in ("href", "src", "action", "srcset")]


def test_one_file_that_loads_nothing(stored, tmp_path):
    path = tmp_path / "report.html"
    done = call(*stored(), "-o", str(path))
    assert done.exit_code == 0, done.output
    page = path.read_text(encoding="utf-8")
    seen = Seen(page)
    assert all(value.startswith("#") for value in seen.loads)
    assert not {"form", "link", "iframe", "button"} & set(seen.tags)
    assert not any(name.startswith(("hx-", "on")) for name in seen.attributes)
    assert "default-src 'none'" in page
    assert "unsafe" not in re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "htmx" not in page.partition("<body>")[2].lower().replace("htmx:load", "")
    assert "SIMULATED" in page
    assert page.count("<figure") == page.count("as a table</summary>") >= 1
    assert "uPlot" in page
    assert list(tmp_path.glob(".report*")) == []


def test_every_chart_and_heading_of_the_page_is_in_the_report(stored):
    from fastapi.testclient import TestClient

    from ncclt_api.app import create_app

    words = stored()
    with TestClient(create_app(words[2])) as client:
        tabs = client.get("/studies/aa00?format=json").json()["tabs"]
        page = "".join(client.get(f"/studies/aa00?tab={tab}").text for tab in tabs)
    report = call(*words).stdout
    for pattern in (r"<h2[^>]*>([^<]*)", r'<figure class="[^"]*" id="([^"]*)"'):
        assert sorted(re.findall(pattern, report)) == sorted(set(re.findall(pattern, page)))


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_inert(stored, name):
    words = stored(name)
    page = call(*words).stdout
    assert "<script>alert" not in page
    assert Seen(page).tags == Seen(call(*stored()).stdout).tags


def test_an_unknown_study_and_a_place_that_cannot_be_written(stored, tmp_path):
    words = stored()
    assert call("nothing", *words[1:]).exit_code == 3
    refused = call(*words, "-o", str(tmp_path / "missing" / "report.html"))
    assert refused.exit_code == 2
    assert "cannot be written" in refused.stderr


def test_an_empty_variable_names_no_store(tmp_path):
    environment = {"HOME": str(tmp_path), "XDG_DATA_HOME": None, "NCCLT_STORAGE": ""}
    refused = CliRunner(env=environment).invoke(app, ["report", "nothing"])
    assert refused.exit_code == 3, refused.output
