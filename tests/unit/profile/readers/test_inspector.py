"""Dumps of NCCL Inspector: sampling, rings, ranks, and damaged lines."""

import json
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclt.errors import TraceError
from ncclt.profile.readers.inspector import InspectorReader
from ncclt.testing.reader_contract import message_table


def record(
    coll="AllReduce", sn=0, size=65536, *, rank=0, ranks=4, comm="0x7", pid=1, us=50, name="dp", nodes=1, **more
):
    header = {"id": comm, "rank": rank, "n_ranks": ranks, "nnodes": nodes}
    kind = "p2p" if coll in ("Send", "Recv") else "coll"
    facts = {kind: coll, f"{kind}_sn": sn, f"{kind}_msg_size_bytes": size, f"{kind}_exec_time_us": us}
    return {
        "header": {**header, "comm_name": name} if name is not None else header,
        "metadata": {
            "inspector_output_format_version": "v4.2",
            "hostname": "h",
            "pid": pid,
            "dump_timestamp_us": 1_700_000_000_000_000,
        },
        f"{kind}_perf": {**facts, **{f"{kind}_{key}": value for key, value in more.items()}},
    }


@pytest.fixture
def dump(read_files):
    return partial(read_files, InspectorReader())


table = partial(message_table, fields=("collective", "size_bytes", "group_size"))


def test_parts_of_a_rank_become_full_buffers(dump):
    """Gathers, scatters and exchanges are recorded per rank."""
    kinds = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AlltoAll")
    assert table(dump([record(coll, size=10_000) for coll in kinds])) == {
        ("all_reduce", 10_000, 4): 1.0,
        ("all_gather", 40_000, 4): 1.0,
        ("reduce_scatter", 40_000, 4): 1.0,
        ("broadcast", 10_000, 4): 1.0,
        ("all_to_all", 40_000, 4): 1.0,
    }


def test_ranks_are_not_added_up_but_groups_of_one_are(dump):
    """Four ranks show two calls in one communicator; a second one of the same rank adds its own."""
    rows = [record(sn=sn, rank=rank, pid=rank) for rank in range(4) for sn in (0, 1)]
    assert table(dump(rows)) == {("all_reduce", 65536, 4): 2.0}
    rows += [record(rank=0, pid=0, comm="0x8")]
    assert table(dump(rows)) == {("all_reduce", 65536, 4): 3.0}


def test_one_process_can_drive_several_gpus(dump):
    """Two ranks of a communicator in one process are two views of one call."""
    workload = dump([record(rank=rank, ranks=2) for rank in (0, 1)])
    assert table(workload) == {("all_reduce", 65536, 2): 1.0}
    assert workload.provenance.ranks_read == (0, 1)
    assert workload.provenance.world_size == 2


def test_samples_are_scaled_by_sequence_numbers(dump):
    """NCCL 2.28 kept every fourth of 100 calls: three of four were of 64 KiB."""
    rows = [record(sn=sn, size=65536 if sn % 16 else 1 << 20, name=None) for sn in range(0, 97, 4)]
    workload = dump([*rows, record(sn=99, size=65536, name=None)])
    assert table(workload) == {("all_reduce", 65536, 4): 73.0, ("all_reduce", 1 << 20, 4): 27.0}
    assert any("26 of 100 calls recorded" in note for note in workload.provenance.notes)


def test_samples_of_all_ranks_are_pooled(dump):
    """Each rank kept another call; together they tell the sizes, and neither rank adds to the number."""
    one = [record(sn=sn, size=65536, name=None, rank=0, pid=1) for sn in (0, 9)]
    other = [record(sn=sn, size=1 << 20, name=None, rank=1, pid=2) for sn in (0, 9)]
    assert table(dump(one, other)) == {("all_reduce", 65536, 4): 5.0, ("all_reduce", 1 << 20, 4): 5.0}


def test_gaps_of_a_ring_are_not_filled(dump):
    """From 2.30 on a gap is a call that was too small or dropped, of an unknown size."""
    workload = dump([record(sn=sn) for sn in (0, 1, 9)])
    assert table(workload) == {("all_reduce", 65536, 4): 3.0}
    assert any(note.startswith("7 calls between") for note in workload.provenance.notes)


def test_record_written_twice_counts_once(dump):
    """The dump thread repeats the last call of an idle communicator."""
    assert table(dump([record(sn=3), record(sn=3), record(sn=4)])) == {("all_reduce", 65536, 4): 2.0}


def test_receives_count_only_where_nothing_is_sent(dump):
    """As everywhere."""
    rows = [record("Send", sn=n) for n in (0, 0, 1)] + [record("Recv")]
    assert table(dump(rows)) == {("send_recv", 65536, 4): 3.0}


def test_small_messages_are_said_to_be_missing(dump):
    """Unless there are some."""
    assert any("below 8 KiB" in note for note in dump([record()]).provenance.notes)
    assert not any("below 8 KiB" in note for note in dump([record(), record(sn=1, size=64)]).provenance.notes)


def test_drops_and_choices_are_kept(dump):
    """v4.1 tells drops, v4.2 algorithm and protocol."""
    stats = record()
    stats["dump_stats"] = {"coll": {"ring_drops": 5, "written": 9}, "p2p_dropped": 2}
    workload = dump([stats, record(algo="RING", proto="LL"), record("AllGather", algo="NVLS", proto="SIMPLE")])
    assert any("7 dropped records" in note for note in workload.provenance.notes)
    assert (
        dict(workload.provenance.detail)["nccl_choices"]
        == "all_gather 256 KiB: NVLS/SIMPLE; all_reduce 64 KiB: RING/LL"
    )


def test_times_are_of_the_fastest_rank(dump):
    """An early rank waits inside the kernel."""
    rows = [
        record(sn=n, us=us, rank=r, pid=r) for r, times in ((0, (40, 60)), (1, (10, 30))) for n, us in enumerate(times)
    ]
    (message,) = dump(rows).messages
    assert message.recorded_us == 20


def test_nodes_date_and_sub_groups(dump):
    """A group of part of the job spans nodes where its header says so."""
    late = record(ranks=8, nodes=2)
    late["metadata"]["dump_timestamp_us"] = 1_767_323_045_000_000
    workload = dump([late, record(ranks=2, nodes=2, comm="0x9")])
    assert {m.message.group_size: m.message.spans_nodes for m in workload.messages} == {8: False, 2: True}
    assert workload.provenance.created == "2023-11-14"
    assert dict(workload.provenance.detail)["nodes"] == "2"


def test_bad_lines_are_left_out_and_counted(dump):
    """Cut, of another kind, negative, NaN, impossible ranks, deeply nested, huge."""
    for row in [
        '{"header": {"id": "0x7",',
        "nccl_bus_bandwidth_gbs{version=5} 3.2",
        json.dumps(record(size=-5)),
        json.dumps(record(size=float("nan"))),
        json.dumps(record(size="64 B")),
        json.dumps(record(rank=4)),
        json.dumps(record(ranks=0)),
        "[" * 50_000,
        "9" * 10_000,
        '{"header": 1, "coll_perf": {}}',
    ]:
        workload = dump([record(), row, record(sn=1)])
        assert table(workload) == {("all_reduce", 65536, 4): 2.0}
        assert "left out: 1 x line cut off or without a record" in workload.provenance.notes


def test_dump_without_messages_is_refused_with_the_reason(dump):
    """And with what to set."""
    for rows, why in [
        ([record("Gather")], "Gather"),
        ([record(size=0)], "0 bytes"),
        (['{"header": {}, "coll_perf": {}}'], "no record of NCCL Inspector"),
    ]:
        with pytest.raises(TraceError, match=why) as caught:
            dump(rows)
        assert caught.value.hint


def test_rank_in_two_files_is_refused(dump):
    """A copy under another name would count twice."""
    with pytest.raises(TraceError, match="rank 0 of communicator 0x7"):
        dump([record()], [record()])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.integers(0, 300))
def test_damaged_dumps_are_read_in_part(tmp_path, noise, at):
    """Noise spoils at most the lines it touches."""
    good = json.dumps(record()).encode()
    other = json.dumps(record(sn=1)).encode()
    path = tmp_path / "fuzz.log"
    path.write_bytes(good + b"\n" + other[:at] + noise + other[at:] + b"\n" + noise)
    InspectorReader().recognises(path)
    assert ("all_reduce", 65536, 4) in table(InspectorReader().read([path], name="fuzz"))


@pytest.mark.shared
def test_records_of_the_readme_give_a_row_of_the_extractors_table(read_traces, extracted):
    """Two records of two ranks in two communicators: one rank stands for all; the scattered part times eight ranks."""
    file = "inspector/records.jsonl"
    workload = read_traces(file)
    (row,) = table(workload).items()
    assert row in [((r["collective"], r["size_bytes"], r["group_size"]), r["calls"]) for r in extracted[file]]
    assert workload.provenance.source == "inspector"
    assert workload.provenance.created == "2025-05-23"


def test_records_through_a_formatter_are_read(dump):
    """`jq .`, `jq -s .`, `jq -cs .` and editors."""
    for layout in ["indented", "tabs", "array", "one per line in an array", "one line"]:
        rows = [record(sn=n, size=10_000) for n in range(3)]
        text = {
            "indented": "\n".join(json.dumps(row, indent=2) for row in rows),
            "tabs": "\n\n".join(json.dumps(row, indent="\t") for row in rows),
            "array": json.dumps(rows, indent=2),
            "one per line in an array": "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]",
            "one line": json.dumps(rows),
        }[layout]
        workload = dump([text])
        assert workload == dump(rows)
        assert table(workload) == {("all_reduce", 10_000, 4): 3.0}


def test_a_spread_record_that_is_cut_off_is_counted(dump):
    """The next record is not swallowed by it."""
    whole = json.dumps(record(sn=1), indent=2)
    cut = "\n".join(whole.splitlines()[:-4])
    workload = dump([cut, record(sn=2), whole, cut])
    assert table(workload) == {("all_reduce", 65_536, 4): 2.0}
    assert "left out: 2 x line cut off or without a record" in workload.provenance.notes
