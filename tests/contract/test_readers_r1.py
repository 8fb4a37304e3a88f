"""The readers of what c10d records, against the reader contract."""

import gzip
import json
import pickle

import pytest

from ncclt.core.message import Collective, Message
from ncclt.profile import get_reader
from ncclt.testing.reader_contract import ReaderContract

EXPECTED = {
    Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4000, group_size=2): 2.0,
    Message(collective=Collective.ALL_GATHER, dtype="bfloat16", size_bytes=2048, group_size=2): 1.0,
}


class _Contract(ReaderContract):
    @pytest.fixture
    def expected(self):
        return EXPECTED


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


def _trace(rank):
    nodes = [_node(n, "allreduce", rank, 1000, 1000) for n in (10, 20)]
    nodes += [_node(30, "_allgather_base", rank, 512, 1024, "c10::BFloat16"), _node(40, "wait", rank)]
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "2025-01-31 10:00:00", "start_ts": 1, "nodes": nodes}


class TestExecutionTrace(_Contract):
    @pytest.fixture
    def reader(self):
        return get_reader("execution_trace")

    @pytest.fixture
    def sample(self, tmp_path):
        plain, packed = tmp_path / "et0.json", tmp_path / "et1.json.gz"
        plain.write_text(json.dumps(_trace(0)))
        packed.write_bytes(gzip.compress(json.dumps(_trace(1)).encode()))
        return [plain, packed]


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


def _dump():
    entries = [_entry(n, "all_reduce", [10, 100], [10, 100], "Float") for n in (0, 1)]
    entries += [_entry(2, "_all_gather_base", [512], [2, 512], "BFloat16"), _entry(3, "coalesced", [], [], "Float")]
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": groups, "comm_lib_version": "2.28.9", "entries": entries}


class TestFlightRecorder(_Contract):
    @pytest.fixture
    def reader(self):
        return get_reader("flight_recorder")

    @pytest.fixture
    def sample(self, tmp_path):
        pickled, text = tmp_path / "nccl_trace_rank_0", tmp_path / "nccl_trace_rank_1"
        pickled.write_bytes(pickle.dumps(_dump(), protocol=2))
        text.write_text(json.dumps(_dump()))
        return [pickled, text]


class TestParamComms(_Contract):
    @pytest.fixture
    def reader(self):
        return get_reader("param_comms")

    @pytest.fixture
    def sample(self, tmp_path):
        group = {"pg_id": 0, "global_ranks": [0, 1], "world_size": 2}
        rows = [
            {"comms": "init", **group},
            *[{"comms": "all_reduce", "in_msg_size": 1000, "out_msg_size": 1000, "dtype": "Float", **group}] * 2,
            {"comms": "all_gather_base", "in_msg_size": 512, "out_msg_size": 1024, "dtype": "bfloat16", **group},
            {"comms": "wait", "req": 3},
        ]
        paths = [tmp_path / "0.json", tmp_path / "1.json"]
        for path in paths:
            path.write_text(json.dumps(rows))
        return paths
