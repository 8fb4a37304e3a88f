"""Nodes that are asked by one script: what it prints is read back, whatever a launcher does to its lines."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from played_launcher import PlayedLauncher

from ncclt.errors import UsageError
from ncclt.health.detect.detection import detect
from ncclt.health.detect.nodes import SCRIPT, ask_nodes, count_nodes_to_examine, examine_nodes
from ncclt.launch.launcher import LaunchResult
from ncclt.launch.local import LocalLauncher
from ncclt.measure.target import ON_REQUEST, Target

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "cluster"


@pytest.fixture
def node(tmp_path):
    """Return a maker of what the script prints on a node with the nvidia-smi of a saved case."""

    def make(case, host):
        folder = tmp_path / host
        folder.mkdir()
        saved = GOLDEN / case
        programs = {
            "nvidia-smi": f'if [ "$1" = topo ]; then cat {saved}/topo.txt; else cat {saved}/gpus.xml; fi',
            "uname": f"echo {host}",
        }
        for name, text in programs.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        return environ, subprocess.run(
            ["sh", "-c", SCRIPT], env=environ, capture_output=True, text=True, check=True
        ).stdout

    return make


def test_lines_of_several_nodes_are_told_apart(node):
    """They alternate, and mpirun and srun put labels before them."""
    texts = [node("h100_sxm", host)[1].splitlines() for host in ("node1", "node2")]
    mixed = [f"[1,{rank}]<stdout>:{line}" for pair in zip(*texts, strict=False) for rank, line in enumerate(pair)]
    mixed += [line for text in texts for line in text[min(map(len, texts)) :]]
    nodes, missing = ask_nodes(PlayedLauncher(LaunchResult(exit_code=0, stdout="\n".join(mixed))))

    assert (list(nodes), missing) == (["node1", "node2"], ())
    found = detect(list(nodes.values()), {}).fields
    assert (found["nodes"].value, found["gpus_per_node"].value, found["link_class"].value) == (2, 8, "nvswitch")
    assert found["gpu"].source == "node1: nvidia-smi -q -x; node2: nvidia-smi -q -x"


def test_the_script_runs_through_a_real_launcher(node):
    environ, _ = node("v100_mesh", "gpu7")
    nodes, missing = ask_nodes(LocalLauncher(environment=environ))

    assert (list(nodes), missing) == (["gpu7"], ())
    assert nodes["gpu7"].gpu_reports[0].driver == "470.82.01"


def test_damage_and_failures_are_named(node):
    text = node("h100_sxm", "node1")[1]
    lines = text.splitlines()
    cut = "\n".join(lines[: len(lines) // 2])
    nodes, missing = ask_nodes(PlayedLauncher(LaunchResult(exit_code=1, stdout=cut, stderr="srun: error: node2")))

    assert nodes == {}
    assert missing[0] == "asking the nodes by played failed: exit code 1; srun: error: node2"
    assert missing[1:] == ("the answer of node1 is damaged: run it again, or on fewer nodes",)


def test_a_node_without_gpus_is_named(tmp_path):
    (tmp_path / "uname").write_text("#!/bin/sh\necho login1\n")
    (tmp_path / "uname").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    nodes, missing = ask_nodes(LocalLauncher(environment=environ))

    assert nodes["login1"].matrices == ()
    assert re.match("login1: nvidia-smi topo -m holds no matrix", missing[0])


def test_pods_are_not_asked():
    with pytest.raises(UsageError, match="kubernetes"):
        examine_nodes(Target(launcher="kubernetes", reason=ON_REQUEST), {})


def test_an_allocation_is_looked_at_as_a_whole():
    hosts = tuple(f"node{number}" for number in range(3))
    granted = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[0-2]", "SLURM_JOB_NUM_NODES": "3"}

    assert count_nodes_to_examine(Target(launcher="slurm"), granted) == 3
    assert count_nodes_to_examine(Target(launcher="slurm", nodes=2), granted) == 2
    assert count_nodes_to_examine(Target(launcher="ssh", hosts=hosts), {}) == 3
    assert count_nodes_to_examine(Target(launcher="ssh"), {}) == 1
