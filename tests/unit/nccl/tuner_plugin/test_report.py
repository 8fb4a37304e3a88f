"""What the plugin reports, at the end of a communicator and at the end of a process."""

import json
import os
import subprocess
import threading

import pytest

from ncclt.core.message import Collective
from ncclt.nccl.tuner_plugin.build import compiler
from ncclt.nccl.tuner_table import FUNCTIONS
from ncclt.profile import read_workload

ALL_REDUCE, BROADCAST = FUNCTIONS.index("allreduce"), FUNCTIONS.index("broadcast")
ROWS = "allreduce,0,65536,tree,ll,2,-1,-1\nallreduce,65537,1048576,nvls,simple,-1,-1,-1\n"


@pytest.fixture
def watched(plugin, tmp_path):
    """Open a communicator that reports to the folder `reports`."""
    (tmp_path / "table").write_text(ROWS)

    def open_with(*, api=6, number=1, ranks=8, nodes=2):
        environ = {"NCCLT_POLICY": str(tmp_path / "table"), "NCCLT_PLUGIN_REPORT": str(tmp_path / "reports")}
        return plugin.communicator(api=api, ranks=ranks, nodes=nodes, number=number, environ=environ)

    return open_with


def read(folder):
    """Return (first line, other lines) of every report."""
    found = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.iterdir(), key=lambda path: int(path.name.split(".")[-4]))
    ]
    return [(rows[0], rows[1:]) for rows in found]


def no_nvls():
    costs = [1.0] * 21
    costs[4 * 3 + 2] = -1.0
    return costs


@pytest.mark.parametrize("api", [2, 4, 6, 7])
def test_calls_are_counted_by_size_outcome_and_choice(watched, tmp_path, monkeypatch, api):
    monkeypatch.setenv("SLURM_PROCID", "11")
    monkeypatch.delenv("RANK", raising=False)
    with watched(api=api, number=0xAB) as comm:
        for _ in range(3):
            comm.ask(ALL_REDUCE, 4096)
        comm.ask(ALL_REDUCE, 1048576, costs=no_nvls(), supports=(0, 0))
        comm.ask(BROADCAST, 7)
        assert list((tmp_path / "reports").iterdir()) == []

    [(head, rows)] = read(tmp_path / "reports")
    assert head["ncclt_plugin_report"] == 1
    assert (head["tuner_api"], head["ranks"], head["nodes"], head["launch_rank"]) == (api, 8, 2, 11)
    assert head["communicator"] == ("00000000000000ab" if api > 4 else "0" * 16)
    assert (head["rows"], head["rows_here"], head["not_in_use"], head["finished"]) == (2, 2, "", True)
    assert head["pid"] == os.getpid()
    assert sorted((tuple(row.values()) for row in rows), key=lambda values: values[1]) == [
        ("broadcast", 7, "unmatched", 1),
        ("all_reduce", 4096, "applied", "tree", "ll", 2, 3),
        ("all_reduce", 1048576, "unavailable", "nvls", "simple", 0, 1),
    ]


def test_estimates_before_a_call_are_not_counted(watched, tmp_path):
    # What NCCL 2.32.3 asked on an H100 for one all_reduce: symmetric kernels alone, then all, then the call.
    nothing, all_pairs = [-1.0] * 21, [1.0] * 6 + [-1.0] * 15
    with watched() as communicator:
        assert communicator.ask(ALL_REDUCE, 4096, costs=nothing, pipe_ops=0).costs == nothing
        communicator.ask(ALL_REDUCE, 4096, costs=all_pairs, pipe_ops=0)
        asked = communicator.ask(ALL_REDUCE, 4096, costs=all_pairs)
        assert min(cost for cost in asked.costs if cost >= 0) < 1
    [(_head, rows)] = read(tmp_path / "reports")
    assert [(row["outcome"], row["calls"]) for row in rows] == [("applied", 1)]


def test_the_report_is_a_profile(watched, tmp_path):
    with watched() as comm, watched(ranks=2, nodes=1, number=2) as small:
        for _ in range(5):
            comm.ask(ALL_REDUCE, 4096)
        small.ask(BROADCAST, 64)

    workload = read_workload(sorted((tmp_path / "reports").iterdir()), name="w")

    found = {
        (m.message.collective, m.message.size_bytes, m.message.group_size): m.calls_per_step for m in workload.messages
    }
    assert found == {(Collective.ALL_REDUCE, 4096, 8): 5.0, (Collective.BROADCAST, 64, 2): 1.0}
    assert workload.provenance.detail["asked_for"] == "all_reduce 4 KiB: TREE/LL/2"


def test_threads_lose_no_count_and_more_sizes_than_counters_are_kept_by_class(watched, tmp_path):
    sizes = range(1, 6001)

    def run():
        for size in sizes:
            comm.ask(ALL_REDUCE, size)

    with watched() as comm:
        comm.ask(ALL_REDUCE, 2**63)  # which no counter can hold
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    [(_head, rows)] = read(tmp_path / "reports")
    assert sum(row["calls"] for row in rows) == 4 * len(sizes) + 1
    exact = [row for row in rows if "size_bytes" in row]
    assert 3500 < len(exact) <= 4096
    assert all(row["calls"] <= 4 for row in exact)
    assert {row["size_class_bytes"] for row in rows if "size_bytes" not in row} <= {2**n for n in (*range(13), 63)}


def test_a_refused_table_is_reported_with_its_reason(plugin, tmp_path):
    environ = {
        "NCCLT_POLICY": str(tmp_path / 'no"where'),
        "NCCLT_PLUGIN_REPORT": str(tmp_path / "reports"),
        "NCCLT_AGREEMENT": "hook",
    }
    with plugin.communicator(ranks=8, nodes=1, environ=environ) as comm:
        comm.ask(ALL_REDUCE, 64)

    [(head, [row])] = read(tmp_path / "reports")
    assert head["policy"] == str(tmp_path / 'no"where')
    assert "cannot be opened" in head["not_in_use"]
    assert row["outcome"] == "unmatched"


def test_a_folder_that_cannot_be_written_to_is_said_and_harms_nothing(plugin, tmp_path):
    (tmp_path / "reports").write_text("a file")
    with plugin.communicator(ranks=8, nodes=1, environ={"NCCLT_PLUGIN_REPORT": str(tmp_path / "reports")}) as comm:
        comm.ask(ALL_REDUCE, 64)

    assert "no report" in comm.log[0]


ENDING = """
import ctypes, os, sys
from pathlib import Path
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
from ncclt.nccl.tuner_table import FUNCTIONS
plugin = LoadedPlugin(Path(sys.argv[1]))
opened = plugin.communicator(ranks=8, nodes=2)
comm = opened.__enter__()
comm.ask(4, 64)
child = os.fork()
if child == 0:
    comm.ask(4, 64)
    if "close" in sys.argv:
        opened.__exit__(None, None, None)
    if "own" in sys.argv:
        own = plugin.communicator(ranks=2, nodes=1)
        own.__enter__().ask(4, 64)
    ctypes.CDLL(None).exit(0)  # as a worker of a data loader ends: with exit handlers
assert os.waitpid(child, 0)[1] == 0
assert "own" in sys.argv or not list(Path(os.environ["NCCLT_PLUGIN_REPORT"]).glob("*"))
comm.ask(4, 64)
ctypes.CDLL(None).exit(0)  # with the communicator open
"""

VERSION_STUB = "int ncclGetVersion(int *version) { *version = 22907; return 0; }\n"


def test_a_process_that_ends_reports_once_and_knows_its_nccl(run_code, tmp_path):
    """Communicators are often left open; forked children end as well, and have nothing to report."""
    (tmp_path / "stub.c").write_text(VERSION_STUB)
    stub = tmp_path / "libnccl.so"
    subprocess.run([compiler(), "-shared", "-fPIC", "-o", stub, tmp_path / "stub.c"], check=True)
    (tmp_path / "table").write_text(f"# ncclt-table 1 id=r nccl=2.29.7\n{ROWS}")
    places = {"NCCLT_POLICY": str(tmp_path / "table"), "NCCLT_PLUGIN_REPORT": str(tmp_path / "reports")}

    done = run_code(ENDING, LD_PRELOAD=str(stub), **places)

    assert done.returncode == 0, done.stderr
    [(head, [row])] = read(tmp_path / "reports")
    assert (head["finished"], head["nccl"]) == (False, "2.29.7")
    assert (row["outcome"], row["calls"]) == ("applied", 2)


@pytest.mark.parametrize(("word", "reports"), [("own", [(2, False, 1), (8, False, 2)]), ("close", [(8, False, 2)])])
def test_a_child_reports_a_communicator_of_its_own_and_none_of_its_parent(run_code, tmp_path, word, reports):
    assert run_code(ENDING, word, NCCLT_PLUGIN_REPORT=str(tmp_path)).returncode == 0
    assert sorted((head["ranks"], head["finished"], row["calls"]) for head, [row] in read(tmp_path)) == reports
