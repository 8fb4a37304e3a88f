"""What `ncclt tune` says while it runs: which launch, of how many at most, and what is won so far."""

import re

import typer
from typer.testing import CliRunner

from ncclt.cli.tune import tune

SHAPE = ("--model", "bert", "--cluster", "leonardo", "--launcher", "simulate", "--nodes", "2", "--trials", "10")


def said(command, *words):
    app = typer.Typer()
    app.command()(tune)
    done = CliRunner().invoke(app, [*SHAPE, *words, "--storage", command.url], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stderr.splitlines()


def test_each_phase_says_how_far_it_is_and_no_count_jumps(command):
    lines = said(command, "--min-effect", "0", "--blocks", "4")

    search = [line for line in lines if line.startswith("ncclt: search ") and " of at most " in line]
    assert re.fullmatch(r"ncclt: search 1 of at most 10, 1\.00x so far", search[0])
    assert re.fullmatch(r"ncclt: search 10 of at most 10, \d\.\d\dx so far", search[1])
    proof = [line for line in lines if line.startswith("ncclt: proof: ")]
    assert proof[0] == "ncclt: proof: block 1 of at most 4"
    assert [line.partition(",")[0] for line in proof] == [
        f"ncclt: proof: block {number} of at most 4" for number in range(1, len(proof) + 1)
    ]
    assert all(re.search(r", \d\.\d{3}x( \(\d\.\d\d to \d\.\d\d\))? so far$", line) for line in proof[1:])
    assert len(proof) > 2


def test_what_is_not_worth_a_proof_says_why(command):
    lines = said(command)

    assert any(line.startswith("ncclt: search 1 of") for line in lines)
    assert not any("proof: block" in line for line in lines)
