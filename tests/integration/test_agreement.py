"""Ranks of real processes agree over the job's store: all use the compiled plugin's table, or all keep the default."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclt.core.nccl_version import NcclVersion
from ncclt.deliver.agree import agreement_environment, place_hook
from ncclt.nccl.tuner_plugin.build import build, compiler
from ncclt.nccl.tuner_plugin.compact_table import encode_table
from ncclt.nccl.tuner_table import table_text

pytest.importorskip("torch", reason="needs PyTorch")

ROOT = Path(__file__).parents[2]
RANKS = 8
FAULTS = {
    "no plugin": ": no tuner plugin (NCCL_TUNER_PLUGIN is not set)",
    "gone plugin": ": the tuner plugin cannot be used: /nowhere/",
    "other plugin": " has plugin ",
    "other table": " has table ",
    "cut table": ": its table cannot be used: it is damaged or was cut off",
    "other version": ": its table cannot be used: it was measured with NCCL 2.28.9, this is 2.29.7",
    "lost table": ": its table cannot be used: no table is named",
    "lost agreement": ": NCCLT_AGREEMENT is not set",
    "dropped environment": " did not answer within ",
    "late": " did not answer within ",
    "killed": " did not answer within ",
}


@pytest.fixture(scope="module")
def starts():
    """One start per fault; the last rank has it."""
    if compiler() is None:
        pytest.skip("no C compiler here")
    command = [sys.executable, ROOT / "bench" / "agreement.py", "--starts", "13", "--timeout", "8", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    told = json.loads(done.stdout)
    assert (told["starts"], told["ranks"], told["different"]) == (13, RANKS, 0)
    return {row["fault"]: row for row in told["rows"]}


def test_all_use_the_table_where_nothing_differs(starts):
    for fault in ("none", "eager"):
        assert (starts[fault]["answers"], starts[fault]["lines"]) == (["use"] * RANKS, []), fault


def test_one_odd_rank_leaves_all_with_the_default_and_one_line(starts):
    for fault, why in FAULTS.items():
        last = "ended" if fault == "killed" else "default"
        assert starts[fault]["answers"] == ["default"] * (RANKS - 1) + [last], fault
        (line,) = starts[fault]["lines"]
        assert line.startswith(f"ncclt: keeping the NCCL default on all {RANKS} ranks: rank {RANKS - 1} "), fault
        assert why in line, fault


# A rank as a launcher starts it: only the environment tells it of ncclt.
RANK = """
import os, sys
import torch.distributed as dist
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
from pathlib import Path
dist.init_process_group("gloo")
with LoadedPlugin(Path(os.environ["NCCL_TUNER_PLUGIN"])).communicator(ranks=2, nodes=1) as comm:
    Path(sys.argv[1], os.environ["RANK"]).write_text("use" if comm.ask(4, 64).costs[0] < 1 else "default")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def environ(tmp_path):
    if compiler() is None:
        pytest.skip("no C compiler here")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "PYTHONPATH"))}
    rows = ["allreduce,0,100,tree,ll,2,1,2"]
    table = encode_table(table_text(rows, table_id="r", version=NcclVersion(2, 28, 9), nodes=1, ranks=2))
    plugin = build(tmp_path / "lib" / "libnccl-tuner-ncclt.so")
    return {
        **kept, **agreement_environment(place_hook(tmp_path), {}), "NCCL_TUNER_PLUGIN": str(plugin),
        "NCCLT_TABLE": table, "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@pytest.mark.parametrize("agreement", ["hook", None])
def test_torchrun_starts_ranks_that_agree(environ, tmp_path, agreement):
    """The hook comes in by PYTHONPATH alone; without the variable the ranks keep the default."""
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "out").mkdir()
    if agreement is None:
        del environ["NCCLT_AGREEMENT"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, tmp_path / "rank.py", tmp_path / "out"], env=environ, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [path.read_text() for path in (tmp_path / "out").iterdir()]
    assert answers == ["use" if agreement else "default"] * 2
    lines = [line for line in done.stderr.splitlines() if "ncclt: " in line]
    assert len(lines) == (0 if agreement else 1)


def test_programs_without_pytorch_load_nothing_more(environ):
    code = "import sys; print(*sorted(sys.modules))"
    bare, reached = (
        subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True, timeout=120)
        for given in ({**environ, "PYTHONPATH": ""}, environ)
    )
    assert set(reached.stdout.split()) - set(bare.stdout.split()) <= {
        "__future__", "_ncclt_agreement", "_ncclt_agreement.start", "_ncclt_agreement.when_imported", "importlib",
        "importlib._bootstrap", "importlib._bootstrap_external", "importlib.machinery", "sitecustomize", "types",
        "warnings",
    }  # fmt: skip
