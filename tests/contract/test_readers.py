"""Every built-in reader against the reader contract."""

import gzip
import json
import pickle
import sqlite3
import struct
from contextlib import closing

import pytest
from plugin_report import APPLIED, line, write_lines

from ncclt.core.message import Collective, Message
from ncclt.profile import READERS, get_reader
from ncclt.testing.reader_contract import ReaderContract

TWO_KINDS = {("all_reduce", "float32", 4000, 2): 2.0, ("all_gather", "bfloat16", 2048, 2): 1.0}


def _comm(ts, name, into, out, dtype):
    args = {"Collective name": name, "In msg nelems": into, "Out msg nelems": out, "dtype": dtype}
    args |= {"Group size": 2, "Process Group Name": "0"}
    event = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1}
    return {**event, "ts": ts, "dur": 2, "args": args}


def trace_steps(rank):
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1, "ts": n * 100, "dur": 99}
        for n in (1, 2)
    ]
    comms = [_comm(ts, "allreduce", 1000, 1000, "Float") for ts in (110, 120, 210, 220)]
    comms += [_comm(ts, "_allgather_base", 512, 1024, "BFloat16") for ts in (130, 230)]
    comms += [_comm(ts, "wait", 0, 0, "Byte") for ts in (140, 240)]
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    return {"schemaVersion": 1, "deviceProperties": [], "distributedInfo": info, "traceEvents": steps + comms}


def _node(number, name, rank, into=None, out=None, dtype="float"):
    tensors = [[number, 1, 0, into, 4, f"cuda:{rank}"]] if into else []
    received = [[number, 2, 0, out, 4, f"cuda:{rank}"]] if out else []
    kind = [f"Tensor({dtype})"]
    return {
        "id": number,
        "name": "record_param_comms",
        "ctrl_deps": 1,
        "attrs": [],
        "inputs": {"values": [*tensors, 7, ["0", "default_pg"], rank, name, [], [], 0, 1, 2], "types": kind},
        "outputs": {"values": received, "types": kind},
    }


def trace_nodes(rank):
    nodes = [_node(n, "allreduce", rank, 1000, 1000) for n in (10, 20)]
    nodes += [_node(30, "_allgather_base", rank, 512, 1024, "c10::BFloat16"), _node(40, "wait", rank)]
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "2025-01-31 10:00:00", "start_ts": 1, "nodes": nodes}


def _entry(number, name, into, out, dtype):
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": f"nccl:{name}",
        "input_sizes": [into] if into else [],
        "input_dtypes": [dtype],
        "output_sizes": [out] if out else [],
        "output_dtypes": [dtype],
        "state": "completed",
        "retired": True,
        "is_p2p": False,
        "time_created_ns": 1_750_000_000_000_000_000 + number,
    }


def dump_flight(rank):
    entries = [_entry(n, "all_reduce", [10, 100], [10, 100], "Float") for n in (0, 1)]
    entries += [_entry(2, "_all_gather_base", [512], [2, 512], "BFloat16"), _entry(3, "coalesced", [], [], "Float")]
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    dump = {"version": "2.10", "pg_config": groups, "comm_lib_version": "2.28.9", "entries": entries}
    return dump if rank else pickle.dumps(dump, protocol=2)


def list_comms(_rank):
    group = {"pg_id": 0, "global_ranks": [0, 1], "world_size": 2}
    return [
        {"comms": "init", **group},
        *[{"comms": "all_reduce", "in_msg_size": 1000, "out_msg_size": 1000, "dtype": "Float", **group}] * 2,
        {"comms": "all_gather_base", "in_msg_size": 512, "out_msg_size": 1024, "dtype": "bfloat16", **group},
        {"comms": "wait", "req": 3},
    ]


def log_calls(rank):
    origin = f"node{rank}:10{rank}:200 [0] NCCL INFO"
    tail = f"op 0 root 0 comm 0xab{rank} [nranks=2] stream 0x1"
    rows = [f"{origin} NCCL version 2.27.3+cuda12.9"]
    rows += [
        f"{origin} AllReduce: opCount {n:x} sendbuff 0x1 recvbuff 0x2 count 1000 datatype 7 {tail}" for n in (9, 10)
    ]
    rows += [f"{origin} AllGather: opCount b sendbuff 0x1 recvbuff 0x2 count 512 datatype 9 {tail}"]
    return gzip.compress("\n".join(rows).encode()) if rank else "\n".join(rows)


def inspect_calls(rank):
    head = {
        "header": {"id": "0x7", "comm_name": "dp", "rank": rank, "n_ranks": 2, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "n", "pid": 10 + rank},
    }
    calls = [("AllReduce", 0, 65536), ("AllReduce", 1, 65536), ("ReduceScatter", 0, 1 << 20)]
    rows = [
        {**head, "coll_perf": {"coll": c, "coll_sn": sn, "coll_msg_size_bytes": size, "coll_exec_time_us": 9}}
        for c, sn, size in calls
    ]
    return "\n".join(map(json.dumps, rows))


def sum_up_comms(rank):
    facts = {"count": 3, "avg_latency_ms": 1.5, "tput_avg_gbps": 100.0, "busbw_avg_gbps": 75.0}
    return {
        "summary": {"all_gather_into_tensor": {"1000": facts}, "all_reduce": {"4096": facts}},
        "metadata": {"world_size": 4, "rank": rank, "timestamp": "2026-01-02T03:04:05"},
    }


MEGATRON = (
    "INFO:x:Setting up with config DistributedDataParallelConfig(grad_reduce_in_fp32=True, "
    "use_distributed_optimizer=False)\n"
    "INFO:y:Number of buckets for gradient all-reduce / reduce-scatter: 2\n"
    "Params for bucket 1 (1000 elements):\n\tlayer.weight\n"
    "Params for bucket 2 (500 elements, 512 padded size):\n"
)
_EXPORT = """
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    CREATE TABLE NVTX_EVENTS (eventType INTEGER, globalTid INTEGER, textId INTEGER, binaryData TEXT);
    CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, type INTEGER,
        name TEXT, offset INTEGER);
    INSERT INTO StringIds VALUES (1, 'ncclCommInitRank'), (2, 'ncclAllGather');
    INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES
        (1, 16777216, 0, 18, 'NCCL communicator ID', NULL), (1, 16777216, 1, 5, 'No. of ranks', 8),
        (1, 16777216, 2, 5, 'Rank', 12),
        (1, 16777220, 0, 18, 'NCCL communicator ID', NULL), (1, 16777220, 1, 22, 'Message size [bytes]', 8);
"""


def export_events(rank):
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_EXPORT)
        for text, schema, body in (
            (1, 16777216, struct.pack("<Qii", 77, 2, rank)),
            (2, 16777220, struct.pack("<QQ", 77, 512)),
            (2, 16777220, struct.pack("<QQ", 77, 512)),
        ):
            blob = struct.pack("<QQQQ", 1, schema, len(body), 32 + len(body)) + body
            db.execute("INSERT INTO NVTX_EVENTS VALUES (59, ?, ?, ?)", (rank << 24, text, blob))
        db.commit()
        return db.serialize()


def profile_calls(rank):
    rows = []
    for number in range(2):
        args = {"SeqNum": number, "CommHash": 2**63 + 7, "Rank": rank, "Count": 64, "Datatype": "ncclInt8"}
        args |= {"Algorithm": "RING", "Protocol": "LL", "nMaxChannels": 2}
        base = {"name": "AllGather", "cat": "COLL", "id": number, "pid": 40 + rank, "tid": 1, "ts": 5.0 + number}
        rows += [{**base, "ph": "b", "args": args}, {**base, "ph": "e"}]
    return "[\n" + "".join(f"{json.dumps(row)},\n" for row in rows) + "{}]\n"


def draw_timeline(_rank):
    rows = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.w"}}]
    for at in (100, 200):
        rows.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": 1})
        rows += [{"ph": "X", "name": rank, "ts": at, "pid": 1, "dur": 0} for rank in "01"]
        rows.append({"ph": "E", "ts": at, "pid": 1})
        rows += [{"ph": "B", "name": n, "ts": at, "pid": 1} for n in ("ALLREDUCE", "NCCL_ALLREDUCE")]
        rows.append({"ph": "E", "ts": at + 50, "pid": 1})
        rows.append({"ph": "E", "ts": at + 51, "pid": 1, "args": {"dtype": "float16", "shape": "[3, 4]"}})
    return "[\n" + ",\n".join(map(json.dumps, rows))


AICB = (
    "[rank0 ~ rank1]\n"
    "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count\n"
    "CommType.reduce_scatter,CommGroup.dp_group,2,64,backward,None,None,,None,None,None,1\n"
    "CommType.epoch_end,None,None,0,,None,None,,None,None,None,1\n"
)
TRACELENS = "rank,Collective name,Group size,dtype,In msg nelems,Out msg nelems,operation_count\n"
TRACELENS += "{},allreduce,2,Float,100,100,5\n"
CSV = "collective,size_bytes,calls,dtype,group_size,steps\nbroadcast,64,6,int32,2,3\n"
HALF = "time algbw busbw #wrong"
NCCL_TESTS = (
    "# Collective test starting: all_gather_perf\n# nThread 1 nGpus 2 minBytes 64 maxBytes 128\n"
    "#  Rank  0 Group  0 Pid 1\n#  Rank  1 Group  0 Pid 1\n"
    f"#  size count type redop root {HALF} {HALF}\n"
    "64 8 float none -1 10 1 1 0 12 1 1 0\n64 8 float none -1 30 1 1 0 12 1 1 0\n"
    "# Avg bus bandwidth : 1\n"
)


def report_calls(rank):
    """Two ranks; one of them made a call that it counted under two outcomes."""
    busy = [line("all_reduce", 4096, 3), line("all_reduce", 4096, 2, **APPLIED), line("all_gather", 64, 1)]
    rows = [line("all_reduce", 4096, 4)] if rank else busy
    return write_lines(*rows, pid=40 + rank, launch_rank=rank)


SAMPLES = {
    "kineto": ("rank0.json rank1.json.gz", trace_steps, TWO_KINDS),
    "execution_trace": ("et0.json et1.json.gz", trace_nodes, TWO_KINDS),
    "flight_recorder": ("nccl_trace_rank_0 nccl_trace_rank_1", dump_flight, TWO_KINDS),
    "param_comms": ("0.json 1.json", list_comms, TWO_KINDS),
    "nccl_log": ("log.0 log.1", log_calls, TWO_KINDS),
    "inspector": (
        "n-pid0.log n-pid1.log",
        inspect_calls,
        {("all_reduce", "uint8", 65536, 2): 2.0, ("reduce_scatter", "uint8", 2 << 20, 2): 1.0},
    ),
    "deepspeed": (
        "comms0.json comms1.json",
        sum_up_comms,
        {("all_gather", "uint8", 4000, 0): 3.0, ("all_reduce", "uint8", 4096, 0): 3.0},
    ),
    "megatron_log": (
        "train.log",
        lambda _rank: MEGATRON,
        {("all_reduce", "float32", 4000, 0): 1.0, ("all_reduce", "float32", 2048, 0): 1.0},
    ),
    "nsys": ("rank0.sqlite rank1.sqlite", export_events, {("all_gather", "uint8", 1024, 2): 2.0}),
    "nccl_profiler": ("profile-7-0.txt profile-7-1.txt", profile_calls, {("all_gather", "int8", 128, 2): 2.0}),
    "horovod": ("timeline.json", draw_timeline, {("all_reduce", "float16", 24, 2): 1.0}),
    "aicb": ("workload.csv", lambda _rank: AICB, {("reduce_scatter", "uint8", 64, 2): 1.0}),
    "tracelens": ("coll_analysis0.csv coll_analysis1.csv", TRACELENS.format, {("all_reduce", "float32", 400, 2): 5.0}),
    "csv": ("messages.csv", lambda _rank: CSV, {("broadcast", "int32", 64, 2): 2.0}),
    "nccl_tests": ("all_gather.txt", lambda _rank: NCCL_TESTS, {("all_gather", "float32", 64, 2): 1.0}),
    "plugin_report": (
        "a.jsonl b.jsonl",
        report_calls,
        {("all_reduce", "uint8", 4096, 2): 5.0, ("all_gather", "uint8", 64, 2): 1.0},
    ),
}
"""Source -> names of its sample's files, the content of each, and the calls per step of each kind of message in it."""


class TestReaders(ReaderContract):
    """The contract, and that no other reader takes the sample for its own."""

    @pytest.fixture(params=SAMPLES)
    def reader(self, request):
        return get_reader(request.param)

    @pytest.fixture
    def sample(self, reader, tmp_path):
        paths = [tmp_path / name for name in SAMPLES[reader.name][0].split()]
        for rank, path in enumerate(paths):
            content = SAMPLES[reader.name][1](rank)
            if not isinstance(content, str | bytes):
                content = json.dumps(content)
            data = content if isinstance(content, bytes) else content.encode()
            path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return paths

    @pytest.fixture
    def expected(self, reader):
        return {
            Message(collective=Collective(collective), dtype=dtype, size_bytes=size, group_size=group): calls
            for (collective, dtype, size, group), calls in SAMPLES[reader.name][2].items()
        }

    def test_no_other_reader_recognises_the_sample(self, reader, sample):
        others = [name for name in READERS if name != reader.name and get_reader(name).recognises(sample[0])]
        assert others == []


def test_every_reader_has_its_contract():
    assert SAMPLES.keys() == set(READERS)
