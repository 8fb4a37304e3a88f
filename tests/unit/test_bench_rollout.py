"""bench/rollout.py on a few roll-outs: through a store and without one the guard says the same kind of thing."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[2] / "bench" / "rollout.py"


def test_a_large_loss_is_rolled_back_and_equal_ones_stay(capsys, monkeypatch):
    rows = []
    for case in ("loss 10%*", "equal, noise 2%, 50 % of jobs"):
        words = ["--json", "--rollouts", "3", "--stored", "1", "--jobs", "500", "--case", case]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        assert end.value.code == 0
        rows += json.loads(capsys.readouterr().out)["rows"]
    lost, _, equal, _ = rows
    assert [row["by"] for row in rows] == ["guard", "t-test after every job"] * 2
    assert (lost["rollouts"], lost["lost"], lost["won"], equal["lost"]) == (3, 1.0, 0.0, 0.0)
    assert lost["jobs_median"] < 500


def test_what_hangs_is_rolled_back_and_never_wins(capsys, monkeypatch):
    words = ["--json", "--quick", "--rollouts", "3", "--stored", "1", "--jobs", "200", "--case", "hung 50%, slowest*"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["by"] == "guard"]
    assert [(row["case"], row["lost"], row["won"]) for row in rows] == [
        ("hung 50%, slowest, gain 0%", 1.0, 0.0),
        ("hung 50%, slowest, gain 3%", 1.0, 0.0),
    ]
