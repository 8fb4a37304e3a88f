"""Every built-in reader against the reader contract."""

import gzip
import json

import pytest

from ncclt.core.message import Collective, Message
from ncclt.profile import get_reader
from ncclt.testing.reader_contract import ReaderContract


def _comm(ts, name, into, out, dtype):
    args = {
        "Collective name": name,
        "In msg nelems": into,
        "Out msg nelems": out,
        "dtype": dtype,
        "Group size": 2,
        "Process Group Name": "0",
    }
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": "record_param_comms",
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": 2,
        "args": args,
    }


def _rank(rank):
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1, "ts": n * 100, "dur": 99}
        for n in (1, 2)
    ]
    comms = [_comm(ts, "allreduce", 1000, 1000, "Float") for ts in (110, 120, 210, 220)]
    comms += [_comm(ts, "_allgather_base", 512, 1024, "BFloat16") for ts in (130, 230)]
    comms += [_comm(ts, "wait", 0, 0, "Byte") for ts in (140, 240)]
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    return {"schemaVersion": 1, "deviceProperties": [], "distributedInfo": info, "traceEvents": steps + comms}


class TestKineto(ReaderContract):
    @pytest.fixture
    def reader(self):
        return get_reader("kineto")

    @pytest.fixture
    def sample(self, tmp_path):
        plain, packed = tmp_path / "rank0.json", tmp_path / "rank1.json.gz"
        plain.write_text(json.dumps(_rank(0)))
        packed.write_bytes(gzip.compress(json.dumps(_rank(1)).encode()))
        return [plain, packed]

    @pytest.fixture
    def expected(self):
        return {
            Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4000, group_size=2): 2.0,
            Message(collective=Collective.ALL_GATHER, dtype="bfloat16", size_bytes=2048, group_size=2): 1.0,
        }
