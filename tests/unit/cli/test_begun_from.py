"""What a study began from, wherever a user meets it."""

import json
import re

import typer
from typer.testing import CliRunner

from ncclt.cli.studies import app as studies
from ncclt.cli.tune import tune

WHERE = ("--cluster", "leonardo", "--launcher", "simulate", "--trials", "8")


def said(command, *words):
    app = typer.Typer()
    app.command()(tune)
    done = CliRunner().invoke(app, [*WHERE, *words, "--storage", command.url], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def shown(command, name, *words):
    done = CliRunner().invoke(studies, ["show", name, *words, "--storage", command.url], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_second_study_says_what_it_began_from_and_keeps_it(command):
    first = said(command, "--model", "bert", "--nodes", "2")
    assert "begun from" not in first.stderr

    planned = said(command, "--model", "bert", "--nodes", "3", "--dry-run").stdout
    second = said(command, "--model", "bert", "--nodes", "3", "--json")
    again = said(command, "--model", "bert", "--nodes", "3")
    document = json.loads(second.stdout)
    (begun,) = document["begun_from"]

    assert "begun_from:\n  bert on 2 nodes (" in planned
    assert (begun["name"], begun["nodes"], begun["label"]) == ("bert", 2, "SIMULATED")
    assert 0 <= begun["weight"] <= 1
    line = f"begun from: bert on 2 nodes ({begun['launches']} launches; SIMULATED), weight {begun['weight']:.1f}"
    assert f"ncclt: {line} by what was measured here" in again.stderr.splitlines(), "a finished study says it again"
    assert line in shown(command, document["study"]).splitlines()
    assert json.loads(shown(command, document["study"], "--json"))["begun_from"] == [begun]


def test_a_study_that_is_to_begin_from_nothing_does(command):
    said(command, "--model", "bert", "--nodes", "2")
    for words in (("--no-warm",), ("--sampler", "optuna.samplers:RandomSampler")):
        alone = said(command, "--model", "bert", "--nodes", "3", *words)
        assert "begun from" not in alone.stderr


def test_progress_says_the_first_weight(command):
    said(command, "--model", "bert", "--nodes", "2")
    second = said(command, "--model", "bert", "--nodes", "2", "--nccl-version", "2.27.3")

    first = next(line for line in second.stderr.splitlines() if "begun from" in line)
    assert re.fullmatch(r"ncclt: begun from: bert on 2 nodes \(\d+ launches; SIMULATED\), weight 0\.[5-9]", first)
