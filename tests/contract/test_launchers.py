"""Every launcher that can be tried without a cluster keeps the contract."""

import os

from ncclt.launch import LAUNCHERS, launcher_module
from ncclt.launch.launcher import Launcher
from ncclt.launch.local import LocalLauncher
from ncclt.testing.launcher_contract import LauncherContract


class TestLocalLauncher(LauncherContract):
    """The launcher for this machine."""

    def launcher(self) -> Launcher:
        return LocalLauncher(environment=os.environ, grace_s=0.3)


def test_every_launcher_of_the_table_is_named_as_it_calls_itself():
    """The table's word, the module's launcher and its own name are the same."""
    for name in LAUNCHERS:
        assert launcher_module(name).create().name == name
