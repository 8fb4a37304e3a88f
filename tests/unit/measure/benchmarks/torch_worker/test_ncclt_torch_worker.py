"""The worker's job side: where a rank stands, how ranks agree, how the world is cut, what is reported."""

import ast
import base64
import contextlib
import json
import re
import sys
import threading
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.measure.benchmarks.torch_collectives import MEASURING, WORKER
from ncclt.measure.benchmarks.torch_worker import ncclt_torch_worker as worker
from ncclt.measure.persistent.session import CONNECTION, SESSION

MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "GROUP_RANK": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"}
SLURM = {"SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "2", "SLURM_NODEID": "1"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


@pytest.mark.parametrize("file", [WORKER, MEASURING, SESSION, CONNECTION], ids=lambda file: file.name)
def test_the_shipped_files_need_python_3_9_and_pytorch_alone(file):
    """They run in images where ncclt is not, and whose Python may be old."""
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) <= {"torch"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, (3, 8, 1, "node 1")),
        (OPEN_MPI, (4, 8, 0, "here")),
        (MPICH, (5, 8, 1, "here")),
        (SLURM, (6, 8, 2, "node 1")),
        (SLURM | TORCHRUN, (3, 8, 1, "node 1")),
        (BATCH_SCRIPT | OPEN_MPI, (4, 8, 0, "here")),
        (SLURM | {"PMI_RANK": "6", "PMI_SIZE": "8"}, (6, 8, 2, "node 1")),  # srun --mpi=pmi2
        (OPEN_MPI | {"NCCL_HOSTID": "fake4"}, (4, 8, 0, "fake4")),
    ],
)
def test_a_rank_finds_its_place(environ, expected, monkeypatch):
    """Each launcher's own variables; the one that started this process goes before those around it."""
    monkeypatch.setattr(worker.socket, "gethostname", lambda: "here")

    place = worker.find_place(environ | MASTER)

    assert (place.rank, place.world_size, place.local_rank, place.node) == expected


def test_a_process_without_a_place_says_what_is_missing(subtests):
    """A batch script has a SLURM_PROCID and is no rank."""
    cases = [
        ({}, "no launcher"),
        (MASTER, "no launcher"),
        (BATCH_SCRIPT | MASTER, "no launcher"),
        (SLURM, "MASTER_ADDR"),
    ]
    for environ, reason in cases:
        with subtests.test(environ=environ), pytest.raises(worker.RefusedError, match=reason):
            worker.find_place(environ)


def _on_ranks(world_size, act, timeout_s=60.0):
    """Run `act(agreement, rank)` on threads as ranks over one store; return what each gave or raised."""
    dist = pytest.importorskip("torch.distributed")
    store, results = dist.HashStore(), [None] * world_size

    def run(rank):
        try:
            results[rank] = act(worker.Agreement(store, rank, world_size, timeout_s), rank)
        except Exception as error:  # noqa: BLE001  the test looks at it
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_agree_on_what_rank_0_decides():
    """Rank 0 hears all in their order; every rank gets the same answer, again and again."""

    def act(agreement, rank):
        first = agreement.reach(rank * 10, lambda said: said)
        second = agreement.reach({"rank": rank}, lambda said: sum(s["rank"] for s in said))
        agreement.leave()
        return first, second

    assert _on_ranks(3, act) == [([0, 10, 20], 3)] * 3


def test_one_rank_with_a_problem_stops_all():
    """Nobody waits in a collective for a rank that had no memory."""

    def act(agreement, rank):
        agreement.require("")
        agreement.require("no memory" if rank == 2 else "")

    results = _on_ranks(3, act)
    assert [(type(r), str(r)) for r in results] == [(worker.RefusedError, "no memory")] * 3


def test_silent_ranks_are_named():
    """Rank 0 knows who has not spoken; the others know that rank 0 has not."""

    def act(agreement, rank):
        if rank not in (1, 3):
            agreement.reach("here", lambda said: said)

    results = _on_ranks(4, act, timeout_s=1.5)

    assert str(results[0]) == "no response from rank 1, 3 in 1.5 s"
    assert str(results[2]) == "no response from rank 0 in 1.5 s"


def _facts(node="a", problem="", **equal):
    return {"host": f"host-{node}", "node": node, "device": "cpu", "index": -1, "problem": problem, "equal": equal}


def test_equal_ranks_may_go_on():
    """Ranks of a node need not be neighbours; what may differ does."""
    ranks = [
        _facts("a", NCCL_ALGO="Ring"),
        _facts("b", NCCL_ALGO="Ring", NCCL_IB_HCA="mlx5_1"),
        _facts("a", NCCL_ALGO="Ring"),
    ]

    job = worker.examine(ranks)

    assert job["problem"] == ""
    assert job["nodes"] == [[0, 2], [1]]
    assert job["hosts"] == ["host-a", "host-b", "host-a"]


def test_ranks_that_differ_may_not_go_on(subtests):
    """What a rank says about itself goes first."""
    cases = [
        (_facts("b", NCCL_ALGO="Tree"), "NCCL_ALGO is Ring on rank 0 and Tree on rank 1 on host-b: NCCL would hang"),
        (_facts("b"), "NCCL_ALGO is Ring on rank 0 and unset on rank 1 on host-b: NCCL would hang"),
        (_facts("b", NCCL_ALGO="Ring", NCCL_PROTO="LL"), "NCCL_PROTO is unset on rank 0 and LL on rank 1 on host-b"),
        (_facts("b", problem="no GPU", NCCL_ALGO="Tree"), "rank 1 on host-b: no GPU"),
    ]
    for other, problem in cases:
        with subtests.test(other=other):
            assert worker.examine([_facts("a", NCCL_ALGO="Ring"), other])["problem"].startswith(problem)


def test_the_world_is_cut_as_a_training_cuts_it(subtests):
    """Neighbours within nodes; equal places across nodes, evenly over as many nodes as possible."""
    cases = [
        ([[0, 1], [2, 3]], 4, True, [[0, 1, 2, 3]]),
        ([[0, 1], [2, 3]], 2, False, [[0, 1], [2, 3]]),
        ([[0, 1], [2, 3]], 2, True, [[0, 2], [1, 3]]),
        ([[0, 2], [1, 3]], 2, False, [[0, 2], [1, 3]]),
        ([[0, 2], [1, 3]], 2, True, [[0, 1], [2, 3]]),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], 4, True, [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], 2, False, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([[0, 1], [2, 3], [4, 5], [6, 7]], 2, True, [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ]
    for nodes, group_size, across, groups in cases:
        with subtests.test(nodes=nodes):
            assert worker.plan_groups(nodes, group_size, across) == groups


def test_groups_that_do_not_exist_are_refused(subtests):
    """No group is made up: larger than the world, not dividing it, or across the nodes of a single one."""
    cases = [
        ([[0, 1]], 3, False),
        ([[0, 1]], 4, True),
        ([[0, 1, 2, 3]], 2, True),
        ([[0, 1], [2, 3]], 3, True),
        ([[0, 1, 2], [3]], 2, False),
    ]
    for nodes, group_size, across in cases:
        with subtests.test(nodes=nodes), pytest.raises(worker.RefusedError, match=f"groups of {group_size}"):
            worker.plan_groups(nodes, group_size, across)


@given(
    per_node=st.integers(1, 5),
    nodes=st.integers(1, 5),
    group_size=st.integers(2, 12),
    across=st.booleans(),
    data=st.data(),
)
def test_a_cut_leaves_nobody_out(per_node, nodes, group_size, across, data):
    """Every rank is in one group, all groups are as large as asked, and they span nodes as asked."""
    ranks = data.draw(st.permutations(range(per_node * nodes)))
    layout = [sorted(ranks[i * per_node :][:per_node]) for i in range(nodes)]
    with contextlib.suppress(worker.RefusedError):
        groups = worker.plan_groups(layout, group_size, across)
        assert sorted(rank for group in groups for rank in group) == sorted(ranks)
        assert {len(group) for group in groups} == {group_size}
        assert all(group == sorted(group) for group in groups)
        spans = [len({i for i, node in enumerate(layout) if set(node) & set(group)}) for group in groups]
        whole = group_size == per_node * nodes
        assert whole or all((count > 1) == across for count in spans)


def test_a_result_is_a_whole_file_or_short_lines(tmp_path, capsys):
    """Where the folder is, the file; where it is not (another node), lines that launchers do not cut."""
    for output in (tmp_path / "result.json", tmp_path / "elsewhere" / "result.json", None):
        report = worker.WorkerReport(output)
        report.document["measurements"] = [{"message": str(i), "samples_us": [i * 1.37]} for i in range(500)]
        report.write()
        if output == tmp_path / "result.json":
            assert json.loads(output.read_text()) == report.document
            assert capsys.readouterr().out == ""
            continue
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) > 2
        assert max(map(len, lines)) < 600
        letters = "".join(re.fullmatch(r"NCCLT-RESULT \d+/\d+ [0-9a-f]{8} (\S+)\.", line)[1] for line in lines)
        assert json.loads(zlib.decompress(base64.b64decode(letters))) == report.document
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_only_rank_0_reports(tmp_path, capsys):
    """The other ranks have no samples."""
    report = worker.WorkerReport(tmp_path / "result.json")
    report.rank = 1
    report.write()

    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""


def test_a_process_without_rank_ends_with_a_reason(monkeypatch, capsys):
    """Started by hand without a launcher, it says so in one line and in the result."""
    for name in [name for row in worker.LAUNCHERS for name in row if name]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(worker.gc, "disable", lambda: None)

    assert worker.main(["--messages", "all_reduce:float32:8:2"]) == 1

    captured = capsys.readouterr()
    assert "NCCLT-RESULT 1/1" in captured.out
    assert re.search(r"^ncclt: rank 0 on \S+ failed after \d+\.\d{6} s: no launcher has given", captured.err)


@pytest.mark.parametrize(
    ("rank", "error", "code", "said"),
    [
        (0, worker.RefusedError("no memory"), 1, "no memory"),
        (1, worker.RefusedError("no memory"), 0, ""),
        (1, ValueError("broken"), 1, "ValueError: broken"),
    ],
)
def test_what_every_rank_knows_fails_rank_0_alone(monkeypatch, capsys, rank, error, code, said):
    """A launcher that saw another rank fail would end rank 0 while it still reports."""

    def run(options, report):
        report.rank = rank
        raise error

    monkeypatch.setattr(worker.gc, "disable", lambda: None)
    monkeypatch.setattr(worker, "run", run)

    assert worker.main(["--messages", "all_reduce:float32:8:2"]) == code
    heard = capsys.readouterr().err
    assert bool(heard) == bool(said)
    assert heard.rstrip().endswith(said)


@pytest.mark.parametrize(
    ("visible", "local_rank", "built", "index", "problem"),
    [
        (8, 3, True, 3, ""),
        (1, 3, True, 0, ""),
        (8, 8, True, -1, "it is number 8 on its node, where PyTorch sees 8 GPUs"),
        (0, 0, True, -1, "it is number 0 on its node, where PyTorch sees 0 GPUs"),
        (8, 0, False, -1, "is built without NCCL"),
    ],
)
def test_a_rank_takes_the_gpu_of_its_place(visible, local_rank, built, index, problem, monkeypatch):
    """Where a launcher shows each rank one GPU, that is the one."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"GPU {number}")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: built)
    monkeypatch.setenv("NCCL_ALGO", "Ring")

    facts = worker.describe_self(worker.RankPlace(0, 8, local_rank, "a"), "nccl")

    assert facts["index"] == index
    assert facts["problem"].endswith(problem) if problem else facts["problem"] == ""
    assert facts["equal"]["NCCL_ALGO"] == "Ring"
    assert facts["equal"].get("version of NCCL") == (None if problem else "2.28.9")
