"""bench/advice.py: predictions beside published steps."""

import json
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[2] / "bench" / "advice.py"

pytest.importorskip("torch")


@pytest.fixture
def bench():
    return runpy.run_path(str(SCRIPT))


def test_every_figure_has_its_prediction_and_error(bench, capsys):
    assert bench["main"](["--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {"source", "system", "model", "change", "measured_ms", "predicted_ms", "error"} <= rows[0].keys()
    for row in rows:
        assert row["low_ms"] <= row["predicted_ms"] <= row["high_ms"]
        assert (row["error"] is None) == (row["measured_ms"] is None)
    vit = [abs(row["error"]) for row in rows if row["model"] == "ViT-L/32" and row["error"] is not None]
    assert len(vit) == 8
    assert max(vit) < 0.05
    buckets = {row["change"]: row["predicted_ms"] for row in rows if row["change"].startswith("buckets")}
    one, default, large = (buckets[f"buckets of {mb} MB, all calls"] for mb in (1, 25, 100))
    assert one > 1.3 * default
    assert default == pytest.approx(large, rel=0.1)
