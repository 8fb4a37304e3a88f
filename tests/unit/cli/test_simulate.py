"""`ncclt cluster simulate` and `ncclt cluster calibrate`: what they print and keep, and what they refuse."""

import json

import pytest

from ncclt.cli.calibrate import calibrate
from ncclt.cli.cluster import show
from ncclt.cli.simulate import simulate
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.errors import InputError, NccltError, UsageError
from ncclt.measure.simulated import SimulatedRunner
from ncclt.testing.landscapes import write_landscape


def table(command, folder):
    """Times of the default on one and two nodes of leonardo, by another cluster: twice the latency."""
    cluster = command.store.clusters.get("leonardo")
    paths = []
    for nodes in (1, 2):
        rows = []
        runner = SimulatedRunner(cluster.sized(nodes=nodes), seed=0, sigma=0)
        for size in (2**k for k in range(12, 27)):
            message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size)
            time_us = 20 + 1.5 * runner.expected_us(DEFAULT, message)
            rows.append({"nodes": nodes, "gpus_per_node": 4, "size_bytes": size, "time_us": round(time_us, 2)})
        paths.append(str(write_landscape(folder / f"times{nodes}.csv", rows)))
    return paths


def test_a_table_like_that_of_nccl_tests_is_labelled(command):
    said = command(simulate, "--cluster", "dgx-h100", "--sizes", "1K..1M", "--nodes", "1..4")
    assert said.startswith("# SIMULATED all_reduce on dgx-h100, NCCL ")
    assert "not calibrated" in said.splitlines()[0]
    assert sum(line.split()[:1] == ["1048576"] for line in said.splitlines()) == 3
    assert "bus bandwidth by size, SIMULATED" in said


def test_a_shipped_cluster_needs_no_store(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NCCLT_STORAGE", f"sqlite:///{tmp_path / 'absent' / 'no.db'}")
    simulate(cluster="dgx-h100", sizes="1M")
    assert list(tmp_path.iterdir()) == []
    assert "SIMULATED all_reduce on dgx-h100" in capsys.readouterr().out


def test_json_of_forced_settings_and_what_if(command):
    words = ("--cluster", "leonardo", "--sizes", "64M", "--nodes", "2", "--setting", "ring/simple c=8", "--json")
    plain = json.loads(command(simulate, *words))
    faster = json.loads(command(simulate, *words, "--nic", "400 Gb/s"))
    (row,) = plain["rows"]
    assert plain["simulated"]
    assert (row["setting"], row["algorithm"], row["protocol"]) == ("ring/simple c=8", "ring", "simple")
    assert faster["rows"][0]["time_us"] < row["time_us"]
    assert faster["cluster"]["nic_gbps"] == 50.0
    other = json.loads(command(simulate, *words, "--gpu", "H100-SXM5-80GB", "--nccl-version", "2.28.9"))
    assert (other["cluster"]["compute_capability"], other["cluster"]["nccl_version"]) == (90, "2.28.9")


@pytest.mark.parametrize(
    "words",
    [
        ("--sizes", "1K..x"),
        ("--sizes", "8..4"),
        ("--nodes", "0..4"),
        ("--setting", "spiral"),
        ("--gpu", "Quadro"),
        ("--collective", "all"),
        ("--setting", "ring/simple c=0"),
        ("--nic", "fast"),
        ("--collective", "broadcast", "--setting", "tree/simple c=99"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_a_hint(command, words):
    with pytest.raises(NccltError) as raised:
        command(simulate, "--cluster", "leonardo", *words)
    assert raised.value.hint


def test_a_cluster_without_a_network_has_no_second_node(command):
    with pytest.raises(UsageError, match="no network"):
        command(simulate, "--cluster", "pcie-pair", "--nodes", "2")


def test_calibrated_times_are_kept_shown_and_used_and_extrapolation_is_marked(command, tmp_path):
    said = command(calibrate, "leonardo", *(f"--from={path}" for path in table(command, tmp_path)), "--as", "mine")
    assert "times calibrated, ranking not" in said
    shown = command(show, "mine")
    assert "from times1.csv: 15 times\nfrom times2.csv: 15 times" in shown
    assert "against the usual constants" in shown
    words = ("--cluster", "mine", "--sizes", "64K,512M", "--nodes", "2,64", "--json")
    rows = {(r["nodes"], r["size_bytes"]): r for r in json.loads(command(simulate, *words))["rows"]}
    assert [rows[at]["extrapolated"] for at in ((2, 65536), (2, 1 << 29), (64, 65536))] == ["", "size", "nodes"]
    before = json.loads(command(simulate, *words[2:], "--cluster", "leonardo"))["rows"][0]
    assert rows[2, 65536]["time_us"] == pytest.approx(20 + 1.5 * before["time_us"], rel=0.1)


def test_probes_calibrate_the_ranking(command):
    said = json.loads(command(calibrate, "leonardo", "--probe", "--launcher", "simulate", "--json"))
    assert said["calibration"]["probed"]
    assert "SIMULATED" in said["calibration"]["sources"][0]
    assert command.store.clusters.get("leonardo-calibrated").calibration.probed


def test_measured_studies_count_and_simulated_ones_do_not(command):
    with pytest.raises(UsageError, match="no study"):
        command(calibrate, "leonardo", "--from", "studies")


def test_no_times_are_refused(command, tmp_path):
    with pytest.raises(UsageError, match="no times"):
        command(calibrate, "leonardo")
    empty = tmp_path / "out.log"
    empty.write_text("nothing\n")
    with pytest.raises(InputError, match=r"out\.log"):
        command(calibrate, "leonardo", "--from", str(empty))
