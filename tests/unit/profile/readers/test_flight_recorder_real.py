"""Flight Recorder dumps that PyTorch wrote."""

import os
import subprocess
import sys
from collections import Counter
from functools import partial

import pytest

from ncclt.core.message import parse_dtype
from ncclt.profile import read_workload
from ncclt.testing.reader_contract import message_table

TUTORIAL = "flight_recorder/pytorch_tutorial_example_v2.5.json"
AS_JSON = "generated/fr_json_gloo_torch2.8_rank0.json"
PICKLED = "generated/fr_gloo_rank0.pkl"


_table = partial(message_table, fields=("collective", "dtype", "size_bytes"))


@pytest.mark.shared
@pytest.mark.parametrize(("file", "version"), [(TUTORIAL, "2.5"), (AS_JSON, "2.9")])
def test_messages_are_those_of_the_extractor(read_traces, extracted, file, version):
    """The only group listed has 2 ranks, though gloo's name for it is empty: the extractor writes null there."""
    workload = read_traces(file)
    expected = Counter()
    for row in extracted[file]:
        expected[row["collective"], parse_dtype(row["dtype"]), row["size_bytes"]] += row["calls"]
    assert _table(workload) == expected
    assert {m.message.group_size for m in workload.messages} == {2}
    assert workload.provenance.detail["version"] == version
    assert workload.provenance.steps == 0


@pytest.mark.shared
def test_pickle_is_read_without_loading_code(read_traces):
    """Three entries in two groups whose ranks are not listed: an all_gather tells the size of its own."""
    workload = read_traces(PICKLED)
    assert set(message_table(workload, ("collective", "size_bytes", "group_size"))) == {
        ("all_gather", 16, 2),
        ("all_gather", 112, 2),
        ("all_reduce", 40, 0),
    }
    assert workload.provenance.source == "flight_recorder"


_JOB = """
import sys, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
rank = int(sys.argv[3])
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[4], 2), rank=rank, world_size=2)
for _ in range(3):
    dist.all_reduce(torch.ones(1000))
    dist.broadcast(torch.ones(10, 5, dtype=torch.bfloat16), 0)
dist.barrier()
open(sys.argv[1], "wb").write(_dump_fr_trace())
text = _dump_fr_trace_json()
open(sys.argv[2], "wb").write(text if isinstance(text, bytes) else text.encode())
dist.destroy_process_group()
"""


def test_dump_of_the_installed_pytorch(tmp_path):
    """Both forms, of a buffer that held all calls."""
    pytest.importorskip("torch")
    dumps = [tmp_path / "nccl_trace_rank_0", tmp_path / "dump.json"]
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    outputs = [[str(dump) for dump in dumps], [str(tmp_path / "other"), str(tmp_path / "other.json")]]
    ranks = [
        subprocess.Popen([sys.executable, "-c", _JOB, *names, str(rank), str(tmp_path / "store")], env=env)
        for rank, names in enumerate(outputs)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
    for dump in dumps:
        assert _table(read_workload([dump], name="own")) == {
            ("all_reduce", "float32", 4000): 3.0,
            ("broadcast", "bfloat16", 100): 3.0,
        }
