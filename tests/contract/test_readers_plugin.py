"""The reports of the tuner plugin against the reader contract."""

import json

import pytest

from ncclt.core.message import Collective, Message
from ncclt.profile import READERS, get_reader
from ncclt.testing.reader_contract import ReaderContract

HEAD = {
    "ncclt_plugin_report": 1,
    "plugin": "0.1.0",
    "tuner_api": 5,
    "nccl": "2.28.9",
    "host": "n1",
    "pid": 40,
    "launch_rank": 0,
    "communicator": "00000000000000aa",
    "number": 0,
    "ranks": 2,
    "nodes": 1,
    "policy": "/t.csv",
    "shared": False,
    "table": "r-1",
    "fnv1a": "0" * 16,
    "rows": 1,
    "rows_here": 1,
    "not_in_use": "",
    "started_us": 1_750_000_000_000_000,
    "written_us": 1_750_000_001_000_000,
    "finished": True,
}
APPLIED = {"outcome": "applied", "algorithm": "ring", "protocol": "simple", "channels": 8}


def line(collective, size, calls, **more):
    return {
        "collective": collective,
        "size_bytes": size,
        "registered": False,
        "outcome": "unmatched",
        "calls": calls,
        **more,
    }


def write_report(path, rows, **head):
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in [{**HEAD, **head}, *rows])
    path.write_text(text)
    return path


class TestPluginReport(ReaderContract):
    @pytest.fixture
    def reader(self):
        return get_reader("plugin_report")

    @pytest.fixture
    def sample(self, tmp_path):
        """Two ranks; one of them made a call that it counted under two outcomes."""
        busy = [line("all_reduce", 4096, 3), line("all_reduce", 4096, 2, **APPLIED), line("all_gather", 64, 1)]
        return [
            write_report(tmp_path / "a.jsonl", busy),
            write_report(tmp_path / "b.jsonl", [line("all_reduce", 4096, 4)], pid=41, launch_rank=1),
        ]

    @pytest.fixture
    def expected(self):
        return {
            Message(collective=Collective.ALL_REDUCE, dtype="uint8", size_bytes=4096, group_size=2): 5.0,
            Message(collective=Collective.ALL_GATHER, dtype="uint8", size_bytes=64, group_size=2): 1.0,
        }

    def test_no_other_reader_recognises_the_sample(self, reader, sample):
        others = [name for name in READERS if name != reader.name and get_reader(name).recognises(sample[0])]
        assert others == []
