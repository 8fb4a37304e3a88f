"""The bench runs on a table that nobody has seen, and keeps the claim on the public ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[4] / "bench" / "simulator.py"
FIELDS = {"landscape", "sizes", "settings", "kendall_ours", "kendall_nccl", "regret_ours", "regret_nccl"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCH), *arguments], capture_output=True, text=True, check=False)


def test_json_is_one_document_about_an_unseen_table(tmp_path):
    """Four settings whose times are those of any machine: more channels of Simple are faster, LL is slow."""
    table = tmp_path / "new.csv"
    rows = [("", "", "", 520), ("Ring", "Simple", 24, 530), ("Ring", "Simple", 1, 5000), ("Ring", "LL", 24, 1100),
            ("Ring", "Simple", 4, 1500)]  # fmt: skip
    lines = [f"8x A100 NVSwitch,8,1,NVSwitch,all_reduce,67108864,{a},{p},{c},{t}" for a, p, c, t in rows]
    table.write_text(
        "system,gpus,nodes,interconnect,collective,size_bytes,algo,proto,nchannels,time_us\n" + "\n".join(lines)
    )
    done = run("--json", "--landscape", str(table), "--where", "gpus=8")
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(done.stdout)["rows"]
    assert set(line) == FIELDS
    assert (line["sizes"], line["settings"]) == (1, 4)
    assert line["kendall_ours"] == 1.0
    assert line["regret_ours"] == 0.0


@pytest.mark.parametrize("arguments", [("--landscape", "none.csv"), ("--data", "no-such-folder")])
def test_bad_input_is_said_on_stderr_alone(arguments):
    done = run(*arguments)
    assert done.returncode == 1
    assert not done.stdout
    assert "hint:" in done.stderr


@pytest.mark.shared
def test_the_simulator_ranks_public_landscapes_no_worse_than_nccls_model(shared_data):
    done = run("--json", "--data", str(shared_data / "measurements"))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) >= 8
    for line in rows:
        assert line["kendall_ours"] > line["kendall_nccl"], line
