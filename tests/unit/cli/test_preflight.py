"""`ncclt preflight` as it is called: exit codes, output, history, and what it refuses."""

import json
from pathlib import Path

import pytest
import typer
from fleet import Fleet, parse_fault
from typer.testing import CliRunner

from ncclt.cli.preflight import _parse_sizes, preflight
from ncclt.errors import StoreError, UsageError

FLEET = ("--launcher", "ssh", "--cluster", "dgx-a100", "--hosts", "n0,n1,n2,n3,n4,n5,n6,n7", "--gpus-per-node", "4")


def answer_by(faults, launched):
    """Return what takes the place of real launchers: a fleet that notes its launches."""

    def launched_runners(cluster, target, **_):
        fleet = Fleet(cluster, [parse_fault(text) for text in faults])

        def runner_for(hosts, gpus):
            if launched is not None:
                launched.append(hosts)
            return fleet.runner(hosts, gpus)

        return runner_for, ()

    return launched_runners


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Return a caller with a store of its own: words in, the ended command out; a fleet answers its launches."""
    monkeypatch.delenv("NCCLT_LAUNCHER", raising=False)
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(preflight)

    def run(*words, rc=0, storage="sqlite:///ncclt.db", faults=(), launched=None):
        with monkeypatch.context() as patch:
            if "--dry-run" not in words:
                patch.setattr("ncclt.cli.preflight.launched_runners", answer_by(faults, launched))
            done = CliRunner(env={"NCCLT_STORAGE": storage}).invoke(app, [*words], catch_exceptions=False)
        assert done.exit_code == rc, done.output
        return done

    return run


def test_a_healthy_fabric_exits_with_0(call):
    done = call(*FLEET)
    assert done.stdout.splitlines()[0] == "all_reduce on 8 x 4 GPUs of dgx-a100, expected from link speeds"
    assert done.stdout.splitlines()[-1].startswith("healthy: 8")
    assert "stored preflight" in done.stderr


def test_where_nothing_runs_it_exits_with_1(call):
    assert "could not measure" in call(*FLEET, faults=[f"n{index}=crashed" for index in range(8)], rc=1).stdout


def test_the_document_is_all_that_is_printed(call):
    done = call(*FLEET, "--json", faults=["n3+n4=0.5"], rc=4)
    document = json.loads(done.stdout)
    assert (document["schema"], document["state"], document["simulated"]) == (1, "degraded", False)
    assert [(f["part"], f["hosts"]) for f in document["findings"]] == [("link", ["n3", "n4"])]
    assert done.stderr == ""


def test_three_healthy_runs_become_the_yardstick_of_that_shape_alone(call):
    for _ in range(3):
        call(*FLEET, "-q")
    document = json.loads(call(*FLEET, "--json").stdout)
    assert (document["source"], document["tolerance"]) == ("as the median of 3 healthy runs", 0.075)
    document = json.loads(call(*FLEET[:4], "--hosts", "x1,x2,x3", "--json").stdout)
    assert (document["source"], document["hosts"]) == ("from link speeds", ["x1", "x2", "x3"])


def test_history_lists_what_was_stored_newest_first(call):
    call(*FLEET, "-q")
    call(*FLEET, "-q", faults=["n3=0.5"], rc=4)
    call(*FLEET, "-q", "--no-store", faults=["n4=0.5"], rc=4)
    preflights = json.loads(call("--history", "--cluster", "dgx-a100", "--json").stdout)["preflights"]
    assert [preflight["state"] for preflight in preflights] == ["degraded", "healthy"]
    lines = call("--history").stdout.splitlines()
    assert "degraded: node n3" in lines[1]
    assert json.loads(call("--history", "--cluster", "leonardo", "--json").stdout)["preflights"] == []


def test_without_a_store_it_still_runs(call, tmp_path):
    call(*FLEET, "--no-store", "-q", storage="sqlite:////nonexistent/folder/ncclt.db")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_takes_no_row_is_told_before_the_first_launch(call, full_disk):
    call(*FLEET, "-q")
    launched = []
    with full_disk():
        with pytest.raises(StoreError, match="cannot be used"):
            call(*FLEET, launched=launched)
        assert launched == []
        call(*FLEET, "--dry-run")
        call(*FLEET, "--no-store", "-q", launched=launched)
        assert launched


@pytest.mark.usefixtures("open_mpi")
@pytest.mark.parametrize("launcher", ["slurm", "ssh", "mpirun"])
def test_a_dry_run_needs_no_nodes(call, monkeypatch, launcher):
    """Names stand for them; the command is shown where it does not depend on an allocation."""
    for name in ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS", "PE_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)
    words = ("--cluster", "leonardo", "--nodes", "3", "--launcher", launcher, "--benchmark", "torch_collectives")
    done = call(*words, "--dry-run")
    assert "n00, n01, n02\n" in done.stdout
    assert "no nodes named or granted" in done.stderr
    assert ("launch of all nodes, at most" in done.stdout) == (launcher != "slurm")
    assert len(done.stdout.splitlines()) < 24
    launches = json.loads(call(*words, "--dry-run", "--json").stdout).get("launches", [])
    assert all("n02" in json.dumps(launch) for launch in launches)
    assert bool(launches) == (launcher != "slurm")


def test_a_dry_run_launches_and_stores_nothing(call):
    document = json.loads(call(*FLEET, "--dry-run", "--json", "--all-pairs").stdout)
    assert (document["launches_healthy"], [len(pairs) for pairs in document["rounds"]]) == (1, [4] * 7)
    shown = call(*FLEET, "--dry-run", "--all-pairs").stdout
    assert "launches: 1 if healthy" in shown
    assert "round 4 of pairs, only if needed or with --full: n0+n3 n2+n4 n1+n5 n6+n7\n" in shown
    assert "further rounds: 3\n" in shown
    assert not Path("ncclt.db").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--hosts", "a,b", "--nodes", "3"),
        ("--quick", "--full"),
        ("--tolerance", "2"),
        ("--sizes", "many"),
        ("--launcher", "replay"),
        ("--time", "0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(call, words):
    launched = []
    with pytest.raises(UsageError):
        call(*FLEET, *words, launched=launched)
    assert launched == []


def test_cpus_are_not_judged_by_the_links_of_gpus(call):
    gloo = ("--launcher", "torchrun", "--backend", "gloo", "--cluster", "dgx-a100", "--nodes", "1", "--dry-run")
    with pytest.raises(UsageError, match="gloo runs on CPUs"):
        call(*gloo)
    call(*gloo, "--expect", "0.1")


@pytest.mark.parametrize(
    ("text", "sizes"), [("64", (64,)), ("1G,1M,64", (64, 1 << 20, 1 << 30)), ("2KiB, 7b,1m", (4, 2048, 1 << 20))]
)
def test_sizes_are_written_as_in_nccl_tests(text, sizes):
    assert _parse_sizes(text) == sizes
