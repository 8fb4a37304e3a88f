"""What launchers share: inherited variables, the port of torch's ranks, several launches at once."""

import sys
import threading
import time

import pytest

from ncclt.launch.launcher import LaunchPlan
from ncclt.launch.starter import Starter, master_port, thread_variables

ENVIRONMENT = {"PATH": "/bin", "NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5"}


@pytest.mark.parametrize(
    ("keep_env", "removed", "kept"),
    [
        (False, ("NCCL_DEBUG", "NCCL_IB_HCA"), {}),
        (True, ("NCCL_DEBUG",), {"NCCL_IB_HCA": "mlx5"}),
    ],
)
def test_inherited_variables_are_removed_or_kept(keep_env, removed, kept):
    """Those of the trial are neither; NCCL_DEBUG is never kept."""
    starter = Starter(environment=ENVIRONMENT, keep_env=keep_env)
    assert starter.removed({"NCCL_ALGO": "Ring"}) == removed
    assert starter.kept({"NCCL_ALGO": "Ring"}) == kept
    assert starter.removed({"NCCL_DEBUG": "WARN"}) == (() if keep_env else ("NCCL_ALGO", "NCCL_IB_HCA"))


def test_port_follows_from_the_launch():
    """The same for the same launch, mostly another for another one, and none that Linux gives away."""
    first = master_port(("a", "b"), {"NCCL_ALGO": "Ring"}, ("n1",))
    assert first == master_port(["a", "b"], {"NCCL_ALGO": "Ring"}, ["n1"])
    others = {master_port(("a", "b", str(i)), {"NCCL_ALGO": "Ring"}, ("n1",)) for i in range(100)}
    assert len(others) > 90
    assert all(20000 <= port < 30000 for port in (first, *others))


def test_threads_are_set_where_nobody_did():
    """torchrun would set them for some numbers of ranks only."""
    assert thread_variables({}, {}) == {"OMP_NUM_THREADS": "1"}
    assert thread_variables({"OMP_NUM_THREADS": "8"}, {}) == {}
    assert thread_variables({}, {"OMP_NUM_THREADS": "8"}) == {}


def test_launches_of_two_threads_end_independently_and_one_kill_ends_both():
    """As trials on disjoint nodes do: each has its own time, output and end."""
    starter = Starter(grace_s=0.3, kill_grace_s=0.0)
    results = {}

    def launch(name, code, timeout_s):
        argv = (sys.executable, "-I", "-S", "-c", f"print({name!r}, flush=True); {code}")
        results[name] = starter.run(LaunchPlan(argv=argv, timeout_s=timeout_s))

    def together(*launches):
        threads = [threading.Thread(target=launch, args=arguments) for arguments in launches]
        for thread in threads:
            thread.start()
        return threads

    for thread in together(("slow", "import time; time.sleep(600)", 2.0), ("quick", "raise SystemExit(3)", 60.0)):
        thread.join()
    assert (results["slow"].timed_out, results["slow"].stdout) == (True, "slow\n")
    assert (results["quick"].exit_code, results["quick"].timed_out, results["quick"].stdout) == (3, False, "quick\n")

    both = together(("a", "import time; time.sleep(600)", 600.0), ("b", "import time; time.sleep(600)", 600.0))
    time.sleep(0.5)
    while any(thread.is_alive() for thread in both):
        starter.kill()
        time.sleep(0.05)
    assert [results[name].killed for name in "ab"] == [True, True]
