"""`ncclt cluster calibrate --probe` with a stand-in for nccl-tests: real processes, and some of them fail."""

import csv
import json
import runpy
from pathlib import Path

import pytest

STAND_IN = Path(__file__).resolve().parents[1] / "fakes" / "nccl_tests_stand_in.py"
INSTALL = runpy.run_path(str(STAND_IN))["install"]
SIZES = 9


@pytest.fixture
def probe(ncclt):
    """The command up to its last options; the stand-in's programs are told what to do by each test."""
    folder = ncclt.folder / "nccl-tests"
    folder.mkdir()
    return (
        "cluster",
        "calibrate",
        "dgx-a100",
        "--nodes",
        "1",
        "--gpus-per-node",
        "2",
        "--probe",
        "--launcher",
        "local",
        "--nccl-tests",
        folder,
        "--times",
        ncclt.folder / "times.csv",
    )


def measured(folder):
    """What was forced in each row of the table."""
    with (folder / "times.csv").open() as file:
        return [(row["algo"], row["proto"], row["nchannels"]) for row in csv.DictReader(file)]


@pytest.mark.thorough
def test_what_failed_is_named_left_out_and_launched_again_by_the_same_command(ncclt, probe):
    folder = ncclt.folder / "nccl-tests"
    INSTALL(folder, faults={"seed": 3, "share": 0.4, "kinds": ["out_of_memory", "wrong"]})
    first = ncclt(*probe, "--as", "first", "--json")
    failed = len((folder / "drawn").read_text().splitlines())
    good = measured(ncclt.folder)
    assert failed, "the seed draws some faults"
    outcomes = {line.split(": ")[2] for line in first.stderr.splitlines() if line.count(": ") > 2}
    assert outcomes >= {"crashed", "wrong_result"}
    assert "hf_verysecret" not in first.stderr + (ncclt.folder / "times.csv").read_text()
    fitted = json.loads(first.stdout)["calibration"]
    assert fitted["points"] == len(good) == SIZES * len(set(good))
    assert fitted["probed"]
    assert "SIMULATED" not in fitted["sources"][0]

    launches = (folder / "launches").stat().st_size
    INSTALL(folder, sigma=0.0)
    second = ncclt(*probe, "--as", "second", "--json")
    assert f"{len(set(good))} of 13 launches were in the table already" in second.stderr
    assert (folder / "launches").stat().st_size - launches == 13 - len(set(good))
    assert json.loads(second.stdout)["calibration"]["points"] == SIZES * 13 == len(measured(ncclt.folder))

    third = ncclt(
        "cluster", "calibrate", "dgx-a100", "--gpus-per-node", "2", "--from", "times.csv", "--as", "third", "--json"
    )
    assert json.loads(third.stdout)["calibration"]["points"] == SIZES * 13


def test_where_every_launch_fails_nothing_is_added(ncclt, probe):
    INSTALL(ncclt.folder / "nccl-tests", sigma=0.0)
    ncclt.variables["STAND_IN"] = "wrong"
    said = ncclt(*probe, rc=2).stderr
    assert said.count("wrong_result") == 13
    assert "0 times are too few to calibrate" in said
    assert not (ncclt.folder / "times.csv").exists()
    names = ncclt("cluster", "list").stdout
    assert "dgx-a100-calibrated" not in names
