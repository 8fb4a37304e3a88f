"""What launchers share: inherited variables, the port of torch's ranks, several launches at once."""

import sys
import threading
import time

import pytest

from ncclt.launch.launcher import PORT, LaunchPlan
from ncclt.launch.local import LocalLauncher
from ncclt.launch.process.launcher import thread_variables

ENVIRONMENT = {"PATH": "/bin", "NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5"}


@pytest.mark.parametrize(
    ("keep_env", "removed", "kept"),
    [((), ("NCCL_DEBUG", "NCCL_IB_HCA"), {}), (("NCCL_IB_HCA",), ("NCCL_DEBUG",), {"NCCL_IB_HCA": "mlx5"})],
)
def test_inherited_variables_are_removed_or_kept(keep_env, removed, kept):
    """Those of the trial are neither."""
    launcher = LocalLauncher(environment=ENVIRONMENT, keep_env=keep_env)
    assert launcher.removed_names({"NCCL_ALGO": "Ring"}) == removed
    assert launcher.kept_variables({"NCCL_ALGO": "Ring"}) == kept
    assert launcher.removed_names({"NCCL_DEBUG": "WARN"}) == (
        ("NCCL_ALGO",) if keep_env else ("NCCL_ALGO", "NCCL_IB_HCA")
    )


# What torch 2.13 says where somebody else has the port.
TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)


@pytest.mark.parametrize("taken", [0, 2, 99])
def test_ranks_meet_on_another_port_where_the_first_one_is_taken(tmp_path, taken):
    """It is no outcome of the command; only after several ports in vain is it."""
    seen = tmp_path / "ports"
    code = (
        f"import os, sys; open({str(seen)!r}, 'a').write(os.environ['MASTER_PORT'] + chr(10)); "
        f"len(open({str(seen)!r}).readlines()) > {taken} or sys.exit({TAKEN!r}.format(port=os.environ['MASTER_PORT']))"
    )
    plan = LaunchPlan(
        argv=(sys.executable, "-I", "-S", "-c", code, PORT), set_env=(("MASTER_PORT", PORT),), timeout_s=60.0
    )
    result = LocalLauncher().run(plan)
    ports = [int(line) for line in seen.read_text().splitlines()]
    assert (result.exit_code, len(ports)) == ((1, 5) if taken == 99 else (0, taken + 1))
    assert all(20000 <= port < 30000 for port in ports)
    assert len(set(ports)) > 1 or len(ports) == 1


def test_only_of_a_command_that_failed_is_asked_whether_the_job_lost_its_nodes(monkeypatch):
    loss = ("Slurm job 7 was cancelled", False)
    monkeypatch.setattr("ncclt.launch.process.launcher.job_loss", lambda _environment: loss)
    for code, lost in ((0, ""), (1, "Slurm job 7 was cancelled")):
        plan = LaunchPlan(argv=(sys.executable, "-I", "-S", "-c", f"raise SystemExit({code})"), timeout_s=60.0)
        assert (LocalLauncher().run(plan).exit_code, LocalLauncher().run(plan).lost) == (code, lost)


def test_what_is_run_again_is_what_met_nobody(tmp_path):
    """Any other failure is the command's own."""
    seen = tmp_path / "runs"
    code = f"open({str(seen)!r}, 'a').write('x'); raise SystemExit('bind failed: Address already in use')"
    assert LocalLauncher().run(LaunchPlan(argv=(sys.executable, "-I", "-S", "-c", code), timeout_s=60.0)).exit_code == 1
    assert seen.read_text() == "x"


def test_threads_are_set_where_nobody_did():
    """torchrun would set them for some numbers of ranks only."""
    assert thread_variables({}, {}) == {"OMP_NUM_THREADS": "1"}
    assert thread_variables({"OMP_NUM_THREADS": "8"}, {}) == {}
    assert thread_variables({}, {"OMP_NUM_THREADS": "8"}) == {}


def test_launches_of_two_threads_end_independently_and_one_kill_ends_both():
    """As trials on disjoint nodes do: each has its own time, output and end."""
    launcher = LocalLauncher(grace_s=0.3, kill_grace_s=0.0)
    results = {}

    def launch(name, code, timeout_s):
        argv = (sys.executable, "-I", "-S", "-c", f"print({name!r}, flush=True); {code}")
        results[name] = launcher.run(LaunchPlan(argv=argv, timeout_s=timeout_s))

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
        launcher.kill()
        time.sleep(0.05)
    assert [results[name].killed for name in "ab"] == [True, True]
