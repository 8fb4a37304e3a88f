"""The bench of the preflight counts what it claims to count."""

import json
import runpy
from pathlib import Path

BENCH = runpy.run_path(str(Path(__file__).resolve().parents[4] / "bench" / "preflight.py"))


def test_the_clear_faults_are_found(capsys):
    BENCH["main"](["--json", "--runs", "8", "--nodes", "16"])
    document = json.loads(capsys.readouterr().out)
    assert document["invented"]
    assert all((row["faults"], row["all_pairs"]) == (12, 120) for row in document["rows"])
    clear = document["rows"][1]
    assert (clear["noise"], clear["loss"]) == (0.01, "20-60 %")
    assert (clear["precision"], clear["healthy"], clear["seen"]) == (1.0, 1.0, 1.0)
    assert clear["recall"] >= 0.9
    BENCH["main"](["--runs", "4", "--nodes", "8"])
    assert capsys.readouterr().out.splitlines()[0] == "INVENTED TIMES"
