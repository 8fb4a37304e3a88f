"""AICB workloads and logs."""

from collections import Counter
from functools import partial

import pytest

from ncclt.core.workload import WHOLE_FILE
from ncclt.errors import TraceError
from ncclt.profile.readers.aicb import AicbReader
from ncclt.testing.reader_contract import message_table

HEADER = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count"
END = "CommType.epoch_end,None,None,0,,None,None,,None,None,None,1"


def row(kind, size, *, group="dp_group", ranks="4", stage="forward", ms="None", count="1"):
    return f"CommType.{kind},CommGroup.{group},{ranks},{size},{stage},None,None,,{ms},None,None,{count}"


@pytest.fixture
def read(read_files):
    return lambda *rows, head=("[rank0 ~ rank7]",): read_files(AicbReader(), [*head, HEADER, *rows])


found = partial(message_table, fields=("collective", "size_bytes", "group_size"))


def test_iterations_divide_the_calls(read):
    """The set-up is no iteration, and what comes behind the last end is a cut one."""
    workload = read(
        row("broadcast", 999, stage="init"),
        row("all_reduce", 8, stage="init.model_setup"),
        END,
        row("all_reduce", 1024),
        row("all_gather", 2048, count="3"),
        END,
        row("all_reduce", 1024),
        END,
        row("all_reduce", 1024),
    )
    assert found(workload) == {("all_reduce", 1024, 4): 1, ("all_gather", 2048, 4): 1.5}
    origin = workload.provenance
    assert (origin.steps, origin.world_size) == (2, 8)
    assert "left out: 2 x call of the set-up (stage init)" in origin.notes
    assert "left out: 1 x row behind the last end of an iteration" in origin.notes
    assert "AICB files have no dtype: messages are counted in bytes, as uint8" in origin.notes


def test_measured_log_without_the_line_of_ranks(read):
    """Times in milliseconds, sizes and group sizes as measured files have them."""
    workload = read(row("all_reduce", "1024.0", ranks="None", group="tp_group", ms="0.5"), END, head=())
    assert found(workload) == {("all_reduce", 1024, 0): 1}
    assert workload.messages[0].recorded_us == 500
    assert "the size of tp_group is not given: assuming the whole job" in workload.provenance.notes
    assert workload.provenance.world_size == 0


def test_tuples_of_computation_fill_several_cells(read):
    """AICB quotes nothing."""
    workload = read(
        "CommType.computation,CommGroup.all,1,((4096, 4096), (4096, 1024)),forward,None,None,,None,None,None,1",
        row("all_to_all", "(1, 2)"),
        row("all_reduce", 64),
        END,
    )
    assert found(workload) == {("all_reduce", 64, 4): 1}
    assert "left out: 1 x all_to_all with a tuple as size" in workload.provenance.notes


def test_sends_stand_for_their_receives(read):
    """Unless there are receives alone."""
    pair = [row("isend", 64, group="pp_group"), row("irecv", 64, group="pp_group"), END]
    assert found(read(*pair)) == {("send_recv", 64, 4): 1}
    assert found(read(*pair[1:])) == {("send_recv", 64, 4): 1}


def test_file_without_an_end_is_one_step(read):
    """And says so."""
    origin = read(row("all_reduce", 64), row("all_reduce", 0), row("barrier", 8)).provenance
    assert origin.steps == 0
    assert WHOLE_FILE in origin.notes
    assert "left out: 1 x all_reduce of 0 bytes" in origin.notes


def test_bad_files_are_refused_with_their_line(read):
    """Nothing is guessed."""
    for bad, why in [
        (row("all_reduce", -8), "line 3: msg_size is '-8'"),
        (row("all_reduce", "nan"), "line 3: msg_size is 'nan'"),
        (row("all_reduce", 10**17), "line 3: a message of 100000000000000000 bytes"),
        (row("all_reduce", 8, ranks="x"), "line 3: comm_group_size is 'x'"),
        (row("all_reduce", 8, count="0"), "line 3: count is '0'"),
        (row("all_reduce", 8, ms="inf"), "line 3: _elapsed_time is 'inf'"),
        ("CommType.all_reduce,CommGroup.dp_group,4", "line 3: 3 cells under a header of 12"),
        ("CommType.computation,CommGroup.all,1,((4, 4", "line 3: 4 cells under a header of 12"),
        (row("all_reduce", 8, stage="init"), "no collectives in 0.log: 1 x call of the set-up"),
        ("", "no collectives in 0.log: it has a header but no row"),
    ]:
        with pytest.raises(TraceError) as caught:
            read(bad)
        assert why in caught.value.message
        assert caught.value.hint


def test_two_files_are_refused(tmp_path):
    """One stands for all ranks."""
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        path.write_text(f"{HEADER}\n{row('all_reduce', 64)}\n")
    with pytest.raises(TraceError, match="several AICB files"):
        AicbReader().read(paths, name="run")


@pytest.mark.shared
def test_real_files_give_the_extractors_table(read_traces, extracted):
    """Equal but for a message of 0 bytes in one file, which sends nothing; its column dtype holds the kind of group."""
    files = [file for file in extracted if file.startswith("aicb/")]
    assert len(files) == 3
    for file in files:
        workload = read_traces(file)
        expected = Counter()
        for entry in extracted[file]:
            if entry["size_bytes"]:
                expected[entry["collective"], entry["size_bytes"], int(entry["group_size"])] += entry["calls"]
        assert found(workload) == expected
        assert (workload.provenance.steps, workload.provenance.world_size) == (1, 128)
