"""The modules of bench/gpu alone: patterns, grids, options, and what they need of a machine."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ncclt.core.message import Collective, Message

pytestmark = pytest.mark.thorough

SCRIPTS = Path(__file__).parents[2] / "bench" / "gpu"
MODULES = ("nccl", "device", "messages", "recipes", "ranks", "live", "landscape", "plugin_loads", "choices")
KIB = 1 << 10
PATIENCE_S = 600


@pytest.fixture(scope="module")
def scripts():
    """Let a test import the scripts' modules, whose names are too short to stay known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
            patch.setitem(sys.modules, name, importlib.import_module(name))
        yield


@pytest.mark.parametrize(
    "arguments", [["--part", "4"], ["--part", "3"], ["--minutes", "soon"], ["--minutes", "1"], ["--fast"], []]
)
def test_all_sh_refuses_what_it_does_not_know(tmp_path, arguments):
    environ = {name: value for name, value in os.environ.items() if name != "OUT"}
    where = [] if not arguments else [tmp_path]
    done = subprocess.run(["sh", SCRIPTS / "all.sh", *where, *arguments], capture_output=True, text=True, env=environ)

    assert done.returncode == 2
    assert done.stderr.startswith("all.sh: ")


def test_a_bare_machine_with_numpy_can_run_all_but_the_search(scripts):
    program = (
        "import sys\n"
        "for name in ('optuna', 'sqlalchemy', 'scipy', 'torch', 'typer', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "import landscape, plugin_loads, supports, worker\n"
        "print(len(landscape.workload_of('bert').messages))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SCRIPTS)}
    )
    assert done.stdout == "4\n", done.stderr


def test_a_landscape_has_the_channels_that_the_search_tries(scripts):
    import landscape

    from ncclt.search.space import CHANNEL_LADDER

    assert landscape.CHANNELS == CHANNEL_LADDER


def test_copies_of_the_real_library_load_beside_each_other(scripts, tmp_path):
    real = os.environ.get("NCCLT_TEST_NCCL")
    if not real:
        pytest.skip("NCCLT_TEST_NCCL names no libnccl.so.2: the real library was not tried")
    program = (
        "import os, shutil, sys\nfrom pathlib import Path\nfrom nccl import Library\n"
        "for number in range(2):\n"
        "    path = Path(sys.argv[2]) / f'copy-{number}.so'\n"
        "    shutil.copyfile(sys.argv[1], path)\n"
        "    library = Library(path)\n"
        "    path.unlink()\n"
        "    print(library.version(), bytes(library.unique_id()).hex())\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(SCRIPTS), "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
    done = subprocess.run(
        [sys.executable, "-c", program, real, tmp_path], capture_output=True, text=True, env=environ, timeout=PATIENCE_S
    )
    (first, one), (second, other) = (line.split() for line in done.stdout.splitlines())
    assert first == second
    assert first.startswith("2.")
    assert one != other


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_a_chunk_in_another_chunks_place_does_not_look_right(scripts, name):
    import messages

    message = Message(collective=Collective(name), dtype="float32", size_bytes=64 * KIB)
    ranks = 4
    whole = [messages.sent(rank, 16 * KIB, "float32") for rank in range(ranks)]
    count = messages.count_of(message, ranks)
    right = {
        "all_reduce": sum(whole)[:count],
        "reduce": sum(whole)[:count],
        "broadcast": whole[0][:count],
        "reduce_scatter": sum(whole)[:count],
        "all_gather": np.concatenate([part[:count] for part in whole]),
    }[name]
    assert messages.wrong_elements(right, message, 0, ranks) == 0
    moved = np.roll(right, 1024)
    assert messages.wrong_elements(moved, message, 0, ranks) > len(right) // 4
    assert messages.wrong_elements(np.zeros_like(right), message, 0, ranks) > len(right) // 4
