"""Nsight Systems, Horovod, AICB, TraceLens and plain tables against the reader contract."""

import json
import sqlite3
import struct
from contextlib import closing

import pytest

from ncclt.core.message import Collective, Message
from ncclt.profile import READERS, get_reader
from ncclt.testing.reader_contract import ReaderContract


def _message(collective, size_bytes, dtype="uint8", group_size=2):
    return Message(collective=Collective(collective), dtype=dtype, size_bytes=size_bytes, group_size=group_size)


class OnlyReaderOfItsFiles(ReaderContract):
    """The contract, and that no other reader takes the sample for its own."""

    def test_no_other_reader_recognises_the_sample(self, reader, sample):
        others = [name for name in READERS if name != reader.name and get_reader(name).recognises(sample[0])]
        assert others == []


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


def _export(path, rank):
    with closing(sqlite3.connect(path)) as db:
        db.executescript(_EXPORT)
        for text, schema, body in (
            (1, 16777216, struct.pack("<Qii", 77, 2, rank)),
            (2, 16777220, struct.pack("<QQ", 77, 512)),
            (2, 16777220, struct.pack("<QQ", 77, 512)),
        ):
            blob = struct.pack("<QQQQ", 1, schema, len(body), 32 + len(body)) + body
            db.execute("INSERT INTO NVTX_EVENTS VALUES (59, ?, ?, ?)", (rank << 24, text, blob))
        db.commit()
    return path


class TestNsys(OnlyReaderOfItsFiles):
    @pytest.fixture
    def reader(self):
        return get_reader("nsys")

    @pytest.fixture
    def sample(self, tmp_path):
        return [_export(tmp_path / f"rank{rank}.sqlite", rank) for rank in (0, 1)]

    @pytest.fixture
    def expected(self):
        return {_message("all_gather", 1024): 2.0}


class TestNcclProfiler(OnlyReaderOfItsFiles):
    @pytest.fixture
    def reader(self):
        return get_reader("nccl_profiler")

    @pytest.fixture
    def sample(self, tmp_path):
        paths = [tmp_path / f"profile-7-{rank}.txt" for rank in (0, 1)]
        for rank, path in enumerate(paths):
            rows = []
            for number in range(2):
                args = {
                    "SeqNum": number,
                    "CommHash": 2**63 + 7,
                    "Rank": rank,
                    "Count": 64,
                    "Datatype": "ncclInt8",
                    "Algorithm": "RING",
                    "Protocol": "LL",
                    "nMaxChannels": 2,
                }
                base = {
                    "name": "AllGather",
                    "cat": "COLL",
                    "id": number,
                    "pid": 40 + rank,
                    "tid": 1,
                    "ts": 5.0 + number,
                }
                rows += [{**base, "ph": "b", "args": args}, {**base, "ph": "e"}]
            path.write_text("[\n" + "".join(f"{json.dumps(row)},\n" for row in rows) + "{}]\n")
        return paths

    @pytest.fixture
    def expected(self):
        return {_message("all_gather", 128, "int8"): 2.0}


class TestHorovod(OnlyReaderOfItsFiles):
    @pytest.fixture
    def reader(self):
        return get_reader("horovod")

    @pytest.fixture
    def sample(self, tmp_path):
        rows = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.w"}}]
        for at in (100, 200):
            rows.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": 1})
            rows += [{"ph": "X", "name": rank, "ts": at, "pid": 1, "dur": 0} for rank in "01"]
            rows.append({"ph": "E", "ts": at, "pid": 1})
            rows += [{"ph": "B", "name": n, "ts": at, "pid": 1} for n in ("ALLREDUCE", "NCCL_ALLREDUCE")]
            rows.append({"ph": "E", "ts": at + 50, "pid": 1})
            rows.append({"ph": "E", "ts": at + 51, "pid": 1, "args": {"dtype": "float16", "shape": "[3, 4]"}})
        path = tmp_path / "timeline.json"
        path.write_text("[\n" + ",\n".join(map(json.dumps, rows)))
        return [path]

    @pytest.fixture
    def expected(self):
        return {_message("all_reduce", 24, "float16"): 1.0}


class TestAicb(OnlyReaderOfItsFiles):
    @pytest.fixture
    def reader(self):
        return get_reader("aicb")

    @pytest.fixture
    def sample(self, tmp_path):
        path = tmp_path / "workload.csv"
        path.write_text(
            "[rank0 ~ rank1]\n"
            "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count\n"
            "CommType.reduce_scatter,CommGroup.dp_group,2,64,backward,None,None,,None,None,None,1\n"
            "CommType.epoch_end,None,None,0,,None,None,,None,None,None,1\n"
        )
        return [path]

    @pytest.fixture
    def expected(self):
        return {_message("reduce_scatter", 64): 1.0}


class TestTraceLens(OnlyReaderOfItsFiles):
    @pytest.fixture
    def reader(self):
        return get_reader("tracelens")

    @pytest.fixture
    def sample(self, tmp_path):
        header = "rank,Collective name,Group size,dtype,In msg nelems,Out msg nelems,operation_count\n"
        paths = [tmp_path / f"coll_analysis{rank}.csv" for rank in (0, 1)]
        for rank, path in enumerate(paths):
            path.write_text(f"{header}{rank},allreduce,2,Float,100,100,5\n")
        return paths

    @pytest.fixture
    def expected(self):
        return {_message("all_reduce", 400, "float32"): 5.0}


class TestCsv(OnlyReaderOfItsFiles):
    @pytest.fixture
    def reader(self):
        return get_reader("csv")

    @pytest.fixture
    def sample(self, tmp_path):
        path = tmp_path / "messages.csv"
        path.write_text("collective,size_bytes,calls,dtype,group_size,steps\nbroadcast,64,6,int32,2,3\n")
        return [path]

    @pytest.fixture
    def expected(self):
        return {_message("broadcast", 64, "int32"): 2.0}


class TestNcclTests(OnlyReaderOfItsFiles):
    @pytest.fixture
    def reader(self):
        return get_reader("nccl_tests")

    @pytest.fixture
    def sample(self, tmp_path):
        half = "time algbw busbw #wrong"
        path = tmp_path / "all_gather.txt"
        path.write_text(
            "# Collective test starting: all_gather_perf\n# nThread 1 nGpus 2 minBytes 64 maxBytes 128\n"
            "#  Rank  0 Group  0 Pid 1\n#  Rank  1 Group  0 Pid 1\n"
            f"#  size count type redop root {half} {half}\n"
            "64 8 float none -1 10 1 1 0 12 1 1 0\n64 8 float none -1 30 1 1 0 12 1 1 0\n"
            "# Avg bus bandwidth : 1\n"
        )
        return [path]

    @pytest.fixture
    def expected(self):
        return {_message("all_gather", 64, "float32"): 1.0}
