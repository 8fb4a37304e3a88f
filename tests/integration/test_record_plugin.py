"""Recording by the compiled plugin, through the real command line: two ranks that play NCCL's part."""

import os
import sys

import pytest
from program import run_program

from ncclt.core.message import Collective
from ncclt.store import open_store

NCCLT = [sys.executable, "-m", "ncclt"]
STEPS = 12
# Each rank: one broadcast of set-up, then per step two buckets of gradients and one gathering within a pair.
RANK = """
import os, sys
from contextlib import ExitStack
from pathlib import Path
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
from ncclt.nccl.tuner_table import FUNCTIONS
plugin = LoadedPlugin(Path(os.environ["NCCL_TUNER_PLUGIN"]))
steps = int(sys.argv[1])
after_step = lambda: None
if "torch" in sys.argv:
    import torch
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    def after_step():
        weight.sum().backward()
        optimizer.step()
with ExitStack() as stack:
    world = stack.enter_context(plugin.communicator(api=5, ranks=2, nodes=1, number=7))
    world.ask(FUNCTIONS.index("broadcast"), 1 << 20)
    for _ in range(steps):
        world.ask(FUNCTIONS.index("allreduce"), 25 << 20)
        world.ask(FUNCTIONS.index("allreduce"), 1 << 20)
        world.ask(FUNCTIONS.index("allgather"), 4096)
        after_step()
if "killed" in sys.argv:
    os.kill(os.getpid(), 9)
sys.exit(5)
"""
PARALLEL = """
for rank in 0 1; do RANK=$rank "$@" & pids="$pids $!"; done
for pid in $pids; do wait $pid || code=$?; done
exit $code
"""


def record(tmp_path, library, *options, command=None, words=()):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "SLURM", "OMPI", "PMI"))}
    places = {name: str(tmp_path / name) for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    command = command or ["sh", "-c", PARALLEL, "sh", sys.executable, "-c", RANK, str(STEPS), *words]
    where = ["--storage", f"sqlite:///{tmp_path}/store.db", "--dir", str(tmp_path)]
    return run_program(
        [*NCCLT, "profile", "record", "--name", "mine", "--with", "plugin", *where, *map(str, options), "--", *command],
        env=clean | places | {"NCCLT_PLUGIN": str(library)},
    )


def stored(tmp_path, name="mine"):
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        return store.workloads.get(name)


def table(workload):
    return {(c.message.collective, c.message.size_bytes): c.calls_per_step for c in workload.messages}


EXPECTED = {
    (Collective.ALL_REDUCE, 25 << 20): 1.0,
    (Collective.ALL_REDUCE, 1 << 20): 1.0,
    (Collective.ALL_GATHER, 4096): 1.0,
    (Collective.BROADCAST, 1 << 20): pytest.approx(1 / STEPS),
}


def test_calls_of_two_ranks_become_a_workload_and_the_reports_can_be_imported(tmp_path, library):
    done = record(tmp_path, library, "--steps", STEPS, "--keep", tmp_path / "raw")

    assert done.returncode == 5, done.stderr
    assert f"recorded {STEPS} steps of 2 ranks" in done.stderr
    assert "never reach a tuner" in done.stderr
    workload = stored(tmp_path)
    assert table(workload) == EXPECTED
    origin = workload.provenance
    assert (origin.source, origin.world_size, origin.ranks_read) == ("plugin_report", 2, (0, 1))
    assert origin.detail["recorded_by"] == "ncclt profile record"
    assert not list(tmp_path.glob(".ncclt-record-*"))
    files = sorted(map(str, (tmp_path / "raw" / "plugin").iterdir()))
    again = run_program(
        [*NCCLT, "profile", "import", *files, "--name", "again", "--storage", f"sqlite:///{tmp_path}/store.db"]
    )
    assert again.returncode == 0, again.stderr
    assert table(stored(tmp_path, "again")) == {key: calls * STEPS for key, calls in table(workload).items()}


def test_steps_are_counted_where_pytorch_makes_them(tmp_path, library):
    pytest.importorskip("torch")
    done = record(tmp_path, library, words=["torch"])

    assert done.returncode == 5, done.stderr
    workload = stored(tmp_path)
    assert (workload.provenance.steps, table(workload)) == (STEPS, EXPECTED)
    assert any("counted by PyTorch's optimizers" in note for note in workload.provenance.notes)


def test_a_job_that_tells_no_step_counts_as_one(tmp_path, library):
    done = record(tmp_path, library)

    assert "an unknown number of steps" in done.stderr
    assert "give their number with --steps" in done.stderr
    assert table(stored(tmp_path))[Collective.ALL_REDUCE, 25 << 20] == STEPS


def test_a_killed_rank_keeps_its_finished_reports_and_the_exit_code(tmp_path, library):
    done = record(tmp_path, library, "--steps", STEPS, words=["killed"])

    assert done.returncode == 137
    assert table(stored(tmp_path)) == EXPECTED


def test_without_a_plugin_nothing_starts(tmp_path):
    done = record(tmp_path, tmp_path / "is-not-there.so")

    assert done.returncode == 2
    assert "ncclt admin plugin build" in done.stderr
    assert not list(tmp_path.glob(".ncclt-record-*"))


def test_a_job_whose_nccl_never_loads_it_says_so(tmp_path, library):
    done = record(tmp_path, library, command=[sys.executable, "-c", "raise SystemExit(3)"])

    assert done.returncode == 3
    assert "no process wrote a report of the plugin" in done.stderr
    assert "NCCL_DEBUG=INFO" in done.stderr
    assert not list(tmp_path.glob(".ncclt-record-*"))


@pytest.mark.parametrize("keeps", [False, True])
def test_a_command_that_removes_the_folder_keeps_its_exit_code(tmp_path, library, keeps):
    keep = ["--keep", tmp_path / "raw"] if keeps else []
    done = record(tmp_path, library, "--steps", 3, *keep, command=["sh", "-c", 'rm -rf "$NCCLT_PLUGIN_REPORT"; exit 7'])

    assert done.returncode == 7, done.stderr
    assert "what the ranks wrote cannot be read" in done.stderr
    assert not list(tmp_path.glob(".ncclt-record-*"))
