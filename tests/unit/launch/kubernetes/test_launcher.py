"""Launches as jobs of Kubernetes: the plans and what is refused; tests/integration/test_kubernetes.py runs them."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ncclt.errors import UsageError
from ncclt.launch.kubernetes.launcher import KubernetesLauncher
from ncclt.launch.kubernetes.manifests import Site
from ncclt.launch.launcher import JobShape, LaunchResult, parse_options

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "kubernetes"
COMMAND = ("/opt/nccl-tests/all_reduce_perf", "-b", "8M", "-e", "64M")
VARIABLES = {"NCCL_ALGO": "Ring", "NCCL_IB_HCA": "mlx5_0,mlx5_1"}
OPTIONS = (
    "container=registry.example/nccl-tests:2.19",
    "namespace=tuning",
    "service-account=ncclt",
    "node.gpu=h100",
    "resource.rdma/hca=8",
)
SITE = {
    "options": parse_options(KubernetesLauncher, OPTIONS),
    "extra": ("--context=lab",),
    "environment": {"PATH": "/usr/bin", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0"},
}
TWO = JobShape(nodes=2, processes_per_node=8)


def readable(plan):
    """The plan without its texts, then the texts as they are; this machine's interpreter is left out."""
    plan = asdict(plan)
    texts = plan.pop("files")
    plan["argv"] = ["python" if word == sys.executable else word for word in plan["argv"]]
    return json.dumps(plan, indent=2) + "".join(f"\n# {name}\n{text}" for name, text in texts)


@pytest.mark.parametrize(
    ("name", "options", "with_files"),
    [
        ("mpijob", SITE, False),
        ("trainjob", {**SITE, "uses_mpi": False}, True),
        ("trainjob_plain", {"uses_mpi": False, "site": Site(container="torch:2.13"), "environment": {}}, False),
    ],
)
def test_golden_plan(name, options, with_files, tmp_path, check_golden):
    """The plan is pinned; run once with NCCLT_UPDATE_GOLDEN=1 after a wanted change, and read the difference."""
    worker = tmp_path / "worker.py"
    worker.write_text('"""Measures."""\n\nimport sys\n\nprint("µ", sys.argv)\n')
    command = ("python3", str(worker), "--messages", '{"a": 1}') if with_files else COMMAND
    files = (worker,) if with_files else ()
    made = (KubernetesLauncher if "site" in options else KubernetesLauncher.create)(shape=TWO, **options)
    plan = made.plan(command, variables=VARIABLES, timeout_s=120.0, files=files)
    check_golden(GOLDEN / f"{name}.txt", readable(plan))


def test_inherited_variables_reach_the_containers_only_when_kept():
    said = {
        keep_env: dict(
            KubernetesLauncher.create(shape=TWO, keep_env=["NCCL_SOCKET_IFNAME"] if keep_env else (), **SITE)
            .plan(COMMAND, variables={}, timeout_s=1.0)
            .files
        )["job.json"]
        for keep_env in (False, True)
    }
    assert "NCCL_SOCKET_IFNAME" not in said[False]
    assert "NCCL_SOCKET_IFNAME" in said[True]
    assert not any("NCCL_DEBUG" in text for text in said.values())


def test_without_an_image_nothing_can_be_planned():
    with pytest.raises(UsageError, match="needs the image"):
        KubernetesLauncher.create(shape=TWO).plan(COMMAND, variables={}, timeout_s=1.0)


def test_nodes_cannot_be_named():
    with pytest.raises(UsageError, match="chooses the nodes itself"):
        KubernetesLauncher.create(shape=JobShape(hosts=("n1",)))


def test_without_kubectl_the_manifests_are_given_to_the_user(tmp_path):
    launcher = KubernetesLauncher.create(shape=TWO, options={"container": "x:1"}, environment={"PATH": str(tmp_path)})
    plan = launcher.plan(COMMAND, variables=VARIABLES, timeout_s=1.0)
    with pytest.raises(UsageError, match="kubectl was not found") as raised:
        launcher.run(plan)
    assert dict(plan.files)["job.json"] in raised.value.message
    assert "yourself" in raised.value.hint


class Recording(KubernetesLauncher):
    """Starts nothing; notes how long what it would have started may take."""

    limit_s = 0.0

    def _run(self, plan):
        self.limit_s = plan.timeout_s
        return LaunchResult(exit_code=0)


def test_a_driver_has_the_time_to_wait_to_run_the_command_and_to_delete(tmp_path):
    """It ends the command itself, so 5 minutes after that it is the driver that hangs."""
    (tmp_path / "kubectl").write_text("")
    (tmp_path / "kubectl").chmod(0o755)
    launcher = Recording(shape=TWO, site=Site(container="x:1", pending=600.0), environment={"PATH": str(tmp_path)})
    plan = launcher.plan(COMMAND, variables={}, timeout_s=120.0)
    assert launcher.run(plan).exit_code == 0
    assert (plan.timeout_s, launcher.limit_s) == (120.0, 120.0 + 600.0 + 300.0)
