"""The plans of torchrun, mpirun and ssh word by word, pinned by golden files."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ncclt.errors import InputError, UsageError
from ncclt.launch.launcher import JobShape
from ncclt.launch.mpi import MpiFlavour, MpirunLauncher
from ncclt.launch.ssh import launcher as ssh
from ncclt.launch.ssh.launcher import SshLauncher
from ncclt.launch.torchrun import TorchrunLauncher

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "launch"
COMMAND = ("/opt/nccl-tests/all_reduce_perf", "-b", "8M", "-e", "64M")
VARIABLES = {"NCCL_ALGO": "allreduce:ring,tree;broadcast:ring", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}
ENVIRONMENT = {
    "PATH": "/opt/mpi/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/opt/nccl/lib",
    "HOME": "/home/me",
    "NCCL_BUFFSIZE": "1",
    "NCCL_DEBUG": "INFO",
}
ONE_NODE = JobShape(processes_per_node=8)
TWO_NODES = JobShape(nodes=2, processes_per_node=8, hosts=("gpu01", "gpu02"))
BY_LIST = ENVIRONMENT | {"OMPI_MCA_mca_base_env_list": "UCX_TLS;NCCL_ALGO;PATH"}


def over_mpi(flavour, shape, **options):
    return MpirunLauncher(flavour=flavour, shape=shape, **{"environment": ENVIRONMENT, **options})


KEPT = tuple(name for name in ENVIRONMENT if name.startswith(("NCCL_", "NCCLT_")) and name != "NCCL_DEBUG")


LAUNCHERS = {
    "torchrun": TorchrunLauncher(shape=ONE_NODE, python="/venv/bin/python", environment=ENVIRONMENT),
    "torchrun_kept": TorchrunLauncher(
        shape=ONE_NODE, keep_env=KEPT, extra=("--numa-binding", "node"), python="python", environment=ENVIRONMENT
    ),
    "openmpi_one_node": over_mpi(MpiFlavour.OPEN_MPI, ONE_NODE, as_root=True),
    "openmpi_two_nodes": over_mpi(MpiFlavour.OPEN_MPI, TWO_NODES, extra=("--mca", "pml", "ucx")),
    "openmpi_allocation": over_mpi(
        MpiFlavour.OPEN_MPI, JobShape(nodes=2, processes_per_node=8), environment=BY_LIST, keep_env=KEPT
    ),
    "mpich": over_mpi(MpiFlavour.MPICH, TWO_NODES, keep_env=KEPT),
    "intelmpi": over_mpi(MpiFlavour.INTEL_MPI, TWO_NODES),
    "ssh": SshLauncher(
        shape=JobShape(nodes=2, processes_per_node=8, hosts=("gpu01", "me@gpu02:2222")),
        ssh_args=("-i", "/home/me/.ssh/cluster"),
        python="/venv/bin/python",
        environment=ENVIRONMENT,
        cwd=Path("/data/my training"),
    ),
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_golden_plan(name, monkeypatch, check_golden):
    """Run once with NCCLT_UPDATE_GOLDEN=1 after a wanted change, and read the difference."""
    monkeypatch.setattr(ssh, "_DRIVER", ("python", *ssh._DRIVER[1:]))  # which Python runs these tests does not matter
    plan = asdict(LAUNCHERS[name].plan(COMMAND, variables=VARIABLES, timeout_s=120.0))
    files = plan.pop("files")
    # Scripts are shown as they are written: one line each.
    text = json.dumps(plan, indent=1) + "\n" + "".join(f"\n--- {file}\n{content}" for file, content in files)
    check_golden(GOLDEN / f"{name}.txt", text)


def test_inherited_variables_can_be_shown(subtests):
    """By name, for all alike."""
    for name in LAUNCHERS:
        with subtests.test(name=name):
            assert LAUNCHERS[name].inherited == ("NCCL_BUFFSIZE", "NCCL_DEBUG")


def test_ranks_of_torch_can_be_told_where_to_meet():
    """What the trial says goes before what we would say."""
    variables = {"MASTER_ADDR": "ib-gpu01", "MASTER_PORT": "4711", "OMP_NUM_THREADS": "6"}
    argv = LAUNCHERS["openmpi_two_nodes"].plan(COMMAND, variables=variables, timeout_s=1.0).argv
    assert [word for word in argv if word.partition("=")[0] in variables] == [f"{n}={v}" for n, v in variables.items()]
    script = dict(LAUNCHERS["ssh"].plan(COMMAND, variables=variables, timeout_s=1.0).files)["node.sh"]
    assert "--master-addr ib-gpu01 --master-port 4711" in script


def test_torchrun_is_for_one_node():
    """The hint says what is for several."""
    with pytest.raises(UsageError) as caught:
        TorchrunLauncher.create(shape=TWO_NODES)
    assert "ssh" in caught.value.hint


def test_mpirun_takes_bare_names(subtests):
    """Open MPI would read a port as a number of slots."""
    cases = ["me@gpu01", "gpu01:2222", "gpu01,gpu02", "--mca"]
    for host in cases:
        with subtests.test(host=host), pytest.raises(UsageError):
            over_mpi(MpiFlavour.OPEN_MPI, JobShape(hosts=(host,)))


def test_ssh_needs_hosts():
    with pytest.raises(UsageError, match="names of the hosts"):
        SshLauncher.create(shape=JobShape(nodes=2))


def test_ssh_brings_files_under_names_that_differ(tmp_path):
    """The command reads them in the folder that the launch has there."""
    files = [tmp_path / folder / "worker.py" for folder in ("one", "two")]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"# {file.parent.name}\n")
    plan = LAUNCHERS["ssh"].plan(("python", *map(str, files)), variables={}, timeout_s=1.0, files=files)
    script = dict(plan.files)["node.sh"]
    assert '-- python "$folder"/0-worker.py "$folder"/1-worker.py' in script
    assert "printf %s '# two\n' >\"$folder\"/1-worker.py" in script
    with pytest.raises(InputError):
        LAUNCHERS["ssh"].plan(("python",), variables={}, timeout_s=1.0, files=[tmp_path / "nowhere.py"])
