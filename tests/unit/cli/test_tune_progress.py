"""Progress of `ncclt tune` where stderr is no terminal: one line per phase."""

import pytest
import typer
from typer.testing import CliRunner

from ncclt.cli.tune import tune

SHAPE = ("--model", "bert", "--cluster", "leonardo", "--launcher", "simulate", "--nodes", "2", "--trials", "10")


def said(command, *words):
    app = typer.Typer()
    app.command()(tune)
    done = CliRunner(env={"NCCLT_STORAGE": command.url}).invoke(app, [*SHAPE, *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stderr.splitlines()


PHASES = ("ncclt: Searching: ", "ncclt: Confirming ", "ncclt: Validating: ")


@pytest.mark.usefixtures("known_times")
def test_each_phase_has_one_line(command):
    lines = said(command, "--min-effect", "0", "--blocks", "4")
    assert [sum(line.startswith(phase) for line in lines) for phase in PHASES] == [1, 1, 1]
    assert "ncclt: Searching: up to 10 trials" in lines
    assert lines[-1] == "ncclt: Validating: A/B test against the NCCL default, up to 4 blocks"


def test_skipped_validation_has_no_line(command):
    assert not any(line.startswith(PHASES[2]) for line in said(command))
