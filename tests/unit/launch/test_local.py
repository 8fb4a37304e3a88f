"""The launcher for this machine: what reaches a command, and what does not."""

import pytest

from ncclt.errors import UsageError
from ncclt.launch.launcher import JobShape, LaunchPlan
from ncclt.launch.local import LocalLauncher

ENVIRONMENT = {"HOME": "/h", "NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO", "NCCL_TESTS_MIN_BW": "9"}


def test_a_plan_word_by_word():
    """Inherited variables are removed by name, and those of the trial set."""
    plan = LocalLauncher(environment=ENVIRONMENT).plan(
        ["all_reduce_perf", "-b", "8"], variables={"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}, timeout_s=30.0
    )
    assert plan == LaunchPlan(
        argv=("all_reduce_perf", "-b", "8"),
        set_env=(("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL")),
        unset_env=("NCCL_DEBUG", "NCCL_TESTS_MIN_BW"),
        timeout_s=30.0,
    )


def test_the_environment_is_a_snapshot(monkeypatch):
    """A plan does not change when the environment of this program does."""
    launcher = LocalLauncher()
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert "NCCL_ALGO" not in launcher.inherited
    assert "NCCL_ALGO" in LocalLauncher().inherited


@pytest.mark.parametrize(("argv", "exit_code"), [(("/nowhere/prog",), 127), (("/",), 126)])
def test_what_cannot_be_started_is_a_result(argv, exit_code):
    """A missing program, and something that is none."""
    launcher = LocalLauncher(environment={})
    result = launcher.run(launcher.plan(argv, variables={}, timeout_s=60.0))
    assert result.exit_code == exit_code, "as a shell says it"
    assert f"cannot start {argv[0]}" in result.not_started


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"processes_per_node": 0}, {"nodes": 2, "hosts": ("a",)}], ids=str)
def test_a_launch_has_a_process_on_each_of_its_nodes(wrong):
    with pytest.raises(UsageError, match=r"number of hosts \(1\) differs" if "hosts" in wrong else "at least 1 node"):
        JobShape(**wrong)


def test_the_smallest_launch_is_one_process():
    assert JobShape(nodes=1, processes_per_node=1, hosts=("a",)).world_size == 1
    assert JobShape(nodes=2, processes_per_node=4).world_size == 8


@pytest.mark.parametrize("wrong", [{"processes_per_node": 2}, {"nodes": 2}], ids=str)
def test_this_launcher_starts_one_process_and_no_more(wrong):
    assert LocalLauncher(shape=JobShape()).name == "local"
    with pytest.raises(UsageError, match="starts 1 process, not 2"):
        LocalLauncher(shape=JobShape(**wrong))
