"""The plain table."""

import gzip
import itertools
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import Collective, Message
from ncclt.errors import TraceError
from ncclt.profile import read_workload
from ncclt.profile.readers.csv_table import CsvReader


def read(text, name="mine"):
    return read_bytes(text.encode(), name)


def read_bytes(data, name="mine"):
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        file.write(data)
        file.flush()
        return CsvReader().read([Path(file.name)], name=name)


def refused(text):
    with pytest.raises(TraceError) as caught:
        read(text)
    assert caught.value.hint
    return caught.value.message


def one(workload):
    (calls,) = workload.messages
    return calls


def test_all_columns():
    """What each of them means."""
    workload = read(
        "collective,size_bytes,calls,dtype,group_size,spans_nodes,steps,time_us\n"
        "all_reduce,4096,30,bf16,16,true,10,12.5\n"
        "all_gather,8192,20,float32,8,false,10,\n"
    )
    found = {m.message: (m.calls_per_step, m.recorded_us) for m in workload.messages}
    assert found == {
        Message(collective=Collective.ALL_REDUCE, dtype="bfloat16", size_bytes=4096, group_size=16, spans_nodes=True): (
            3.0,
            12.5,
        ),
        Message(collective=Collective.ALL_GATHER, dtype="float32", size_bytes=8192, group_size=8): (2.0, None),
    }
    assert workload.provenance.steps == 10
    assert workload.provenance.notes == ()


def test_what_is_left_out_is_said():
    """No dtype, no steps, no group."""
    workload = read("collective,size_bytes,calls\nall_reduce,4097,3\n")
    assert one(workload).message == Message(collective=Collective.ALL_REDUCE, dtype="uint8", size_bytes=4097)
    assert one(workload).calls_per_step == 3
    assert [note.split(":")[0] for note in workload.provenance.notes] == [
        "no training step is marked",
        "no dtype in 1 of 1 row",
        "groups without a size are assumed to be the whole job",
    ]


def test_delimiters_aliases_comments_and_byte_order_mark():
    """As spreadsheets and people write it."""
    lines = ["# my run", "", "Op;Bytes;Count;Data Type", '"nccl:all_reduce"; 1024 ;2;torch.float16', "", "# end"]
    for delimiter, newline in itertools.product((",", ";", "\t"), ("\n", "\r\n")):
        text = "\ufeff" + newline.join(lines).replace(";", delimiter)
        calls = one(read(text))
        assert (calls.message.label, calls.calls_per_step) == ("all_reduce 1 KiB float16", 2)


def test_spellings_of_a_collective():
    """NCCL's, PyTorch's and ours."""
    for word in ("ncclAllReduce", "AllReduce", "allreduce", "ALL_REDUCE", "send", "SendRecv"):
        found = one(read(f"collective,size,calls\n{word},8,1\n")).message.collective
        assert found == ("send_recv" if "send" in word.lower() else "all_reduce")


def test_sizes_are_exact():
    """Binary units, where the product is whole."""
    for size, size_bytes in [
        ("25MiB", 26214400),
        ("1.5KiB", 1536),
        ("64B", 64),
        ("26214400.0", 26214400),
    ]:
        assert one(read(f"collective,size,calls\nall_reduce,{size},1\n")).message.size_bytes == size_bytes


def test_bad_rows_are_named_by_their_line():
    """Nothing is guessed and nothing is dropped."""
    for row, why in [
        ("all_reduce,25M,1", "line 3: '25M' can mean 1000 or 1024"),
        ("all_reduce,25 kB,1", "line 3: '25 kB' can mean 1000 or 1024"),
        ("all_reduce,27.04MiB,1", "line 3: '27.04MiB' is not a whole number of bytes"),
        ("all_reduce,1e6,1", "line 3: '1e6' is not a size"),
        ("all_reduce,-8,1", "line 3: '-8' is not a size"),
        ("all_reduce,0,1", "line 3: a size of 0 bytes"),
        ("all_reduce,999999999999999999,1", "line 3: a size of 999999999999999999 bytes"),
        ("all_reduce,8,NaN", "line 3: calls is 'NaN'"),
        ("all_reduce,8,inf", "line 3: calls is 'inf'"),
        ("all_reduce,8,-1", "line 3: calls is '-1'"),
        ("all_reduce,8,0", "line 3: calls is '0'"),
        ('all_reduce,8,"1,5"', "line 3: calls is '1,5'"),
        ("gather,8,1", "line 3: 'gather' is not a collective"),
        ("barrier,8,1", "line 3: 'barrier' is not a collective"),
        (",8,1", "line 3: '' is not a collective"),
        ("all_reduce,8", "line 3: 2 cells under a header of 3"),
        ("all_reduce,8,1,9", "line 3: 4 cells under a header of 3"),
        ('all_reduce,"8,1', "line 3: unexpected end of data"),
    ]:
        assert why in refused(f"collective,size,calls\nall_reduce,8,1\n{row}\n")


def test_bad_tables_are_refused():
    """With the reason."""
    for text, why in [
        ("collective,size\nall_reduce,8\n", "no column calls"),
        ("collective,size,bytes,calls\nall_reduce,8,8,1\n", "two columns for size_bytes: 'size' and 'bytes'"),
        ("collective,size,calls,rank\nall_reduce,8,1,0\n", "does not add up calls over ranks"),
        ("collective,size,calls_per_step,steps\nall_reduce,8,1,5\n", "calls per step and a number of steps"),
        ("collective,size,calls,steps\nall_reduce,8,1,5\nall_reduce,16,1,6\n", "several numbers of steps: 5, 6"),
        ("collective,size,calls,steps\nall_reduce,8,1,0\n", "line 2: steps is '0'"),
        ("collective,size,calls,steps\nall_reduce,8,1,\n", "line 2: steps is ''"),
        ("collective,size,calls,dtype\nall_reduce,6,1,float32\n", "line 2: 6 bytes are not a whole number of float32"),
        ("collective,size,calls,dtype\nall_reduce,6,1,tf32\n", "line 2: unknown dtype 'tf32'"),
        ("collective,size,calls,group_size\nall_reduce,6,1,all\n", "line 2: group_size is 'all'"),
        ("collective,size,calls,spans_nodes\nall_reduce,6,1,maybe\n", "line 2: spans_nodes is 'maybe'"),
        ("collective,size,calls\n", "a header but no row"),
        ("", "not a table of messages"),
        ("collective,size,calls\n" + "x" * 70000, "line 2: a line without end"),
        ("collective,size,calls\nall_reduce,8\0,1\n", "line 2: a zero byte"),
    ]:
        assert why in refused(text)


def test_text_that_is_no_utf8_is_refused():
    """With the line it stands in."""
    with pytest.raises(TraceError, match="line 2: this is not UTF-8"):
        read_bytes(b"collective,size,calls\nall_reduce\xff,8,1\n")


def test_equal_rows_add_up_and_times_are_weighted():
    """A list of single calls works as well as a summary."""
    calls = one(read("collective,size,calls,time_us\nall_reduce,8,1,10\nall_reduce,8,3,30\n"))
    assert (calls.calls_per_step, calls.recorded_us) == (4, 25)


def test_unknown_columns_are_said():
    """They do no harm, but nobody should believe that they count."""
    workload = read("collective,size,calls,busbw\nall_reduce,8,1,400\n")
    assert workload.provenance.notes[1] == "ignored columns: busbw"


def test_calls_per_step_need_no_steps():
    """The header says it."""
    workload = read("collective,size,calls_per_step\nall_reduce,8,2.5\n")
    assert one(workload).calls_per_step == 2.5
    assert not any("steps" in note for note in workload.provenance.notes)


def test_file_is_recognised_gzipped_and_with_more_columns(tmp_path):
    """By its header, not by its name."""
    path = tmp_path / "no_telling_name"
    path.write_bytes(gzip.compress(b"busbw,collective,size,calls\n1,all_reduce,8,1\n"))
    assert read_workload([path], name="mine").provenance.source == "csv"


def test_endless_rows_are_refused(monkeypatch):
    """Memory is bounded by rows."""
    monkeypatch.setattr("ncclt.profile.table_rows._ROWS", 10)
    assert "more than 10 rows" in refused("collective,size,calls\n" + "all_reduce,8,1\n" * 11)


@given(st.integers(1, 2**50), st.floats(1e-6, 1e6), st.integers(2, 4096) | st.just(0), st.booleans())
def test_what_is_written_is_read_back(size_bytes, calls, group_size, spans_nodes):
    """Exactly, whatever the numbers."""
    row = f"reduce_scatter,{size_bytes},{calls:.9f},{group_size},{spans_nodes}"
    found = one(read(f"collective,size_bytes,calls,group_size,spans_nodes\n{row}\n"))
    message = found.message
    assert (message.size_bytes, message.group_size, message.spans_nodes) == (size_bytes, group_size, spans_nodes)
    assert math.isclose(found.calls_per_step, calls, rel_tol=1e-3)
