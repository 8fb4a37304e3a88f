"""Launches through a stand-in for kubectl that runs the first container's command as a process.

Not tried on a cluster. The processes carry nothing of the launcher's environment: only `kubectl delete` can end them.
"""

import argparse
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ncclt.launch.kubernetes import driver as kubernetes_driver
from ncclt.launch.kubernetes.driver import PodProgress, Stage
from ncclt.launch.kubernetes.launcher import KubernetesLauncher
from ncclt.launch.kubernetes.manifests import Site
from ncclt.launch.launcher import JobShape
from ncclt.testing.launcher_contract import LauncherContract

PATIENT_S = 60.0
FAKES = Path(__file__).parents[1] / "fakes"
carrying = runpy.run_path(str(FAKES / "leftovers.py"))["carrying"]
SITE = Site(container="registry.example/x:1", namespace="lab")
SLEEP = "import time; print('begun', flush=True); time.sleep(600)"


@pytest.fixture
def cluster(tmp_path):
    """The stand-in's folder; `kubectl` in it is the stand-in."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    kubectl = folder / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKES / "kubectl_stand_in.py"}" "$@"\n')
    kubectl.chmod(0o755)
    return folder


def launcher_on(cluster, *, uses_mpi=True, pending_s=PATIENT_S, nodes=2):
    environment = os.environ | {"PATH": f"{cluster}:{os.environ['PATH']}", "KUBECTL_STAND_IN": str(cluster)}
    return KubernetesLauncher(
        shape=JobShape(nodes=nodes),
        uses_mpi=uses_mpi,
        site=replace(SITE, pending=pending_s),
        environment=environment,
        extra=("--context=lab",),
        poll_s=0.05,
    )


def run(launcher, code, *, variables=None, timeout_s=PATIENT_S, files=()):
    command = (sys.executable, "-S", "-c", code)
    return launcher.run(launcher.plan(command, variables=variables or {}, timeout_s=timeout_s, files=files))


def left(cluster):
    """Jobs that nobody has deleted."""
    return [path.parent.name for path in cluster.glob("*/job.json") if not path.parent.name.endswith(".gone")]


class TestKubernetesLauncher(LauncherContract):
    """An MPIJob on a stand-in of a cluster."""

    @pytest.fixture(autouse=True)
    def _on_a_cluster(self, cluster):
        self._cluster = cluster

    def launcher(self):
        return launcher_on(self._cluster)

    def refused(self):
        (self._cluster / "mode").write_text("refuse")
        return self.launcher()

    def test_what_a_command_gets_and_gives(self):
        """Kubernetes keeps one log for both outputs of a container."""
        launcher = self.launcher()
        launcher.kill()
        code = "import os, sys; print(os.environ['NCCL_ALGO']); print('right', file=sys.stderr); sys.exit(7)"
        result = self._run(code, variables={"NCCL_ALGO": "Ring"}, launcher=launcher)
        assert sorted(result.stdout.split()) == ["Ring", "right"], result
        assert (result.exit_code, result.killed) == (7, False)
        assert result.wall_s > 0

    def test_missing_program_is_a_result(self):
        """The complaint of whoever should have started it is in that log, too."""
        launcher = self.launcher()
        result = launcher.run(launcher.plan(("/nowhere/all_reduce_perf",), variables={}, timeout_s=PATIENT_S))
        assert result.exit_code == 127
        assert "all_reduce_perf" in result.stdout

    def test_time_is_limited_and_nothing_is_left(self):
        """The time of the command is counted from its start; a container ends with all that is in it."""
        result = run(self.launcher(), SLEEP, variables={"WORD": "hangs-in-a-pod"}, timeout_s=5.0)
        assert result.timed_out
        assert "begun" in result.stdout
        assert (result.survivors, result.left_elsewhere) == ((), ())
        assert not carrying("hangs-in-a-pod")
        assert left(self._cluster) == []


def test_files_come_along_and_torchrun_is_used_for_a_train_job(cluster, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text("import os, sys\nprint('µ', sys.argv[1:], os.environ['NCCL_IB_HCA'])\n")
    launcher = launcher_on(cluster, uses_mpi=False)
    plan = launcher.plan(
        (sys.executable, str(worker), "a b"),
        variables={"NCCL_IB_HCA": "mlx5_0,mlx5_1"},
        timeout_s=60.0,
        files=(worker,),
    )
    worker.unlink()
    result = launcher.run(plan)
    assert (result.exit_code, result.stdout) == (0, "µ ['a b'] mlx5_0,mlx5_1\n"), result
    assert left(cluster) == []


def test_two_launches_at_once_have_names_of_their_own(cluster):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(run(launcher_on(cluster), "import time; time.sleep(0.5)")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.exit_code for result in results] == [0, 0], results
    assert len(set((cluster / "deleted").read_text().split())) == 2


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("refuse", 'no matches for kind "MPIJob"'),
        ("image", 'ImagePullBackOff: Back-off pulling image "registry/none:1"'),
        ("unschedulable", "-launcher has no node: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        ("rejected", "the job failed: TrainingRuntimeNotSupported: runtime not found"),
    ],
)
def test_what_cannot_start_says_why(cluster, mode, reason):
    """And is deleted all the same."""
    (cluster / "mode").write_text(mode)
    result = run(launcher_on(cluster, pending_s=1.0), SLEEP)
    assert result.exit_code is None
    assert result.not_started.startswith("Kubernetes: ")
    assert reason in result.not_started
    assert not result.timed_out
    assert left(cluster) == []


@pytest.mark.parametrize(
    ("mode", "code", "exit_code", "reason"),
    [
        ("", "import sys; sys.exit('last words')", 1, "-launcher: exit code 1"),
        ("", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139, "-launcher: exit code 139"),
        ("crashloop", "raise SystemExit(7)", 7, "-launcher: exit code 7"),
        ("evicted", SLEEP, 1, "Evicted: The node was low on resource: memory."),
    ],
)
def test_a_failure_is_a_result(cluster, mode, code, exit_code, reason):
    (cluster / "mode").write_text(mode)
    result = run(launcher_on(cluster), code)
    assert (result.exit_code, result.timed_out) == (exit_code, False), result
    assert not result.not_started or mode == "evicted", "its log is lost, and with it the signs of its ranks"
    assert reason in result.stderr
    assert ("last words" in result.stdout) == ("last words" in code)
    assert left(cluster) == []


TORCHRUN_SAYS = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
worker.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_10:00:00
  host      : node-0
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 77)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 77
============================================================
"""


def test_the_rank_that_torchrun_names_is_the_one_that_failed(cluster):
    """torchrun itself ends with 1, in a log that holds both outputs."""
    result = run(launcher_on(cluster, uses_mpi=False), f"print({TORCHRUN_SAYS!r}); raise SystemExit(1)")
    assert result.exit_code == -signal.SIGSEGV, result


def test_a_cluster_out_of_reach_ends_the_launch(cluster):
    (cluster / "mode").write_text("silent")
    result = run(launcher_on(cluster), SLEEP)
    assert result.exit_code is None
    assert result.not_started.startswith("Kubernetes: the job cannot be observed: Unable to connect to the server")
    assert left(cluster) == []


def test_a_job_that_cannot_be_deleted_is_told_of(cluster):
    """The result is there, but the nodes may not be free for the next launch."""
    (cluster / "mode").write_text("stuck")
    result = run(launcher_on(cluster), "print('done')")
    assert result.exit_code == 1
    assert "done" in result.stdout
    assert "timed out waiting for the condition on mpijobs" in result.stderr
    assert "timed out waiting" in result.left_elsewhere[0]


def soon(done):
    deadline = time.monotonic() + PATIENT_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
    return done()


def test_kill_deletes_the_job(cluster):
    launcher = launcher_on(cluster)
    results = []
    thread = threading.Thread(
        target=lambda: results.append(run(launcher, SLEEP, variables={"WORD": "killed-in-a-pod"}))
    )
    thread.start()
    assert soon(lambda: carrying("killed-in-a-pod"))
    launcher.kill()
    thread.join()
    assert results[0].killed
    assert left(cluster) == []
    assert not carrying("killed-in-a-pod")


def test_kill_9_of_ncclt_deletes_the_job(cluster):
    """Nothing can be done in a process that is killed so: its reaper does it."""
    program = (
        "import runpy, sys\n"
        "from pathlib import Path\n"
        f"tests = runpy.run_path({str(Path(__file__))!r})\n"
        f"launcher = tests['launcher_on'](Path({str(cluster)!r}))\n"
        "tests['run'](launcher, tests['SLEEP'], variables={'WORD': 'orphan-pod'})\n"
    )
    ncclt = subprocess.Popen((sys.executable, "-c", program), stdin=subprocess.DEVNULL)
    try:
        assert soon(lambda: carrying("orphan-pod"))
    finally:
        ncclt.send_signal(signal.SIGKILL)
        ncclt.wait()
    assert soon(lambda: not carrying("orphan-pod"))
    assert soon(lambda: left(cluster) == [])


def test_a_log_that_does_not_end_is_cut_off_and_the_failed_pods_are_still_shown(monkeypatch, tmp_path, capfd):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\n[ "$2" = leader ] || { echo "why $2 failed"; exit; }\necho begun\nexec sleep 600\n')
    kubectl.chmod(0o755)
    monkeypatch.setattr(kubernetes_driver, "_CALL_S", 1.0)
    driver = kubernetes_driver.Driver([str(kubectl)], argparse.Namespace(container="ncclt"))

    driver._show_logs(PodProgress(stage=Stage.ENDED, leader="leader", failed=("other",)))

    out, err = capfd.readouterr()
    assert out == "begun\n"
    assert err == "ncclt: kubernetes: the log of leader was cut off after 1 s\nother: why other failed\n"
