"""The bench of verdicts drives the real code and prints what it promises; its figures are not asserted here."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench" / "verdict.py"


def test_it_prints_one_document_of_rows():
    done = subprocess.run(
        [sys.executable, str(BENCH), "--json", "--studies", "10", "--case", "*noise 0.5%"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    rows = {row["case"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["flat, noise 0.5%"]["tuned_rate"] == 0.0
    assert rows["gain 5%, noise 0.5%"]["tuned_rate"] == 1.0
    for row in rows.values():
        assert set(row) >= {
            "case",
            "k",
            "studies",
            "tuned_rate",
            "keep_default_rate",
            "undecided_rate",
            "coverage",
            "launches_mean",
            "launches_p95",
            "best_of_n_rate",
        }
        assert 0.9 <= row["coverage"] <= 1.0
        assert row["launches_mean"] >= 12
        assert row["launches_p95"] is None, "of fewer than 20 studies"
        assert row["tuned_rate"] + row["keep_default_rate"] + row["undecided_rate"] == 1.0
