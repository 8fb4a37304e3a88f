"""The bench of the preflight counts what it claims to count."""

import json
import runpy
from pathlib import Path

import pytest

BENCH = runpy.run_path(str(Path(__file__).resolve().parents[4] / "bench" / "preflight.py"))


def test_rows_are_simulated_and_the_clear_faults_are_found(capsys):
    BENCH["main"](["--json", "--runs", "8", "--nodes", "16"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["noise"], row["loss"]) for row in rows] == [
        (0.02, "10-20 %"),
        (0.02, "20-60 %"),
        (0.05, "10-20 %"),
        (0.05, "20-60 %"),
    ]
    assert all(row["simulated"] and row["faults"] == 12 and row["all_pairs"] == 120 for row in rows)
    clear = rows[1]
    assert (clear["precision"], clear["healthy_right"], clear["degraded_seen"]) == (1.0, 1.0, 1.0)
    assert clear["recall"] >= 0.9


@pytest.mark.parametrize("arguments", [["--runs", "4", "--nodes", "8"]])
def test_the_table_says_that_it_is_simulated(capsys, arguments):
    BENCH["main"](arguments)
    assert capsys.readouterr().out.splitlines()[0] == "SIMULATED"
