"""Ranks of real processes agree over the job's store: all use the compiled plugin's table, or all keep the default."""

import json
import os
import sys
from pathlib import Path

import pytest
from ports import free_port
from program import run_program

from ncclt.core.nccl_version import NcclVersion
from ncclt.deliver.agree import agreement_environment, hook_path, write_hook
from ncclt.nccl.tuner_plugin.build import build, compiler
from ncclt.nccl.tuner_plugin.compact_table import MOST_BYTES, encode_table
from ncclt.nccl.tuner_table import table_text

pytest.importorskip("torch", reason="needs PyTorch")

ROOT = Path(__file__).parents[2]
RANKS = 3
"""One that is odd, and two that are not."""
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
    command = [sys.executable, ROOT / "bench" / "agreement.py", "--starts", "13", "--ranks", str(RANKS)]
    command += ["--timeout", "5", "--json"]
    done = run_program(command)
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


def table_of(rows):
    return table_text(rows, table_id="r", version=NcclVersion(2, 28, 9), nodes=1, ranks=2)


@pytest.fixture
def environ(tmp_path):
    if compiler() is None:
        pytest.skip("no C compiler here")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "PYTHONPATH"))}
    rows = ["allreduce,0,100,tree,ll,2,1,2"]
    table = encode_table(table_of(rows))
    write_hook(hook_path(tmp_path))
    plugin = build(tmp_path / "lib" / "libnccl-tuner-ncclt.so")
    return {
        **kept,
        **agreement_environment(hook_path(tmp_path), {}),
        "NCCL_TUNER_PLUGIN": str(plugin),
        "NCCLT_TABLE": table,
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.thorough
def test_ranks_without_the_variable_of_the_agreement_keep_the_default(environ, tmp_path):
    """Although the hook comes in by PYTHONPATH."""
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "out").mkdir()
    del environ["NCCLT_AGREEMENT"]
    # As torchrun starts them, without its own imports.
    ranks = 'for RANK in 0 1; do RANK=$RANK "$@" & pids="$pids $!"; done; for pid in $pids; do wait $pid || exit; done'
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = run_program(
        ["sh", "-c", ranks, "sh", sys.executable, tmp_path / "rank.py", tmp_path / "out"], env=environ | world
    )
    assert done.returncode == 0, done.stderr
    answers = [path.read_text() for path in (tmp_path / "out").iterdir()]
    assert answers == ["default"] * 2
    lines = [line for line in done.stderr.splitlines() if "ncclt: " in line]
    assert len(lines) == 1


def run_torchrun(environ, folder, rows, *, rank=RANK, **changes):
    """Run two ranks as a user does, and return their answers and what ncclt said."""
    (folder / "rank.py").write_text(rank)
    (folder / "out").mkdir(exist_ok=True)
    (folder / "table.csv").write_text(table_of(rows))
    ours = ("NCCLT_TABLE", "NCCLT_AGREEMENT", "PYTHONPATH", "NCCL_TUNER_PLUGIN")
    given = {name: value for name, value in environ.items() if name not in ours}
    given |= {"NCCLT_PLUGIN": environ["NCCL_TUNER_PLUGIN"], "XDG_CACHE_HOME": str(folder)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run_program(
        [*RUN, "--policy", folder / "table.csv", "--", *torchrun, folder / "rank.py", folder / "out"],
        env=given | changes,
    )
    assert done.returncode == 0, done.stderr
    answers = [path.read_text() for path in (folder / "out").iterdir()]
    lines = [line for line in done.stderr.splitlines() if "ncclt: " in line and "Accepted differences" not in line]
    return answers, lines


RUN = [sys.executable, "-m", "ncclt", "run", "--allow-difference", "NO_GPU"]
ODD = (
    """
import os
if os.environ["RANK"] == "1":
    del os.environ["NCCLT_TABLE"]
"""
    + RANK
)


def test_ncclt_run_lets_the_ranks_of_torchrun_agree(environ, tmp_path):
    """That they use a table on which they agree is shown below, and of a short one by `starts`."""
    rows = ["allreduce,0,100,tree,ll,2,1,2"]
    answers, lines = run_torchrun(environ, tmp_path, rows, rank=ODD)
    assert answers == ["default"] * 2
    (line,) = lines
    assert "keeping the NCCL default on all 2 ranks: rank 1 on " in line
    assert line.endswith("its table cannot be used: no table is named")


@pytest.mark.thorough
def test_a_table_above_32_kib_is_a_file_whose_change_leaves_all_with_the_default(environ, tmp_path):
    rows = [f"allreduce,{1000 * i},{1000 * i + 999},ring,ll,{1 + i % 32},1,2" for i in range(4096)]
    assert len(encode_table(table_of(rows))) > MOST_BYTES
    rows[0] = "allreduce,0,999,tree,ll,2,1,2"
    assert run_torchrun(environ, tmp_path, rows) == (["use"] * 2, [])

    edits = f"open({str(tmp_path / 'table.csv')!r}, 'a').write('#\\nallreduce,0,1,ring,ll,1,1,2\\n')\n"
    answers, (line,) = run_torchrun(environ, tmp_path, rows, rank=f"{edits}{RANK}")
    assert answers == ["default"] * 2
    assert "its table cannot be used: " in line


def test_programs_without_pytorch_load_nothing_more(environ):
    code = "import sys; print(*sorted(sys.modules))"
    bare, reached = (
        run_program([sys.executable, "-c", code], env=given, check=True)
        for given in ({**environ, "PYTHONPATH": ""}, environ)
    )
    assert set(reached.stdout.split()) - set(bare.stdout.split()) <= {
        "__future__",
        "_ncclt_agreement",
        "_ncclt_agreement.start",
        "_ncclt_agreement.when_imported",
        "importlib",
        "importlib._bootstrap",
        "importlib._bootstrap_external",
        "importlib.machinery",
        "sitecustomize",
        "types",
        "warnings",
    }
