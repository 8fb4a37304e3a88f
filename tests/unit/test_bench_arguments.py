"""The benches refuse numbers that mean nothing, with the code for wrong usage, and print nothing."""

import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("bets", ("--studies", "0"), "at least 1"),
        ("on_jobs", ("--fleets", "0"), "at least 1"),
        ("on_jobs", ("--fleet", "nope"), "no fleet matches 'nope'"),
        ("overhead", ("--trials", "3"), "at least 21"),
        ("pages", ("--requests", "1"), "at least 5"),
        ("overhead", ("--model", "nope"), "no shipped workload 'nope'"),
        ("persistent", ("--trials", "0"), "at least 1"),
        ("persistent", ("--ranks", "3", "--nodes", "2"), "spread evenly"),
        ("plugin", ("--rules", "ten"), "numbers with commas"),
        ("plugin", ("--rules", "10,5000"), "1 to 2048"),
        ("plugin", ("--calls", "0"), "at least 1"),
        ("preflight", ("--runs", "1"), "at least 2"),
        ("preflight", ("--nodes", "2"), "at least 8"),
        ("preflight", ("--cluster", "nope"), "no shipped cluster 'nope'"),
        ("startup", ("--runs", "0"), "at least 1"),
        ("verdict", ("--studies", "0"), "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(script, words, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--json", *words])
    monkeypatch.syspath_prepend(str(BENCH))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(BENCH / f"{script}.py"), run_name="__main__")
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert said in err.splitlines()[-1]
