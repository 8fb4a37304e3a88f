"""The application service: a machine with and without nvidia-smi, and a small all_reduce through a launcher."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from played_launcher import PlayedLauncher
from read_log import read_log

from ncclt.health.doctor import Facts
from ncclt.health.doctor.examine import LOG_VARIABLES, examine_files, examine_here, start_log
from ncclt.launch.launcher import LaunchResult
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.store.shipped import profiles_folder, shipped_clusters

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "doctor"
LEONARDO = shipped_clusters(profiles_folder())["leonardo"]


@pytest.fixture
def smi(tmp_path):
    """Return a maker of an nvidia-smi that prints saved outputs, and of the environment that finds it."""

    def make(matrix="cat {0}/topo.txt", report="cat {0}/gpus.xml", case="healthy_h100"):
        folder = tmp_path / "bin"
        folder.mkdir()
        script = folder / "nvidia-smi"
        saved = GOLDEN / case
        script.write_text(
            f"#!/bin/sh\nif [ $1 = topo ]; then {matrix.format(saved)}; else {report.format(saved)}; fi\n"
        )
        script.chmod(0o755)
        environ = {"PATH": f"{folder}:/usr/bin:/bin"}
        return environ, lambda name: shutil.which(name, path=environ["PATH"])

    return make


def _examine(environ, find, tmp_path, **given):
    return examine_here(environ, Facts(**given), find=find, root=tmp_path, home=tmp_path)


def test_a_node_with_gpus_is_read(smi, tmp_path):
    environ, find = smi()
    diagnosis = _examine(environ, find, tmp_path)

    assert diagnosis.verdict == "incomplete"
    assert [part.part for part in diagnosis.unexamined] == ["transports", "plugins"]
    assert diagnosis.summary == ("No problems found, but transports and plugins were not examined (no log of NCCL)")
    assert diagnosis.facts.matrices[0].source == "nvidia-smi topo -m"
    assert len(diagnosis.facts.gpu_reports[0].gpus) == 8


PRINTED = "+ curl -u ci:hunter2secret https://artifacts.example/x\nexporter --api-key hunter2secret --nodes 2\n"


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (LaunchResult(exit_code=None, not_started=f"srun: {PRINTED}"), "could not be started: srun: + curl"),
        (LaunchResult(exit_code=-15, timed_out=True, wall_s=300.0), "not done after 300 s"),
        (LaunchResult(exit_code=3, stdout=f"a\n{PRINTED}"), "exit code 3: a; + curl"),
        (LaunchResult(exit_code=3, stderr=PRINTED), "exit code 3: + curl"),
    ],
)
def test_an_all_reduce_that_fails_is_reported_without_its_secrets(result, problem):
    facts, (line,) = start_log(PlayedLauncher(result), NcclTests(), dataclasses.replace(LEONARDO, nodes=1))

    assert problem in line
    assert facts.starts == ()
    assert result.timed_out or ("artifacts.example" in line and "[removed]" in line)
    assert "hunter2secret" not in line


@pytest.mark.parametrize(
    ("matrix", "report", "said"),
    [
        (
            "echo login --api-key hunter2secret; exit 6",
            "cat {0}/gpus.xml",
            "`nvidia-smi topo -m` failed: exit code 6; login --api-key [removed]",
        ),
        ("echo no devices were found; exit 6", "cat {0}/gpus.xml", "`nvidia-smi topo -m` failed: exit code 6; no dev"),
        ("cat {0}/topo.txt", "head -c 900 {0}/gpus.xml", "`nvidia-smi -q -x` cannot be read: nvidia-smi -q -x is cut"),
    ],
)
def test_what_nvidia_smi_cannot_tell_is_missing(smi, tmp_path, matrix, report, said):
    """A driver that fails is reported, and the other half is examined."""
    environ, find = smi(matrix, report)
    diagnosis = _examine(environ, find, tmp_path)

    assert diagnosis.verdict == "incomplete"
    assert diagnosis.facts.missing[0].startswith(said)
    assert bool(diagnosis.facts.matrices) != bool(diagnosis.facts.gpu_reports)
    assert "hunter2secret" not in diagnosis.facts.missing[0]


def test_a_login_node_is_examined_as_far_as_it_goes(tmp_path):
    """Without nvidia-smi variables and files are judged, and it is said what to bring."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "nccl.conf").write_text("NCCL_PROTO=LL128\n")
    diagnosis = _examine({"NCCL_IB_DISABLE": "1"}, lambda _name: None, tmp_path, cluster=LEONARDO)

    assert [finding.id for finding in diagnosis.blocking] == ["NET001", "ENV001"]
    assert "driver, GPUs and links were not examined (nvidia-smi missing)" in diagnosis.summary


def test_saved_files_are_judged_without_this_machine(monkeypatch):
    """What this shell has exported is nothing of the cluster's."""
    monkeypatch.setenv("NCCL_PROTO", "LL128")

    assert examine_files([GOLDEN / "healthy_h100"]).verdict == "healthy"


def test_everything_was_examined_where_nvidia_smi_and_a_log_show_it(smi, tmp_path):
    """Healthy means examined: with the log of a start beside nvidia-smi nothing is left."""
    environ, find = smi()
    log = read_log(*(GOLDEN / "healthy_h100" / "nccl.log").read_text().splitlines())
    diagnosis = _examine(environ, find, tmp_path, log=log)

    assert diagnosis.summary == ("No problems found, but other nodes were not examined (nvidia-smi of 1 of 2 nodes)"), (
        "the job has two, and this is one"
    )
    assert [part["by"][:1] for part in diagnosis.to_document()["examined"]][:3] == [
        ["nvidia-smi -q -x"],
        ["nvidia-smi -q -x"],
        ["nvidia-smi topo -m"],
    ]


@pytest.mark.parametrize("left", ["gpus.xml", "gpus", "gpus2.xml", "topo.txt", "nccl.log"])
def test_nothing_is_healthy_that_was_not_examined(left, tmp_path):
    """Each source that is left out is named, and keeps the verdict from being healthy."""
    for path in (GOLDEN / "healthy_h100").iterdir():
        if not path.name.startswith(left):
            shutil.copy(path, tmp_path)
    diagnosis = examine_files([tmp_path])

    assert diagnosis.verdict == "incomplete"
    assert diagnosis.summary.startswith("No problems found, but ")
    lost = {
        "gpus": "GPUs",
        "gpus.xml": "other nodes",
        "gpus2.xml": "other nodes",
        "topo.txt": "links",
        "nccl.log": "transports",
    }[left]
    assert lost in {part.part for part in diagnosis.unexamined}


def test_log_of_one_of_two_nodes_is_named(tmp_path):
    for path in (GOLDEN / "healthy_h100").iterdir():
        shutil.copy(path, tmp_path)
    log = tmp_path / "nccl.log"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "gpu02:" not in line))
    diagnosis = examine_files([tmp_path])

    assert diagnosis.verdict == "incomplete"
    assert "logs of other nodes were not examined (those of 1 of 2 nodes are here)" in diagnosis.summary


def test_a_small_all_reduce_tells_how_nccl_starts():
    """Through any launcher; what was set only to get the log is not reported as the job's."""
    log = (GOLDEN / "sockets_a100" / "node1.log").read_text()
    asked = "node1:901:911 [0] NCCL INFO NCCL_RUNTIME_CONNECT set by environment to 0.\n"
    launcher = PlayedLauncher(LaunchResult(exit_code=0, stdout=log + asked))
    one_node = dataclasses.replace(LEONARDO, nodes=1)

    facts, missing = start_log(launcher, NcclTests(), one_node)
    assert missing == ()
    assert facts.transports() == {"NET/Socket": 1, "SHM": 1}
    assert facts.sources == ["all_reduce by played"]
    assert "NCCL_RUNTIME_CONNECT" not in facts.processes[0].variables
    (plan,) = launcher.plans
    assert plan.argv[0] == "all_reduce_perf"
    assert plan.argv[plan.argv.index("-g") + 1] == "4"
    assert LOG_VARIABLES.items() <= dict(plan.set_env).items()
