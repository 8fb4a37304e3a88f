"""What the installed PyTorch records over gloo, which makes a reduce_scatter of all_reduces."""

import subprocess
import sys

import pytest

from ncclt.profile.readers.kineto.reader import KinetoReader

_JOB = """
import sys, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
rank = int(sys.argv[1])
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2)
optimizer = torch.optim.SGD([torch.ones(4, requires_grad=True)])
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for _ in range(3):
        dist.reduce_scatter(torch.empty(20), [torch.ones(20), torch.ones(20)])
        dist.all_reduce(torch.ones(1000))
        optimizer.step()
profiler.export_chrome_trace(sys.argv[3])
dist.destroy_process_group()
"""


def test_collective_of_the_program_is_read_per_optimizer_step(tmp_path):
    pytest.importorskip("torch")
    traces = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    ranks = [
        subprocess.Popen([sys.executable, "-c", _JOB, str(rank), str(tmp_path / "store"), str(trace)])
        for rank, trace in enumerate(traces)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
    workload = KinetoReader().read(traces, name="own")
    assert {(m.message.collective.value, m.message.size_bytes): m.calls_per_step for m in workload.messages} == {
        ("reduce_scatter", 160): 1.0,
        ("all_reduce", 4000): 1.0,
    }
    assert workload.provenance.steps == 3
