"""bench/advice.py: predictions beside published steps, also where the published tables are not at hand."""

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


def test_every_figure_has_its_prediction_and_error(bench, capsys, tmp_path):
    bench["main"].__globals__["SEED_TABLES"] = tmp_path / "gone.md"
    assert bench["main"](["--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("skipped:")
    rows = json.loads(out)["rows"]
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


def test_a_figure_that_drifts_from_its_source_ends_the_run(bench, capsys, tmp_path):
    altered = tmp_path / "tables.md"
    altered.write_text("| 1 GPU, no DDP | 9.99 | 5.17 |")
    bench["main"].__globals__["SEED_TABLES"] = altered
    with pytest.raises(SystemExit):
        bench["main"]([])
    assert "8.91" in capsys.readouterr().err
