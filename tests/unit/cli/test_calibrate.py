"""`ncclt cluster calibrate`: studies and tables of other versions, probes that are only shown, and what lies beyond."""

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from ncclt.cli.calibrate import calibrate
from ncclt.cli.simulate import simulate
from ncclt.cli.tune import tune
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Study, StudyState, Trial
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import UsageError
from ncclt.measure.simulated import SimulatedRunner
from ncclt.testing.landscapes import write_landscape

MESSAGES = tuple(
    Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=1 << power, group_size=8, spans_nodes=True)
    for power in range(14, 26)
)
FORCED = Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=4)


def add_study(command, id, *, simulated=False, **change):
    """Store a study of two nodes of leonardo with a launch of the default and of a ring."""
    cluster = replace(command.store.clusters.get("leonardo").sized(nodes=2), **change)
    calls = tuple(MessageCalls(message=message, calls_per_step=1.0) for message in MESSAGES)
    command.store.studies.open(
        Study(
            id=id,
            name=id,
            cluster=cluster,
            launcher="slurm",
            simulated=simulated,
            process_wide=(),
            seed=0,
            workload=Workload(name="w", messages=calls, provenance=Provenance(source="test")),
            state=StudyState.DONE,
        )
    )
    runner = SimulatedRunner(command.store.clusters.get("leonardo").sized(nodes=2), seed=0)
    for number, setting in enumerate((DEFAULT, FORCED)):
        result = runner.measure(setting, MESSAGES, repeat=0)
        trial = Trial(number=number, phase=Phase.SEARCH, setting=setting, repeat=0, result=result, score_us=1.0)
        command.store.trials.add(id, trial)


def fitted(command, *words):
    """The calibration, and what was said on stderr."""
    app = typer.Typer()
    app.command()(calibrate)
    words = ["leonardo", *words, "--json"]
    done = CliRunner(env={"NCCLT_STORAGE": command.url}).invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["calibration"], done.stderr


def test_studies_of_one_version_count_and_the_others_are_named(command):
    add_study(command, "mine")
    add_study(command, "older", nccl_version="2.11.4")
    add_study(command, "model", simulated=True)
    found, said = fitted(command, "--from", "studies")
    assert (found["probed"], found["points"]) == (True, 2 * len(MESSAGES))
    assert found["sources"] == [f"study mine: {2 * len(MESSAGES)} times"]
    now = command.store.clusters.get("leonardo").nccl_version
    assert f"1 study is left out: measured with NCCL 2.11.4, not {now}" in said
    assert "1 study is left out: simulated" in said


def test_times_that_the_clusters_ports_rule_out_are_refused(command, tmp_path):
    """They are of another cluster, or its file names other ports; of a recorded table ports are only guessed."""
    shape = {"nodes": 2, "gpus_per_node": 4, "nccl_version": command.store.clusters.get("leonardo").nccl_version}
    rows = [{**shape, "size_bytes": size << 20, "time_us": size * 5} for size in (64, 128, 256, 512)]
    write_landscape(tmp_path / "t.csv", rows)
    with pytest.raises(UsageError, match="64 MiB float32 on 2 nodes of leonardo took 320 µs, and its ports"):
        fitted(command, "--from", str(tmp_path / "t.csv"))


def test_only_studies_of_another_version_are_refused_with_the_reason(command):
    add_study(command, "older", nccl_version="2.11.4")
    with pytest.raises(UsageError, match=r"no study .*1 study is left out: measured with NCCL 2\.11\.4"):
        command(calibrate, "leonardo", "--from", "studies")


def test_a_dry_run_lists_the_launches_and_starts_none(command, tmp_path):
    words = ("leonardo", "--nodes", "2", "--probe", "--launcher", "simulate", "--times", str(tmp_path / "t.csv"))
    said = command(calibrate, *words, "--dry-run").splitlines()
    assert said[0] == "default"
    assert len(said) == 13
    assert json.loads(command(calibrate, *words, "--dry-run", "--json"))["launches"] == said
    assert not list(tmp_path.glob("*.csv"))
    assert [cluster.name for cluster, _ in command.store.clusters.entries()].count("leonardo-calibrated") == 0


def test_a_second_probing_launches_nothing_and_fits_the_same(command, tmp_path):
    words = ("--nodes", "2", "--probe", "--launcher", "simulate", "--times", str(tmp_path / "t.csv"))
    first, said = fitted(command, *words, "--as", "first")
    assert ": 13 launches" in said
    second, said = fitted(command, *words, "--as", "second")
    assert ": 0 launches" in said
    assert "13 of 13 launches were in the table already" in said
    assert first["points"] == second["points"] == 13 * 9
    assert "SIMULATED" in second["sources"][0]
    assert second["error"] == pytest.approx(first["error"], abs=1e-3)


def test_times_without_probes_are_refused(command, tmp_path):
    with pytest.raises(UsageError, match="--times belong to --probe"):
        command(calibrate, "leonardo", "--from", "x.log", "--times", str(tmp_path / "t.csv"))


def test_a_job_beyond_the_fitted_nodes_and_sizes_says_so(command):
    add_study(command, "mine")
    command(calibrate, "leonardo", "--from", "studies", "--as", "fitted")
    shown = command(simulate, "--cluster", "fitted", "--sizes", "1M,1G", "--nodes", "4,8")
    beyond = {(line.split()[0], "extrapolated" in line) for line in shown.splitlines() if line[:1] == " "}
    assert beyond >= {("1073741824", True), ("1048576", True), ("1048576", False)}
    words = ("--model", "bert", "--cluster", "fitted", "--launcher", "simulate", "--trials", "2", "--json")
    notes = json.loads(command(tune, *words, "--nodes", "8", "--study", "far"))["notes"]
    assert "extrapolated: the cluster was calibrated on 2 nodes, and this job has 8" in notes
    assert any("messages lie beyond the calibrated sizes, 16 KiB to 32 MiB" in note for note in notes)
    notes = json.loads(command(tune, *words, "--nodes", "4", "--study", "near"))["notes"]
    assert not any("nodes, and this job" in note for note in notes)
