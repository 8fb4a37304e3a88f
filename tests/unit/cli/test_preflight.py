"""`ncclt preflight` as it is called: exit codes, output, history, and what it refuses."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ncclt.cli.preflight import _sizes, preflight
from ncclt.errors import StoreError, UsageError
from ncclt.health.preflight.simulated import FabricRunner

SIMULATED = ("--launcher", "simulate", "--cluster", "dgx-a100", "--nodes", "8", "--gpus-per-node", "4")


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Return a caller with a store of its own: words in, the ended command out."""
    monkeypatch.delenv("NCCLT_LAUNCHER", raising=False)
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(preflight)

    def run(*words, rc=0, storage="sqlite:///ncclt.db"):
        done = CliRunner(env={"NCCLT_STORAGE": storage}).invoke(app, [*words], catch_exceptions=False)
        assert done.exit_code == rc, done.output
        return done

    return run


def test_a_healthy_fabric_exits_with_0(call):
    done = call(*SIMULATED)
    assert done.stdout.splitlines()[0] == "SIMULATED all_reduce on 8 x 4 GPUs of dgx-a100, expected from link speeds"
    assert done.stdout.splitlines()[-1].startswith("SIMULATED: healthy: 9")
    assert "stored preflight" in done.stderr


def test_a_slow_node_exits_with_4_and_stands_in_the_map(call):
    done = call(*SIMULATED, "--weak", "n03=0.6", rc=4)
    assert done.stdout.splitlines()[-1].startswith("SIMULATED: degraded: node n03 reaches 59 % of")
    assert "pairs of nodes" in done.stdout
    header, row = (next(line for line in done.stdout.splitlines() if line.startswith(word)) for word in ("%", "n03"))
    assert header.split() == ["%", *(f"n{index:02d}" for index in range(8))]
    cells = [int(cell) for cell in row.split() if cell.isdecimal()]
    assert len(cells) == 3
    assert all(55 < cell < 65 for cell in cells)


def test_where_nothing_runs_it_exits_with_1(call):
    done = call(*SIMULATED, *(word for index in range(8) for word in ("--weak", f"n{index:02d}=crash")), rc=1)
    assert "could not measure" in done.stdout


def test_the_document_is_all_that_is_printed(call):
    done = call(*SIMULATED, "--weak", "n03+n04=0.5", "--json", rc=4)
    document = json.loads(done.stdout)
    assert (document["schema"], document["state"], document["simulated"]) == (1, "degraded", True)
    assert [(f["part"], f["hosts"]) for f in document["findings"]] == [("link", ["n03", "n04"])]
    assert done.stderr == ""


def test_three_healthy_runs_become_the_yardstick_of_that_shape_alone(call):
    for seed in range(3):
        call(*SIMULATED, "--seed", str(seed), "-q")
    document = json.loads(call(*SIMULATED, "--seed", "3", "--json").stdout)
    assert (document["source"], document["tolerance"]) == ("as the median of 3 healthy runs", 0.075)
    other = json.loads(call(*SIMULATED[:4], "--nodes", "4", "--json").stdout)
    assert other["source"] == "from link speeds"


def test_history_lists_what_was_stored_newest_first(call):
    call(*SIMULATED, "-q")
    call(*SIMULATED, "-q", "--weak", "n03=0.5", rc=4)
    call(*SIMULATED, "-q", "--no-store", "--weak", "n04=0.5", rc=4)
    found = json.loads(call("--history", "--cluster", "dgx-a100", "--json").stdout)["preflights"]
    assert [one["state"] for one in found] == ["degraded", "healthy"]
    lines = call("--history").stdout.splitlines()
    assert "SIMULATED: degraded: node n03" in lines[1]
    assert json.loads(call("--history", "--cluster", "leonardo", "--json").stdout)["preflights"] == []


def test_without_a_store_it_still_runs(call, tmp_path):
    call(*SIMULATED, "--no-store", "-q", storage="sqlite:////nonexistent/folder/ncclt.db")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_takes_no_row_is_told_before_the_first_launch(call, monkeypatch, full_disk):
    call(*SIMULATED, "-q")
    launched = []
    measure = FabricRunner.measure
    monkeypatch.setattr(
        FabricRunner, "measure", lambda *words, **more: launched.append(words) or measure(*words, **more)
    )
    with full_disk():
        with pytest.raises(StoreError, match="cannot be used"):
            call(*SIMULATED)
        assert launched == []
        call(*SIMULATED, "--dry-run")
        call(*SIMULATED, "--no-store", "-q")
        assert launched


def test_no_replay_is_offered(call):
    shown = call("--help").stdout
    assert "replay" not in shown


@pytest.mark.usefixtures("open_mpi")
@pytest.mark.parametrize("launcher", ["slurm", "ssh", "mpirun"])
def test_a_dry_run_needs_no_nodes(call, monkeypatch, launcher):
    """Names stand for them; the command is shown where it does not depend on an allocation."""
    for name in ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS", "PE_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)
    words = ("--cluster", "leonardo", "--nodes", "3", "--launcher", launcher, "--benchmark", "torch_collectives")
    done = call(*words, "--dry-run")
    assert "hosts: n00, n01, n02\n" in done.stdout
    assert "no nodes named or granted" in done.stderr
    assert ("launch of all nodes, at most" in done.stdout) == (launcher != "slurm")
    assert len(done.stdout.splitlines()) < 24
    launches = json.loads(call(*words, "--dry-run", "--json").stdout).get("launches", [])
    assert all("n02" in json.dumps(launch) for launch in launches)
    assert bool(launches) == (launcher != "slurm")


def test_a_dry_run_launches_and_stores_nothing(call):
    document = json.loads(call(*SIMULATED, "--dry-run", "--json", "--all-pairs").stdout)
    assert (document["launches_healthy"], [len(pairs) for pairs in document["rounds"]]) == (1, [4] * 7)
    assert "launches: 1 if healthy" in call(*SIMULATED, "--dry-run").stdout
    assert not Path("ncclt.db").exists()


def test_named_hosts_are_used(call):
    document = json.loads(call(*SIMULATED[:4], "--hosts", "x1,x2,x3", "--weak", "x2=0.5", "--json", rc=4).stdout)
    assert document["hosts"] == ["x1", "x2", "x3"]
    assert document["findings"][0]["hosts"] == ["x2"]


@pytest.mark.parametrize(
    "words",
    [
        ("--hosts", "a,b", "--nodes", "3"),
        ("--weak", "n77=0.5"),
        ("--weak", "n01"),
        ("--quick", "--full"),
        ("--tolerance", "2"),
        ("--expect", "0"),
        ("--sizes", "many"),
        ("--expect", "inf"),
        ("--time", "inf"),
        ("--launcher", "replay"),
        ("--launcher", "local", "--weak", "n01=0.5"),
        ("--parallel", "0"),
        ("--time", "0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(call, words):
    with pytest.raises(UsageError):
        call(*SIMULATED, *words)


def test_cpus_are_not_judged_by_the_links_of_gpus(call):
    gloo = ("--launcher", "torchrun", "--backend", "gloo", "--cluster", "dgx-a100", "--nodes", "1", "--dry-run")
    with pytest.raises(UsageError, match="gloo runs on CPUs"):
        call(*gloo)
    call(*gloo, "--expect", "0.1")


@pytest.mark.parametrize(
    ("text", "sizes"), [("64", (64,)), ("1G,1M,64", (64, 1 << 20, 1 << 30)), ("2KiB, 7b,1m", (4, 2048, 1 << 20))]
)
def test_sizes_are_written_as_in_nccl_tests(text, sizes):
    assert _sizes(text) == sizes
