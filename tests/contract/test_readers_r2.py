"""The readers of logs against the reader contract."""

import gzip
import json

import pytest

from ncclt.core.message import Collective, Message
from ncclt.profile import get_reader
from ncclt.testing.reader_contract import ReaderContract


class TestNcclLog(ReaderContract):
    @pytest.fixture
    def reader(self):
        return get_reader("nccl_log")

    @pytest.fixture
    def sample(self, tmp_path):
        paths = []
        for rank in (0, 1):
            origin = f"node{rank}:10{rank}:200 [0] NCCL INFO"
            tail = f"op 0 root 0 comm 0xab{rank} [nranks=2] stream 0x1"
            rows = [f"{origin} NCCL version 2.27.3+cuda12.9"]
            rows += [
                f"{origin} AllReduce: opCount {n:x} sendbuff 0x1 recvbuff 0x2 count 1000 datatype 7 {tail}"
                for n in (9, 10)
            ]
            rows += [f"{origin} AllGather: opCount b sendbuff 0x1 recvbuff 0x2 count 512 datatype 9 {tail}"]
            paths.append(tmp_path / f"log.{rank}")
            paths[-1].write_text("\n".join(rows))
        paths[1].write_bytes(gzip.compress(paths[1].read_bytes()))
        return paths

    @pytest.fixture
    def expected(self):
        return {
            Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4000, group_size=2): 2.0,
            Message(collective=Collective.ALL_GATHER, dtype="bfloat16", size_bytes=2048, group_size=2): 1.0,
        }


class TestInspector(ReaderContract):
    @pytest.fixture
    def reader(self):
        return get_reader("inspector")

    @pytest.fixture
    def sample(self, tmp_path):
        paths = []
        for rank in (0, 1):
            head = {
                "header": {"id": "0x7", "comm_name": "dp", "rank": rank, "n_ranks": 2, "nnodes": 1},
                "metadata": {"inspector_output_format_version": "v4.0", "hostname": "n", "pid": 10 + rank},
            }
            calls = [("AllReduce", 0, 65536), ("AllReduce", 1, 65536), ("ReduceScatter", 0, 1 << 20)]
            rows = [
                {**head, "coll_perf": {"coll": c, "coll_sn": sn, "coll_msg_size_bytes": size, "coll_exec_time_us": 9}}
                for c, sn, size in calls
            ]
            paths.append(tmp_path / f"n-pid{rank}.log")
            paths[-1].write_text("\n".join(map(json.dumps, rows)))
        return paths

    @pytest.fixture
    def expected(self):
        return {
            Message(collective=Collective.ALL_REDUCE, dtype="uint8", size_bytes=65536, group_size=2): 2.0,
            Message(collective=Collective.REDUCE_SCATTER, dtype="uint8", size_bytes=2 << 20, group_size=2): 1.0,
        }


class TestDeepspeed(ReaderContract):
    @pytest.fixture
    def reader(self):
        return get_reader("deepspeed")

    @pytest.fixture
    def sample(self, tmp_path):
        facts = {"count": 3, "avg_latency_ms": 1.5, "tput_avg_gbps": 100.0, "busbw_avg_gbps": 75.0}
        paths = []
        for rank in (0, 1):
            summary = {"all_gather_into_tensor": {"1000": facts}, "all_reduce": {"4096": facts}}
            document = {
                "summary": summary,
                "metadata": {"world_size": 4, "rank": rank, "timestamp": "2026-01-02T03:04:05"},
            }
            paths.append(tmp_path / f"comms{rank}.json")
            paths[-1].write_text(json.dumps(document))
        return paths

    @pytest.fixture
    def expected(self):
        return {
            Message(collective=Collective.ALL_GATHER, dtype="uint8", size_bytes=4000): 3.0,
            Message(collective=Collective.ALL_REDUCE, dtype="uint8", size_bytes=4096): 3.0,
        }


class TestMegatronLog(ReaderContract):
    @pytest.fixture
    def reader(self):
        return get_reader("megatron_log")

    @pytest.fixture
    def sample(self, tmp_path):
        path = tmp_path / "train.log"
        path.write_text(
            "INFO:x:Setting up with config DistributedDataParallelConfig(grad_reduce_in_fp32=True, "
            "use_distributed_optimizer=False)\n"
            "INFO:y:Number of buckets for gradient all-reduce / reduce-scatter: 2\n"
            "Params for bucket 1 (1000 elements):\n\tlayer.weight\n"
            "Params for bucket 2 (500 elements, 512 padded size):\n"
        )
        return [path]

    @pytest.fixture
    def expected(self):
        return {
            Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4000): 1.0,
            Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=2048): 1.0,
        }
