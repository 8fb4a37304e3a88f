"""What a study began from, wherever a user meets it."""

import json
import re
import shutil

import pytest
import typer
from typer.testing import CliRunner

from ncclt.cli.studies import app as studies
from ncclt.cli.tune import tune

WHERE = ("--cluster", "leonardo", "--launcher", "simulate", "--trials", "8")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The folder of a store with one study, of bert on two nodes, and what was said."""
    folder = tmp_path_factory.mktemp("first")
    return folder, said(f"sqlite:///{folder}/store.db", "--model", "bert", "--nodes", "2")


@pytest.fixture
def url(first, tmp_path):
    """A copy of that store."""
    shutil.copytree(first[0], tmp_path / "copy")
    return f"sqlite:///{tmp_path}/copy/store.db"


def said(url, *words):
    app = typer.Typer()
    app.command()(tune)
    done = CliRunner().invoke(app, [*WHERE, *words, "--storage", url], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def shown(url, name, *words):
    done = CliRunner().invoke(studies, ["show", name, *words, "--storage", url], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_second_study_says_what_it_began_from_and_keeps_it(first, url):
    assert "begun from" not in first[1].stderr

    planned = said(url, "--model", "bert", "--nodes", "3", "--dry-run").stdout
    second = said(url, "--model", "bert", "--nodes", "3", "--json")
    again = said(url, "--model", "bert", "--nodes", "3")
    document = json.loads(second.stdout)
    (begun,) = document["begun_from"]

    assert "begun_from:\n  bert on 2 nodes (" in planned
    assert (begun["name"], begun["nodes"], begun["label"]) == ("bert", 2, "SIMULATED")
    assert 0 <= begun["weight"] <= 1
    line = f"begun from: bert on 2 nodes ({begun['launches']} launches; SIMULATED), weight {begun['weight']:.1f}"
    assert f"ncclt: {line} by what was measured here" in again.stderr.splitlines(), "a finished study says it again"
    assert line in shown(url, document["study"]).splitlines()
    assert json.loads(shown(url, document["study"], "--json"))["begun_from"] == [begun]


def test_a_study_that_is_to_begin_from_nothing_does(url):
    for words in (("--no-warm",), ("--sampler", "optuna.samplers:RandomSampler")):
        alone = said(url, "--model", "bert", "--nodes", "3", *words)
        assert "begun from" not in alone.stderr


def test_progress_says_the_first_weight(url):
    second = said(url, "--model", "bert", "--nodes", "2", "--nccl-version", "2.27.3")

    first = next(line for line in second.stderr.splitlines() if "begun from" in line)
    assert re.fullmatch(r"ncclt: begun from: bert on 2 nodes \(\d+ launches; SIMULATED\), weight 0\.[5-9]", first)
