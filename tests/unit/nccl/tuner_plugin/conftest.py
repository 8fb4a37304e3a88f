"""The plugin, compiled once per session with warnings as errors."""

import os
import subprocess
import sys

import pytest

from ncclt.measure.benchmarks.torch_worker.ncclt_torch_session import RankTable
from ncclt.nccl.tuner_plugin.build import build, compiler
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
from ncclt.nccl.tuner_plugin.shared_table import LAYOUT, lay_out_table


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    if compiler() is None:
        pytest.skip("no C compiler here: the plugin cannot be built")
    return build(tmp_path_factory.mktemp("plugin") / "libnccl-tuner-ncclt.so", extra=("-Werror",))


@pytest.fixture(scope="session")
def plugin(library):
    return LoadedPlugin(library)


@pytest.fixture
def run_code(library):
    """Run Python, whose first argument is the plugin, in a process of its own."""

    def run(code, *arguments, **environ):
        words = [sys.executable, "-c", code, library, *map(str, arguments)]
        return subprocess.run(
            words, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@pytest.fixture
def opened(plugin, tmp_path):
    """Open a communicator over a table of these rows."""

    def open_with(*rows, ranks=16, nodes=2, **options):
        table = tmp_path / "table.csv"
        table.write_text("".join(f"{row}\n" for row in rows))
        environ = {
            "NCCLT_POLICY": str(table),
            "NCCLT_TABLE": None,
            "NCCLT_POLICY_SHM": None,
            "NCCLT_PLUGIN_REPORT": None,
        }
        return plugin.communicator(ranks=ranks, nodes=nodes, environ=environ, **options)

    return open_with


class SharedTable:
    """The table of one rank, written by the rank's own code from the controller's orders."""

    def __init__(self):
        self._memory, self._generation = RankTable(LAYOUT), 0
        self.path = self._memory.path

    def publish(self, rows):
        self._memory.publish(**lay_out_table(rows, self._generation + 1))
        self._generation += 1


@pytest.fixture
def table():
    return SharedTable()
