"""The bench runs on tables that nobody has seen, and keeps its claim on a public one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

BENCH = Path(__file__).resolve().parents[4] / "bench" / "simulator.py"
FIELDS = {
    "system",
    "kind",
    "model",
    "error_median",
    "error_p90",
    "tau",
    "regret_mean",
    "regret_worst",
    "points",
}
MODELS = {"preset", "calibrated", "probed", "nccl", "alpha_beta"}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def table(folder: Path, name: str, *, scale: float = 1.0) -> Path:
    """Times of any machine: latency and bandwidth, LL fast when small, more channels of Simple fast when large."""
    lines = ["system,gpus,nodes,interconnect,collective,size_bytes,algo,proto,nchannels,time_us"]
    for size in (2**k for k in range(12, 28)):
        rows = {("", "", ""): 20 + size / 2e5}
        rows |= {("Ring", "Simple", c): 30 + size / 20e3 / min(c, 12) for c in (1, 4, 12, 24)}
        rows |= {("Ring", "LL", c): 12 + size / 8e3 / min(c, 12) for c in (4, 24)}
        lines += [
            f"8x A100 NVSwitch,8,1,NVSwitch,all_reduce,{size},{a},{p},{c},{t * scale:.2f}"
            for (a, p, c), t in rows.items()
        ]
    path = folder / name
    path.write_text("\n".join(lines))
    return path


def test_json_has_a_row_of_every_model_for_unseen_tables_and_a_line_for_what_cannot_be_used(tmp_path):
    broken = tmp_path / "broken.csv"
    broken.write_text("a,b\n1,2\n")
    done = run(
        "--json", "--landscape", table(tmp_path, "one.csv"), broken, table(tmp_path, "mi355x_two.csv", scale=2.0)
    )
    assert done.returncode == 0, done.stderr
    rows, medians = (json.loads(done.stdout)[part] for part in ("rows", "medians"))
    assert {row["system"].split()[0] for row in rows} == {"one", "mi355x_two"}
    counted = {row["system"] for row in medians}
    assert counted == {"median of 2, all", "median of 1, unseen of these"}, "constants come from MI355X"
    assert all(set(row) == FIELDS for row in rows)
    for system in {row["system"] for row in rows}:
        for kind in ("default", "forced"):
            assert {r["model"] for r in rows if (r["system"], r["kind"]) == (system, kind)} == MODELS
    assert "broken.csv: skipped" in done.stderr
    points = {row["points"] for row in rows if row["kind"] == "forced"}
    assert points == {16 * 6 - 12}, "the probes are not scored, by no model"
    errors = {row["model"]: row["error_median"] for row in rows if row["system"].startswith("mi355x_two 1x8")}
    assert errors["probed"] < errors["preset"]


def test_bad_input_is_said_on_stderr_alone():
    done = run("--landscape", "none.csv")
    assert done.returncode == 1
    assert not done.stdout
    assert "hint:" in done.stderr


@pytest.mark.shared
def test_calibration_keeps_its_claim_on_a_public_table(shared_data):
    done = run(
        "--json",
        "--landscape",
        shared_data / "measurements" / "h100_nvswitch_waynehacking8.csv",
        shared_data / "measurements" / "rtx4090x4_shm_and_k500sm_channels.csv",
    )
    assert done.returncode == 0, done.stderr
    forced = [row for row in json.loads(done.stdout)["medians"] if row["kind"] == "forced"]
    errors = {row["model"]: row["error_median"] for row in forced}
    assert errors["probed"] < 0.1
    assert errors["probed"] < errors["preset"]


@pytest.mark.shared
def test_every_public_table_has_systems_or_a_reason_why_not(shared_data):
    code = (
        "import json, pathlib, sys, simulator\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.csv')):\n"
        "    systems, left_out = simulator.systems_of(path)\n"
        "    print(json.dumps([path.stem, [one.name for one in systems], left_out]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, shared_data / "measurements"],
        cwd=BENCH.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {name: (systems, left_out) for name, systems, left_out in map(json.loads, done.stdout.splitlines())}
    assert len(found) == len(list((shared_data / "measurements").glob("*.csv")))
    assert found["mi300x_cpx_rccl_sixway"] == (["mi300x_cpx_rccl_sixway 1x64"], [])
    without = {name: left_out for name, (systems, left_out) in found.items() if not systems}
    assert set(without) == {"gb10_dgxspark4_ring_tuning"}
    assert without["gb10_dgxspark4_ring_tuning"][0].startswith(
        "gb10_dgxspark4_ring_tuning: 21 of 21 groups skipped: the "
    )
