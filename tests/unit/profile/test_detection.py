"""Which reader gets which files."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclt.core.message import Collective, Message
from ncclt.errors import MissingDependencyError, TraceError, UsageError
from ncclt.profile import get_reader, read_workload
from ncclt.profile.reader import Call, Reader

SAMPLES = Path(__file__).parents[1] / "nccl" / "nccl_tests" / "samples"


def test_content_decides_unless_a_source_is_named(trace):
    trace.comm("allreduce", 1024)
    for source in (None, "kineto"):
        workload = read_workload([trace.write("no_telling_name")], name="mine", source=source)
        assert (workload.name, workload.provenance.source) == ("mine", "kineto")
    for files, source in (([], None), ([trace.write()], "kinetto")):
        with pytest.raises(UsageError):
            read_workload(files, name="mine", source=source)


def test_one_strange_file_among_traces_is_named(trace, tmp_path):
    """The message points at the file to leave out."""
    trace.comm("allreduce", 1024)
    strange = tmp_path / "notes.txt"
    strange.write_text("hello")
    with pytest.raises(TraceError, match=r"notes\.txt"):
        read_workload([trace.write(), strange], name="mixed")


def test_prose_and_code_that_only_name_nccls_lines_are_no_logs(tmp_path):
    path = tmp_path / "README.md"
    path.write_text('NCCL INFO lines of NCCL version 2.22.3 are read:\nre.compile(r"\\[0\\]? NCCL WARN x")\n')
    with pytest.raises(TraceError, match="is not a trace or log"):
        read_workload([path], name="prose")
    path.write_text("n1:10:11 [0] 2026-11-25 NCCL INFO cudaDriverVersion 12040\n")
    with pytest.raises(TraceError, match="without COLL and TUNING lines"):
        read_workload([path], name="log")


def test_same_path_twice_is_refused(trace):
    """Also by another spelling of the path."""
    trace.comm("allreduce", 1024)
    path = trace.write()
    with pytest.raises(TraceError, match="given twice"):
        read_workload([path, path.parent / "." / ".." / path.parent.name / path.name], name="twice")


def test_importing_the_package_imports_no_reader():
    """`ncclt env` must stay fast."""

    heavy = ("ncclt.profile.readers.", "torch")
    code = f"import ncclt.profile, sys; print([m for m in sys.modules if m.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"


ROWS = "collective,size_bytes,calls\nall_reduce,4096,1\n"
TABLE = """Comm. Op            Message Size        Count     Total Latency(ms)   Avg Latency(ms)  tput  busbw
all_gather_into_tensor
                    2.0 MB              5         1.00                0.20                0.00          0.00
"""


def test_a_folder_gives_the_files_that_a_reader_recognises(tmp_path):
    folder = tmp_path / "job"
    (folder / "rank0").mkdir(parents=True)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "calls.csv").write_text(ROWS)
    (folder / "rank0" / "calls.csv").write_text(ROWS)
    (folder / "notes.txt").write_text("hello\n")
    (folder / "empty").touch()
    origin = read_workload(folder, name="x").provenance
    assert (origin.source, origin.detail["files"]) == ("csv", "calls.csv")
    assert any(note.startswith("2 files of the folder left out: empty is empty; notes.txt") for note in origin.notes)
    assert read_workload([folder, folder / "rank0" / "calls.csv"], name="x").provenance.detail == origin.detail
    (folder / "comms.log").write_text(TABLE)
    with pytest.raises(TraceError, match="different kinds") as caught:
        read_workload(folder, name="x")
    assert "--source" in caught.value.hint
    assert read_workload(folder, name="x", source="csv").provenance.source == "csv"


def test_a_folder_without_traces_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no file of the folder can be read: it is empty"):
        read_workload(tmp_path, name="x")
    (tmp_path / "job.nsys-rep").write_bytes(b"anything")
    with pytest.raises(TraceError, match="report of Nsight Systems"):
        read_workload(tmp_path, name="x")


DDP = b"""Benchmark: resnet101 with batch size 32
                            sec/iter    ex/sec      sec/iter    ex/sec      sec/iter    ex/sec
   1 GPUs --   no ddp:  p50:  0.064s     501/s  p75:  0.064s     500/s  p90:  0.064s     499/s
"""


def test_known_formats_that_are_not_read_are_refused_by_name(tmp_path):
    for name, content, what, hint in (
        ("job.nsys-rep", b"\x01\x02", "a report of Nsight Systems", "nsys export --type sqlite"),
        ("job.pftrace", b"\x0a\x10abc", "a Perfetto trace", "traceconv json job.pftrace"),
        ("host.xplane.pb", b"\x0a\x10abc", "an XSpace of XLA", "NCCL_DEBUG_SUBSYS=INIT,COLL"),
        ("xplane", b"\x0a\x90\x01\x12\x0d/device:GPU:0", "an XSpace of XLA", "NCCL_DEBUG_SUBSYS=INIT,COLL"),
        ("trace.json", b'{"traceEvents": [{"args": {"hlo_op": "add"}}]}', "a trace of XLA", "NCCL_DEBUG=INFO"),
        ("rank.0.et", b"\x07\x0a\x050.0.4", "a Chakra trace in protobuf", "ExecutionTraceObserver"),
        ("coll", b'{"CT_pastColls": [{"opName": "AllReduce"}]}', "a collective trace of NCCLX", "NCCL_DEBUG=INFO"),
        ("ddp.txt", DDP, "a table of step times", "ncclt profile record"),
        ("ddp.json", b'{"bucket_size": 25, "benchmark_results": []}', "a table of step times", "ncclt verify"),
        ("traces", b"PK\x03\x04....", "compressed with zip", "unzip traces"),
        ("traces", b"\x28\xb5\x2f\xfd....", "compressed with zstd", "zstd -d traces"),
        ("log", "# nThread 1".encode("utf-16"), "text in UTF-16", "iconv -f UTF-16"),
        ("log", b"<!DOCTYPE html><html>", "a web page", "download"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(TraceError, match=f"is {what}.*, which ncclt does not read") as caught:
            read_workload(path, name="x")
        assert hint in caught.value.hint


def test_what_a_text_states_is_given_to_its_reader(tmp_path):
    path = tmp_path / "job.log"
    for command in (
        "srun -N 2 --ntasks-per-node 8 train",
        "torchrun --nnodes=2 --nproc_per_node=8 train.py",
        "world_size=16",
    ):
        path.write_text(f"NCCL version 2.27.3+cuda12.9\nexport NCCL_ALGO=Ring NCCL_DEBUG=INFO\n{command}\n{TABLE}")
        workload = read_workload(path, name="x")
        assert workload.provenance.world_size == 16
        assert [m.message.size_bytes for m in workload.messages] == [16 * (2 << 20)]
        assert workload.provenance.detail["nccl_variables"] == "NCCL_ALGO=Ring"
        assert workload.provenance.detail["nccl_version"] == "2.27.3"
        assert not any("cut off" in note for note in workload.provenance.notes)
    path.write_text(path.read_text() + "broadcast\n           2.0 M")
    assert "job.log ends within a line: it may be cut off" in read_workload(path, name="x").provenance.notes


def test_newer_formats_are_named_as_newer(tmp_path):
    entry = {"process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce"}
    for end in ("input", "output"):
        entry |= {f"{end}_sizes": [[1024]], f"{end}_dtypes": ["Float"]}
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    path = tmp_path / "dump.json"
    for version, is_new in (("2.9", False), ("2.10", False), ("2.11", True), ("3.0", True)):
        path.write_text(json.dumps({"version": version, "pg_config": groups, "entries": [entry]}))
        notes = read_workload(path, name="x").provenance.notes
        assert any(note.startswith(f"format {version} is newer than 2.10") for note in notes) is is_new
    path.write_text(json.dumps({"version": "3.0", "pg_config": groups, "entries": [{**entry, "profiling_name": "?"}]}))
    with pytest.raises(TraceError, match=r"format 3\.0 is newer than 2\.10"):
        read_workload(path, name="x")
    sample = (SAMPLES / "nccl_tests_v3.json").read_text()
    for version, is_new in ((3, False), (4, True)):
        path.write_text(sample.replace('"version":3', f'"version":{version}'))
        notes = read_workload(path, name="x").provenance.notes
        assert any(note.startswith("format 4 is newer than 3") for note in notes) is is_new


class PairsReader(Reader):
    """A third party's reader: lines of `pair,BYTES`."""

    name = "pairs"

    def begins(self, beginning):
        return beginning.startswith(b"pair,")

    def calls(self, source):
        for document in source.documents():
            for line in document.stream:
                size = int(line.split(b",")[1])
                message = Message(collective=Collective.ALL_REDUCE, dtype="uint8", size_bytes=size, group_size=2)
                yield Call(message=message)


def test_reader_of_a_third_party_is_used_like_our_own(tmp_path, monkeypatch):
    point = EntryPoint(name="pairs", value="pairs_of_a_third_party:PairsReader", group="ncclt.readers")
    monkeypatch.setitem(sys.modules, "pairs_of_a_third_party", SimpleNamespace(PairsReader=PairsReader))
    broken = EntryPoint(name="broken", value="no_such_module:Reader", group="ncclt.readers")
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda *, group: [broken, point] if group == point.group else []
    )
    path = tmp_path / "job"
    path.write_text("pair,8\npair,8\npair,16\n")
    workload = read_workload(path, name="x")
    assert [(m.message.size_bytes, m.calls_per_step) for m in workload.messages] == [(8, 2), (16, 1)]
    assert (workload.provenance.source, workload.provenance.whole_file) == ("pairs", True)
    with pytest.raises(MissingDependencyError, match="no_such_module"):
        get_reader("broken")


@pytest.mark.shared
def test_every_public_trace_is_in_a_test(traces):
    """But for kinds of which all are read, the one timeline, and a text that is of no reader."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    unnamed = {path for path in traces.glob("*/*.*") if path.stem not in tests}
    unread = sorted(path.name for path in unnamed if path.parent.name not in ("aicb", "megatron_log"))
    assert [name.split("_")[0] for name in unread] == ["horovod", "torch"]
