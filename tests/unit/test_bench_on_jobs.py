"""bench/on_jobs.py on a few fleets: the guard finds what is there, and its peers fall for what hangs."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[2] / "bench" / "on_jobs.py"


def rows_of(capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--json", *words])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert end.value.code == 0
    return {row["method"]: row for row in json.loads(capsys.readouterr().out)["rows"]}


def test_a_gain_is_found_beside_an_arm_that_hangs(capsys, monkeypatch):
    rows = rows_of(capsys, monkeypatch, "--fleets", "1", "--fleet", "one gains 3 %, one hangs")
    assert list(rows) == ["arms", "50/50 in turn", "t-test", "bandit"]
    arms = rows["arms"]
    assert (arms["false_tuned"], arms["found"]) == (0.0, 1.0)
    assert 0 < arms["cost"] < 0.005
    assert rows["bandit"]["cost"] > 5 * arms["cost"]


def test_an_arm_that_hangs_the_slowest_jobs_wins_only_by_step_times(capsys, monkeypatch):
    rows = rows_of(
        capsys, monkeypatch, "--quick", "--fleets", "1", "--starts", "1000", "--fleet", "one gains 5 % and hangs 30 %"
    )
    assert [rows[method]["false_tuned"] for method in ("arms", "t-test")] == [0.0, 1.0]


def test_arms_that_all_hang_cost_two_starts_each(capsys, monkeypatch):
    rows = rows_of(capsys, monkeypatch, "--fleets", "1", "--starts", "300", "--fleet", "all hang")
    assert rows["arms"]["false_tuned"] == 0.0
    assert rows["arms"]["cost"] < rows["50/50 in turn"]["cost"] / 5
