"""Which reader gets which files."""

import json
import subprocess
import sys

import pytest

from ncclt.errors import TraceError, UsageError
from ncclt.profile import READERS, read_workload, reader_named, reader_names


def test_every_reader_of_the_table_can_be_imported():
    """The name in the table is the reader's own."""
    for name in READERS:
        assert reader_named(name).name == name
    assert set(READERS) <= set(reader_names())


def test_content_decides(trace):
    """Without a source the file is looked into."""
    trace.comm("allreduce", 1024)
    workload = read_workload([trace.write("no_telling_name")], name="mine")
    assert (workload.name, workload.provenance.source) == ("mine", "kineto")


def test_named_source_is_used(trace):
    """With a source nothing is guessed."""
    trace.comm("allreduce", 1024)
    assert read_workload([trace.write()], name="mine", source="kineto").provenance.source == "kineto"


def test_unknown_source_lists_the_known(trace):
    """A slip in the name is answered with the names."""
    with pytest.raises(UsageError) as caught:
        read_workload([trace.write()], name="mine", source="kinetto")
    assert "kineto" in caught.value.hint


def test_no_file_is_a_usage_error():
    """An empty shell pattern."""
    with pytest.raises(UsageError):
        read_workload([], name="mine")


@pytest.mark.parametrize("document", [{}, {"nodes": [], "schema": "1.1.1"}, [], 7, {"entries": [{"op": 1}]}])
def test_json_that_is_no_trace_is_refused(tmp_path, document):
    """With the kinds that are known."""
    path = tmp_path / "other.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError) as caught:
        read_workload([path], name="other")
    assert "kineto" in caught.value.hint


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
