"""The comparison of choices of the calibration holds systems out, and says what a recording allows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

BENCH = Path(__file__).resolve().parents[4] / "bench" / "simulator_choices.py"


def table(folder: Path, name: str, *, repetitions: int = 1, unlike: float = 1.0) -> Path:
    """Times of a machine whose second recording has the settings in another order by a factor."""
    lines = ["system,gpus,nodes,interconnect,collective,size_bytes,algo,proto,nchannels,other_env,time_us"]
    for size in (2**k for k in range(12, 26, 2)):
        times = {("", "", ""): 20 + size / 2e5}
        times |= {("Ring", "Simple", c): 30 + size / 20e3 / min(c, 12) for c in (1, 4, 12)}
        times |= {("Ring", "LL", c): 12 + size / 8e3 / min(c, 12) for c in (4, 24)}
        for run in range(repetitions):
            for number, ((a, p, c), time_us) in enumerate(times.items()):
                changed = time_us * (unlike if run and number == 5 else 1.0)
                told = f"{a},{p},{c},run {run + 1},{changed * (1 + number / 1e4):.4f}"
                lines.append(f"8x A100 NVSwitch,8,1,NVSwitch,all_reduce,{size},{told}")
    path = folder / name
    path.write_text("\n".join(lines))
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_variant_is_scored_and_reported_where_it_was_not_chosen(tmp_path):
    two = [table(tmp_path, "one.csv"), table(tmp_path, "two.csv", repetitions=2)]
    done = run("--json", "--designs", "1", "--landscape", *two)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [set(variants) for variants in document["systems"].values()] == [
        {"present", "sigma 0.05", "sigma 0.12", "channels 3", "misfit 0.4", "shares 0.5"}
    ] * 2
    assert [(half["chosen_on"], half["reported_on"]) for half in document["held_out"]] == [(1, 1), (1, 1)]
    names = sorted(document["systems"])
    for half, (chosen_on, reported_on) in zip(document["held_out"], (names, names[::-1]), strict=True):
        regrets = {v: s["regret_mean"] for v, s in document["systems"][chosen_on].items()}
        assert regrets[half["variant"]] == min(regrets.values())
        assert half["scores"] == document["systems"][reported_on][half["variant"]]
    assert [(one["system"], one["tau"], one["regret_mean"]) for one in document["repeated"]] == [("two 1x8", 1.0, 0.0)]


def test_a_recording_that_contradicts_itself_shows_the_limit(tmp_path):
    done = run("--designs", "1", "--landscape", table(tmp_path, "torn.csv", repetitions=2, unlike=100.0))
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if " repeated " in line)
    tau, regret = line.split()[-2:]
    assert float(tau) < 0.9
    assert regret != "0.0%"


def test_no_table_is_an_error_with_a_hint(tmp_path):
    empty = tmp_path / "empty.csv"
    empty.write_text("a,b\n1,2\n")
    done = run("--landscape", empty)
    assert done.returncode == 1
    assert not done.stdout
    assert "hint:" in done.stderr
