"""The hint of an error, followed to the letter, leads to a workload."""

import gzip

import pytest

from ncclt.errors import NccltError
from ncclt.profile import read_workload, reader_names

HEADER = "collective,size_bytes,calls"
ROW = "all_reduce,1048576,2"
UNDECIDED = """#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576         32768     float    none      -1    50.00   20.97   18.35      0    50.00   20.97   18.35      0
# Avg bus bandwidth    : 18.35
"""
COMMANDS = (
    "alltoall_perf -b 8 ...",
    "`alltoall_perf -b 8 ...`",
    "# alltoall_perf -b 8 -e 1M -g 8",
    "srun -n 8 /opt/nccl-tests/alltoall_perf_mpi -b 8",
)
MEGATRON = (
    "INFO:megatron.core:Setting up DistributedDataParallel with config DistributedDataParallelConfig("
    "overlap_grad_reduce=True, use_distributed_optimizer=False)\n"
    "INFO:megatron.core:Number of buckets for gradient all-reduce / reduce-scatter: 1\n"
)
BUCKET = "Params for bucket 1 (1000 elements):\n"
CALL = (
    "n:1:9 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f recvbuff 0x7f count 1024 datatype 7 op 0 root 0 "
    "comm 0x5 [nranks=2] stream 0x1\n"
)
START = (
    "n:1:9 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x7 "
    "- Init COMPLETE\n"
)

CASES = {  # words of the hint, the text that is refused, and the text that its hint asks for
    **{
        f"command {number}": ("put the command", UNDECIDED, f"{command}\n{UNDECIDED}")
        for number, command in enumerate(COMMANDS)
    },
    "nccl-tests 2.17": (
        "or use nccl-tests 2.17",
        UNDECIDED,
        f"# nccl-tests version 2.17.6\n# Collective test starting: alltoall_perf\n# nThread 1 nGpus 8\n{UNDECIDED}",
    ),
    "header": (f"begin with the header {HEADER}", "operation,size\nall_reduce,1048576\n", f"{HEADER}\n{ROW}\n"),
    "all columns": (
        f"begin with the header {HEADER} and, as wanted, dtype,group_size,spans_nodes,steps,time_us",
        "operation,size\nall_reduce,1048576\n",
        f"{HEADER},dtype,group_size,spans_nodes,steps,time_us\n{ROW},float32,8,true,1,70\n",
    ),
    "no row": ("give one row per kind of message", f"{HEADER}\n", f"{HEADER}\n{ROW}\n"),
    "calls per step": (
        "name the column calls",
        f"{HEADER}_per_step,steps\n{ROW},10\n",
        f"{HEADER},steps\nall_reduce,1048576,20,10\n",
    ),
    "buckets": ("`Params for bucket N (M elements)`", MEGATRON, MEGATRON + BUCKET),
    "calls": ("record again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL", START, START + CALL),
}


def test_hint_of_a_text_is_right(tmp_path):
    for words, refused, repaired in CASES.values():
        (tmp_path / "refused.txt").write_text(refused)
        (tmp_path / "repaired.txt").write_text(repaired)
        # A table is recognised by its header: without one only the reader's name leads there.
        source = "csv" if words.startswith("begin with the header") else None
        with pytest.raises(NccltError) as error:
            read_workload(tmp_path / "refused.txt", name="x", source=source)

        assert words in error.value.hint
        assert read_workload(tmp_path / "repaired.txt", name="x").messages


def test_hints_about_files_are_right(tmp_path):
    """Each pair: what is given, and what its hint asks for."""
    whole = gzip.compress(f"{HEADER}\n{ROW}\n".encode() * 50)
    table = tmp_path / "table.csv"
    table.write_text(f"{HEADER}\n{ROW}\n")
    (tmp_path / "cut.csv.gz").write_bytes(whole[:-20])
    (tmp_path / "log.txt").write_text(START + CALL)
    (tmp_path / "empty.csv").touch()
    for given, words in (
        ([table, table], "name every file once"),
        ([], "name one trace file per rank"),
        ([tmp_path / "none.csv"], "check the path"),
        ([tmp_path / "cut.csv.gz"], "copy the file again; check it with `gzip -t`"),
        ([table, tmp_path / "log.txt"], "import each kind on its own"),
    ):
        with pytest.raises(NccltError) as error:
            read_workload(given, name="x")
        assert words in error.value.hint, given
    assert read_workload(table, name="x").messages
    assert read_workload(tmp_path / "log.txt", name="x").messages


def test_readers_that_a_hint_names_exist(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(f"{HEADER}\n{ROW}\n")
    with pytest.raises(NccltError) as error:
        read_workload(table, name="x", source="none-such")

    named = error.value.hint.removeprefix("known: ").split(", ")
    assert tuple(named) == reader_names()
    assert read_workload(table, name="x", source=next(one for one in named if "csv" in one)).messages
