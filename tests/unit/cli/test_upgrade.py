"""`ncclt upgrade`: one report from the store, the libraries and the cost model; nothing is launched or served."""

import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from ncclt.cli.application import app
from ncclt.cli.tune import tune
from ncclt.store.shipped import profiles_folder, shipped_clusters
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_study, sample_workload

PLAN = Path(__file__).parents[2] / "golden" / "upgrade_plan.txt"


@pytest.fixture
def upgrade(command, capsys):
    """Return a caller of `ncclt upgrade` on a store with one recommendation, for NCCL 2.28.9."""
    study = sample_study()
    command.store.clusters.add(sample_cluster())
    command.store.workloads.add(sample_workload())
    command.store.studies.open(study)
    command.store.revisions.publish(sample_recommendation("r1", cluster=study.cluster.name, model=study.workload.name))

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            app(["upgrade", "--cluster", study.cluster.name, "--storage", command.url, *map(str, words)])
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return call


def test_one_document_names_what_has_to_be_measured_again(upgrade):
    code, out, _ = upgrade("--from", "2.28.9", "--to", "2.31.2", "--json")
    document = json.loads(out)
    (row,) = document["measure_again"]
    assert (code, row["recommendation"], row["decision"], row["word"]) == (0, "r1", "tuned", "demonstration")
    assert row["command"].startswith("ncclt tune --model ")
    assert row["command"].endswith("--nccl-version 2.31.2 --launcher simulate")
    assert 0 <= row["moved"] <= 1
    assert {"variable": "NCCL_WIN_ENABLE", "change": "new", "note": ""} not in document["variables"]
    assert "NCCL_CFT_ENABLE" in [v["variable"] for v in document["variables"] if v["change"] == "new"]
    assert "port of NCCL's cost model" in document["notes"][0]


def test_what_cannot_be_compared_is_refused(upgrade, tmp_path):
    for words, said in (
        (("--from", "2.28.9", "--to", "2.28.9"), "both 2.28.9"),
        (("--from", "2.28.9", "--to", "new"), "new"),
        (("--from", "2.28.9", "--to", "2.31.2", "--to-log", tmp_path / "x"), "belong together"),
        (("--from", "2.1.15", "--to", "2.31.2"), "is unknown"),
        (
            ("--from", "2.28.9", "--to", "2.31.2", "--from-log", tmp_path / "x", "--to-log", tmp_path / "x"),
            "cannot be read",
        ),
    ):
        code, out, err = upgrade(*words)
        assert (code in (1, 2), out) == (True, ""), (words, err)
        assert said in err


def test_a_recording_is_not_to_be_measured_again(command, capsys):
    """Its version is fixed: the command would be refused. One that was simulated on that cluster needs its launcher."""
    words = ("--model", "vit-l-32", "--cluster", "mi355x-2x8", "--trials", "4", "--blocks", "3")
    versions = ("--from", "2.28.3", "--to", "2.30.7")
    command(tune, *words)

    def upgrade(*more):
        with pytest.raises(SystemExit):
            app(["upgrade", "--cluster", "mi355x-2x8", "--storage", command.url, *versions, *more])
        return capsys.readouterr().out

    out = " ".join(upgrade().split())
    assert "ncclt tune" not in out
    assert "until it is measured again" not in out
    assert out.count("mi355x-2x8 is a recording of NCCL 2.28.3") == 1
    assert out.endswith("tune on your own cluster with --cluster NAME --nccl-version 2.30.7")
    document = json.loads(upgrade("--json"))
    assert [row["command"] for row in document["measure_again"]] == [""]
    assert "is a recording of NCCL" in document["notes"][-1]

    capsys.readouterr()
    command(tune, *words, "--launcher", "simulate")
    published = command.store.recommendations.find()
    command.store.revisions.publish(replace(published[0], id="0c0ffee7", model="other"))
    assert re.search(r"vit-l-32 .*(?:keep-default|undecided|demonstration), SIMULATED ", upgrade())
    simulated = [row["command"] for row in json.loads(upgrade("--json"))["measure_again"] if row["command"]]
    assert simulated
    for line in simulated:
        assert line.endswith("--nccl-version 2.30.7 --launcher simulate")
    command(tune, *shlex.split(simulated[-1])[2:], "--dry-run")


def test_from_defaults_to_the_version_of_the_cluster(upgrade):
    assert upgrade("--to", "2.31.2", "--json") == upgrade("--from", "2.28.9", "--to", "2.31.2", "--json")
    code, _, err = upgrade("--from", "2.28.9")
    assert (code, "--to is needed" in err) == (2, True)


def test_known_issues_are_named_with_their_threads(upgrade, command):
    hopper = shipped_clusters(profiles_folder())["dgx-h100"]
    command.store.clusters.add(replace(hopper, name="hopper"))
    words = ("--cluster", "hopper", "--from", "2.28.9", "--to", "2.31.2")
    out = upgrade(*words)[1]
    assert "Known issues of NCCL 2.31.2 here:" in out
    assert "https://github.com/NVIDIA/nccl/issues/2094" in out
    (issue,) = json.loads(upgrade(*words, "--json")[1])["known_issues"]
    assert issue["source"] == "NVIDIA/nccl#2094"
    assert "Known issues" not in upgrade("--to", "2.31.2")[1], "none is known for A100"


@pytest.fixture
def library(tmp_path):
    """Return the folder of a wheel."""
    made = tmp_path / "nccl" / "lib" / "libnccl.so.2"
    made.parent.mkdir(parents=True)
    made.write_bytes(b"ELF")
    return made


def test_plan_of_the_gate_is_golden(upgrade, library, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    words = ("--gate", "--from", "2.28.9", "--to", library.parents[1], "--from-env", "NCCL_IB_TC=106")
    words += ("--differs", "driver 580", "--dry-run", "--", "srun", "perf")
    code, out, _ = upgrade(*words)
    assert code == 0
    shown = out.replace(str(library), "LIBRARY")
    if os.environ.get("NCCLT_UPDATE_GOLDEN"):
        PLAN.write_text(shown)
    assert shown == PLAN.read_text()
    document = json.loads(upgrade(*words[:-3], "--json", *words[-3:])[1])
    assert document["new_env"]["LD_PRELOAD"] == str(library)
    assert (document["expected_nccl"], document["stated"]) == ({"today": "2.28.9"}, "driver 580")
    assert {frozenset(pair) for pair in zip(document["order"][::2], document["order"][1::2], strict=True)} == {
        frozenset(("today", "new"))
    }


def test_a_preloaded_library_stays_behind_the_new_one(upgrade, library, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so")
    planned = json.loads(upgrade("--gate", "--to", library, "--dry-run", "--json", "--", "job")[1])
    assert planned["new_env"] == {"LD_PRELOAD": f"{library} /usr/lib/libjemalloc.so"}
    assert planned["today_env"] == {}


@pytest.mark.parametrize("more", [(), ("--json",), ("--against", "old --password abcdefgh")])
def test_plan_of_the_gate_shows_no_secrets(upgrade, more):
    words = ("--gate", "--dry-run", "--to-env", "MY_API_KEY=correct horse", *more)
    code, out, _ = upgrade(*words, "--", "job", "--token", "abcdefgh", "correct horse")
    assert code == 0
    assert "horse" not in out
    assert "abcdefgh" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gate", "--to-env", "A=1"), "give the command after --"),
        (("--gate", "--to", "2.32.3", "--", "job"), "both sides are the same command"),
        (("--gate", "--to-env", "A", "--", "job"), "is not NAME=VALUE"),
        (("--gate", "--to", "/nonexistent/nccl", "--", "job"), "no libnccl.so.2 there"),
        (("--gate", "--to-env", "A=1", "--to-log", "x", "--", "job"), "for the report"),
        (("--gate", "--to-env", "A=1", "--margin", "2", "--", "job"), "--margin"),
        (("--to", "2.31.2", "--", "job"), "need --gate"),
    ],
)
def test_gate_without_a_comparison_is_refused(upgrade, words, said):
    code, out, err = upgrade(*words)
    assert (code, out) == (2, "")
    assert said in err
