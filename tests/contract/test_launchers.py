"""Every launcher that can be tried without a cluster keeps the contract; ssh and Slurm do so in tests/integration."""

import importlib.util
import os
import shutil

import pytest

from ncclt.launch import LAUNCHERS, launcher_class
from ncclt.launch.launcher import JobShape, Launcher
from ncclt.launch.local import LocalLauncher
from ncclt.launch.mpi import MpirunLauncher, ask_mpi_flavour
from ncclt.launch.torchrun import TorchrunLauncher
from ncclt.testing.launcher_contract import LauncherContract

TWO = JobShape(processes_per_node=2)


class TestLocalLauncher(LauncherContract):
    """The launcher for this machine."""

    def launcher(self) -> Launcher:
        return LocalLauncher(environment=os.environ, grace_s=0.3)

    def refused(self) -> Launcher:
        return LocalLauncher(environment=os.environ, extra=("/nowhere/numactl",))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
class TestTorchrunLauncher(LauncherContract):
    """Two ranks on this machine, by torchrun."""

    def launcher(self) -> Launcher:
        return TorchrunLauncher(shape=TWO, grace_s=0.3)

    def refused(self) -> Launcher:
        return TorchrunLauncher(shape=TWO, extra=("--no-such-option",))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
class TestMpirunLauncher(LauncherContract):
    """Two ranks on this machine, by the mpirun that is here."""

    def launcher(self) -> Launcher:
        flavour = ask_mpi_flavour("mpirun", environ=os.environ)
        return MpirunLauncher(flavour=flavour, shape=TWO, as_root=os.geteuid() == 0, grace_s=0.3)

    def refused(self) -> Launcher:
        flavour = ask_mpi_flavour("mpirun", environ=os.environ)
        return MpirunLauncher(flavour=flavour, shape=TWO, as_root=os.geteuid() == 0, extra=("--no-such-option",))


@pytest.mark.usefixtures("open_mpi")
def test_every_launcher_of_the_table_is_named_as_it_calls_itself():
    for name in LAUNCHERS:
        kind = launcher_class(name)
        hosts = () if kind.shares_files or kind.chooses_nodes else ("n1",)
        assert kind.name == kind.create(shape=JobShape(hosts=hosts)).name == name
