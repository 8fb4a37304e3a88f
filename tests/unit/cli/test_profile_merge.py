"""`profile merge`, and the study of what it makes: one policy, and the gain of every part wherever it is shown."""

import json
import re

import pytest

from ncclt.cli.profile import merge
from ncclt.cli.studies import show
from ncclt.cli.tune import tune
from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import NotFoundError, UsageError
from ncclt.testing.landscapes import write_landscape
from ncclt_api.json_models import study_detail
from ncclt_api.pages.report import study_report

KIB = 1024
TIMES_US = {("", ""): (20.0, 1000.0), ("ring", "ll"): (10.0, 1200.0), ("tree", "simple"): (30.0, 800.0)}


@pytest.fixture
def stored(command, tmp_path):
    """A recording of two sizes, and three workloads: of small messages, of large ones, and of what was not recorded."""
    rows = [
        {"nccl_version": "2.27.3", "size_bytes": size, "algo": algo, "proto": proto, "time_us": time}
        for (algo, proto), times in TIMES_US.items()
        for size, time in zip((4 * KIB, 32768 * KIB), times, strict=True)
    ]
    write_landscape(tmp_path / "box.csv", rows)
    for name, collective, size, calls in (
        ("small", Collective.ALL_REDUCE, 4 * KIB, 100),
        ("large", Collective.ALL_REDUCE, 32768 * KIB, 10),
        ("far", Collective.ALL_TO_ALL, 4 * KIB, 1),
    ):
        message = Message(collective=collective, dtype="float32", size_bytes=size)
        command.store.workloads.add(
            Workload(
                name=name,
                messages=(MessageCalls(message=message, calls_per_step=calls),),
                provenance=Provenance(source="test"),
            )
        )
    return command


def tuned(command, tmp_path, *words):
    return command(tune, "--model", "fleet", "--launcher", "replay", "--landscape", str(tmp_path / "box.csv"), *words)


def test_the_merged_workload_is_stored_and_names_its_parts(stored):
    text = stored(merge, "small", "large", "--name", "fleet", "--weights", "3, 1")
    assert text.startswith("fleet: merge, parts 3 x small + 1 x large\n")
    found = stored.store.workloads.get("fleet")
    assert [c.calls_per_step for c in found.messages] == [10, 300]
    document = json.loads(stored(merge, "small", "large", "--name", "fleet", "--replace", "--json"))
    assert [(part["name"], part["weight"]) for part in document["parts"]] == [("small", 1), ("large", 1)]
    assert stored.store.workloads.get("fleet") == Workload.from_document(document)


def test_one_study_shows_the_gain_of_every_part(stored, tmp_path):
    stored(merge, "small", "large", "far", "--name", "fleet", "--weights", "3,1,1")
    assert "Parts:    small 2.00x, large 1.25x, far -" in tuned(stored, tmp_path)
    text = tuned(stored, tmp_path, "-v")
    page = stored.store.studies.page().items
    assert len(page) == 1
    study = page[0].study
    shown = stored(show, study.id)
    for said in (text, shown):
        assert re.search(r"^small +3 +2,000 +1,000 +2.00x ", said, re.MULTILINE)
        assert re.search(r"^large +1 +10,000 +8,000 +1.25x ", said, re.MULTILINE)
        assert re.search(r"^far +1( +-){4} +not validated: none of its messages can be", said, re.MULTILINE)
        assert "not delivered" not in said
    parts = json.loads(stored(show, study.id, "--json"))["parts"]
    assert json.loads(tuned(stored, tmp_path, "--json"))["parts"] == parts
    assert [(part["name"], part["weight"], part["default_us"]) for part in parts] == [
        ("small", 3, 2000),
        ("large", 1, 10000),
        ("far", 1, None),
    ]
    detail = study_detail(
        stored.store, stored.store.studies.get(study.id), stored.store.recommendations.find(study=study.id)
    )
    assert [part.model_dump(mode="json") for part in detail.parts] == parts
    html = study_report(stored.store, stored.store.studies.get(study.id))
    section = html[html.index("Gain per part") :].partition("</table>")[0]
    assert all(word in section for word in ("small", "2.000×", "1.250×", "not validated: none of its messages"))


def test_without_a_gain_no_part_claims_one(stored, tmp_path):
    """The policy that helps one part is not worth it for all."""
    stored(merge, "small", "large", "--name", "fleet")
    text = tuned(stored, tmp_path, "--min-effect", "0.9", "-v")
    assert text.count("not validated: no A/B test") == 2


def test_a_dry_run_stores_nothing(stored):
    stored(merge, "small", "large", "--name", "fleet", "--dry-run")
    with pytest.raises(NotFoundError):
        stored.store.workloads.get("fleet")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("small", "large", "--name", "fleet", "--weights", "3"), "--weights gives 1 number for 2 workloads"),
        (("small", "large", "--name", "fleet", "--weights", "3_0,1"), "--weights is '3_0,1'"),
        (("small", "large", "--name", "fleet", "--weights", "３,1"), "--weights is"),
        (("small", "large", "--name", "fleet", "--weights", "3,nan"), "nan cannot be the weight of large"),
        (("small", "--name", "fleet"), "a merge needs two or more workloads"),
        (("small", "large", "--name", "small", "--replace"), "small is one of its own parts"),
        (("small", "large", "--name", "a b"), "--name 'a b' cannot name a workload"),
        (("small", "large", "--name", "far"), "there is a workload 'far' already"),
    ],
)
def test_what_cannot_be_merged_is_refused_and_stores_nothing(stored, words, said):
    before = stored.store.workloads.entries()
    with pytest.raises(UsageError, match=re.escape(said)):
        stored(merge, *words)
    assert stored.store.workloads.entries() == before


def test_an_unknown_part_is_named(stored):
    with pytest.raises(NotFoundError, match="there is no workload 'lager'"):
        stored(merge, "small", "lager", "--name", "fleet")
