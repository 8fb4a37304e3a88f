"""Launches through a real sshd on the loopback interface: two hosts that are this machine under two names."""

import os
import shlex
import sys
import threading

import pytest

from ncclt.core.message import Collective, Message
from ncclt.errors import HostLostError
from ncclt.health.detect.nodes import ask_nodes
from ncclt.launch.launcher import JobShape
from ncclt.launch.process.process_tree import members, new_mark
from ncclt.launch.ranks import find_unfit_reason
from ncclt.launch.ssh.launcher import SshLauncher
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives
from ncclt.measure.outcome import judge
from ncclt.testing.launcher_contract import LauncherContract

pytest.importorskip("torch.distributed")
PATIENT_S = 120.0

ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(4)
dist.all_reduce(ones)
said = [None, None]
names = ["NCCL_ALGO", "NCCL_OF_HERE", "NCCL_IB_HCA"]
dist.all_gather_object(said, [os.environ.get(name) for name in names])
if dist.get_rank() == 0:
    print(ones.tolist(), said[0] == said[1], said[0])
dist.destroy_process_group()
"""


def over_ssh(sshd, *hosts, **options):
    environment = os.environ | {"NCCL_OF_HERE": "1"}
    shape = JobShape(nodes=len(hosts), hosts=hosts)
    return SshLauncher(shape=shape, ssh_args=sshd.options, environment=environment, grace_s=0.5, **options)


class TestSshLauncher(LauncherContract):
    """One rank on one host."""

    @pytest.fixture(autouse=True)
    def _server(self, sshd):
        self._sshd = sshd

    def launcher(self):
        return over_ssh(self._sshd, self._sshd.hosts[0])

    def refused(self):
        return over_ssh(self._sshd, self._sshd.hosts[0], extra=("--no-such-option",))


def test_nodes_are_asked_what_they_are(sshd):
    """Both answer at once, and neither spoils the other's lines."""
    nodes, missing = ask_nodes(over_ssh(sshd, *sshd.hosts))

    assert len(nodes) == 2
    assert {facts.cpu for facts in nodes.values()} <= {"intel", "amd", "arm"}
    assert not [text for text in missing if "damaged" in text or "failed" in text]


def test_two_hosts_compute_together_with_a_file_that_they_are_sent(sshd, tmp_path):
    """Every rank has the variables of the trial and none that this shell has exported."""
    worker = tmp_path / "worker.py"
    worker.write_text(ALL_REDUCE)
    launcher = over_ssh(sshd, *sshd.hosts)
    variables = {"NCCL_ALGO": "allreduce:ring;broadcast:tree", "NCCL_IB_HCA": "=mlx5_0,mlx5_1"}
    command = (sys.executable, str(worker))
    result = launcher.run(launcher.plan(command, variables=variables, timeout_s=PATIENT_S, files=(worker,)))
    assert result.exit_code == 0, result
    assert result.stdout == f"[2.0, 2.0, 2.0, 2.0] True {[variables['NCCL_ALGO'], None, variables['NCCL_IB_HCA']]}\n"


@pytest.mark.thorough
def test_one_host_that_crashes_ends_the_other_at_once(sshd):
    """The signal of its rank comes back, and nothing waits for a timeout."""
    word = new_mark()
    code = "import os, time; os.kill(os.getpid(), 11) if os.environ['RANK'] == '1' else time.sleep(600)"
    launcher = over_ssh(sshd, *sshd.hosts)
    plan = launcher.plan((sys.executable, "-c", code), variables={"WORD": word}, timeout_s=600.0)
    result = launcher.run(plan)
    assert (result.exit_code, result.timed_out, result.left_elsewhere) == (-11, False, ())
    assert "rank 1 on localhost failed first" in result.stderr
    assert members(word) == ()


@pytest.mark.thorough
def test_kill_ends_the_hosts_too(sshd, tmp_path):
    """A second Ctrl-C does not wait for them, but leaves nothing there."""
    word, begun = new_mark(), tmp_path / "begun"
    code = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(begun)!r}, 'w'); time.sleep(600)"
    launcher = over_ssh(sshd, *sshd.hosts)
    results = []
    plan = launcher.plan((sys.executable, "-c", code), variables={"WORD": word}, timeout_s=600.0)
    running = threading.Thread(target=lambda: results.append(launcher.run(plan)))
    running.start()
    while running.is_alive():
        running.join(0.1)
        if begun.exists():
            launcher.kill()
    assert (results[0].killed, results[0].survivors, results[0].left_elsewhere) == (True, (), ())
    assert members(word) == ()


@pytest.mark.parametrize("wrong", ["host key", "port"])
def test_a_host_that_is_not_to_be_trusted_or_reached_is_a_result(sshd, tmp_path, wrong):
    """An unknown host key is never accepted; ssh's own words come back, and that nobody knows what runs there."""
    host = "127.0.0.1:1" if wrong == "port" else sshd.hosts[0]
    unknown = ("-o", f"UserKnownHostsFile={tmp_path / 'empty'}") if wrong == "host key" else ()
    launcher = SshLauncher.create(shape=JobShape(hosts=(host,)), options={"ssh_arg": (*unknown, *sshd.options)})
    result = launcher.run(launcher.plan(("true",), variables={}, timeout_s=PATIENT_S))
    assert result.exit_code == 255
    assert ("Host key verification failed" if wrong == "host key" else "Connection refused") in result.stderr
    assert "exit code 255" in result.left_elsewhere[0]


@pytest.fixture
def alias(sshd, tmp_path):
    """Make a host that ssh alone knows: by a name behind which it finds an address, and by a proxy."""

    def make(hostname):
        port = sshd.hosts[0].partition(":")[2]
        proxy = shlex.join(("ssh", *sshd.options, "-p", port, "-W", f"127.0.0.1:{port}", "127.0.0.1"))
        config = tmp_path / "config"
        config.write_text(
            f"Host first\n  HostName {hostname}\n  Port {port}\n  HostKeyAlias [127.0.0.1]:{port}\n"
            f"  ProxyCommand {proxy}\n"
        )
        return ("-F", str(config), *sshd.options[2:])

    return make


@pytest.mark.thorough
def test_ranks_meet_behind_the_name_that_an_alias_stands_for(sshd, alias):
    """The others do not know the alias; where they do not know the name either, the launch fails at once."""
    told = "import os; print(os.environ['MASTER_ADDR'])"
    shape = JobShape(nodes=2, hosts=("first", sshd.hosts[1]))
    launcher = SshLauncher.create(shape=shape, options={"ssh_arg": alias("127.0.0.1")})
    result = launcher.run(launcher.plan((sys.executable, "-c", told), variables={}, timeout_s=PATIENT_S))
    assert (result.exit_code, result.stdout.split()) == (0, ["127.0.0.1"] * 2), result

    launcher = SshLauncher.create(shape=shape, options={"ssh_arg": alias("first.invalid")})
    result = launcher.run(launcher.plan((sys.executable, "-c", told), variables={}, timeout_s=PATIENT_S))
    assert (result.exit_code, result.timed_out, result.stdout) == (78, False, "")
    assert find_unfit_reason(result.stderr) == f"{os.uname().nodename} does not know the address of first.invalid"


LOSES_ITS_HOST = """
import os, signal, time
from pathlib import Path
if os.environ["RANK"] == "1":
    process = os.getpid()
    while not Path(f"/proc/{process}/comm").read_text().startswith("sshd"):
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(process, signal.SIGKILL)
time.sleep(600)
"""


@pytest.mark.thorough
def test_a_host_that_is_lost_is_no_outcome_of_a_setting(sshd):
    """Its connection breaks in the middle of a trial."""
    benchmark = TorchCollectives(backend="gloo")
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=2)
    (command,) = benchmark.commands([message], folder=None)
    launcher = over_ssh(sshd, *sshd.hosts)
    plan = launcher.plan((sys.executable, "-c", LOSES_ITS_HOST), variables={}, timeout_s=600.0)
    with pytest.raises(HostLostError, match=r"a node, or the connection to it, was lost: .*localhost"):
        judge(benchmark, command, launcher.run(plan), limit_s=600.0)
