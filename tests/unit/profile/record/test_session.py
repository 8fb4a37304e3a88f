"""The folder of a recording, and what becomes of what was written into it."""

import json
import sys

import pytest

from ncclt.cli.profile import print_profile
from ncclt.errors import UsageError
from ncclt.profile.record.plan import Method, RecordOptions, plan_recording
from ncclt.profile.record.ranks import Overhead
from ncclt.profile.record.session import clear_folder, make_folder, run_recording

RANK_LOG = (
    "host:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x5500 rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} "
    "busId 1000 commId 0xabc - Init COMPLETE\n"
    "host:{pid}:{pid} [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count 1024 datatype 7 op 0 root 0 "
    "comm 0x5500 [nranks=2] stream 0x9\n"
)
# Stands for ranks on NCCL: writes where NCCL_DEBUG_FILE tells.
NCCL_JOB = f"""
import os, sys
for rank in (0, 1):
    path = os.environ["NCCL_DEBUG_FILE"].replace("%h", "host").replace("%p", str(100 + rank))
    open(path, "w").write({RANK_LOG!r}.format(pid=100 + rank, rank=rank))
sys.exit(4)
"""


def _record(tmp_path, code, method):
    folder = make_folder(tmp_path, keep=None)
    plan = plan_recording([sys.executable, "-c", code], RecordOptions(method=method), folder=folder, environ={})
    return run_recording(plan, folder, name="mine")


def test_folder_is_private_and_goes(tmp_path):
    folder = make_folder(tmp_path, keep=None)
    assert folder.parent == tmp_path.resolve()
    assert folder.stat().st_mode & 0o777 == 0o700
    clear_folder(folder, keep=None)
    assert not list(tmp_path.iterdir())


def test_raw_files_are_kept_and_nothing_else(tmp_path):
    folder, keep = make_folder(tmp_path, keep=tmp_path / "a" / "b"), tmp_path / "a" / "b"
    (folder / "traces" / "rank0.json").write_text("{}")
    clear_folder(folder, keep=keep)
    assert sorted(path.name for path in keep.iterdir()) == ["nccl", "plugin", "ranks", "traces"]
    assert (keep / "traces" / "rank0.json").read_text() == "{}"
    assert not folder.exists()


def test_folders_that_cannot_serve_are_refused_beforehand(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for base, keep in ((tmp_path / "missing", None), (tmp_path, tmp_path / "full"), (tmp_path, tmp_path / "full/file")):
        with pytest.raises(UsageError) as caught:
            make_folder(base, keep=keep)
        assert caught.value.hint
    assert not list(tmp_path.glob(".ncclt-record-*"))


@pytest.mark.parametrize("method", [Method.NCCL_LOG, Method.AUTO])
def test_nccl_log_is_read_whatever_the_exit_code(tmp_path, method):
    recording = _record(tmp_path, NCCL_JOB, method)
    assert recording.exit_code == 4
    assert [(c.message.collective, c.message.size_bytes) for c in recording.workload.messages] == [("all_reduce", 4096)]
    notes = " ".join(recording.workload.provenance.notes)
    assert ("no usable trace: no process of the command loaded PyTorch" in notes) == (method is Method.AUTO)
    assert recording.overhead is None


def test_traces_without_collectives_are_told_together_with_missing_logs(tmp_path):
    trace = json.dumps({"schemaVersion": 1, "traceEvents": []})
    code = (
        "import os; folder = os.path.dirname(os.environ['PYTHONPATH']); "
        f"open(folder + '/traces/rank0.json', 'w').write({trace!r})"
    )
    recording = _record(tmp_path, code, Method.AUTO)
    assert recording.workload is None
    assert "no collectives" in recording.reason
    assert "no process wrote an NCCL log" in recording.reason
    assert recording.hint


# Stands for a rank under the profiler: one of its recorded steps stalls.
PROFILED_JOB = """
import json, os
folder = os.path.dirname(os.environ["PYTHONPATH"])
begins, lengths = (0, 2_000_000, 4_000_000), (420_000, 425_460, 890_430)
events = [dict(ph="X", cat="user_annotation", name=f"ProfilerStep#{number}", pid=1, tid=1, ts=begin, dur=length)
          for number, (begin, length) in enumerate(zip(begins, lengths))]
shape = {"Collective name": "allreduce", "In msg nelems": 256, "Out msg nelems": 256, "Group size": 2, "dtype": "Float"}
events += [dict(ph="X", cat="cpu_op", name="record_param_comms", pid=1, tid=1, ts=begin + 10, dur=5, args=shape)
           for begin in begins]
json.dump({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
           "traceEvents": events}, open(folder + "/traces/rank0.json", "w"))
json.dump({"rank": 0, "state": "recorded", "steps_seen": 6, "outside_s": [0.4, 0.41, 0.42],
           "inside_s": [0.42, 0.4255, 0.8905], "write_s": 0.1, "failures": []}, open(folder + "/ranks/0.json", "w"))
"""


def test_the_note_on_the_cost_and_the_profile_agree_on_the_step_time(tmp_path, capsys):
    recording = _record(tmp_path, PROFILED_JOB, Method.AUTO)
    print_profile(recording.workload, limit=0)
    shown = capsys.readouterr().out
    assert "Step time: 425 ms (median of 3 steps)\n" in shown
    assert "note: recording made steps 3.77 % longer: 425 ms in the recorded steps, 410 ms in others" in shown


def test_overhead_within_the_variation_of_steps_is_no_overhead():
    cost = Overhead(outside_us=30_370, inside_us=27_090, low_us=27_170, high_us=37_630, write_s=0.1)
    assert cost.describe(26_640).startswith("no overhead of recording seen: 26.6 ms in the recorded steps, 30.4 ms in")
    assert cost.describe(37_630).startswith("no overhead of recording seen")
    assert cost.describe(40_000).startswith("recording made steps 31.7 % longer")
