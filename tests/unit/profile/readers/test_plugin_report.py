"""What the reader of plugin reports makes of ranks, groups and damage."""

import pytest
from plugin_report import line, write_report

from ncclt.errors import TraceError
from ncclt.profile import read_workload

HEAD = {
    "host": "n",
    "launch_rank": -1,
    "communicator": "a" * 16,
    "ranks": 4,
    "nodes": 2,
    "table": "r",
    "fnv1a": "1" * 16,
}


def report(path, *rows, **head):
    return write_report(path, *rows, **{**HEAD, **head})


def calls(size, count, **more):
    return line("all_reduce", size, count, **more)


def test_a_process_with_several_gpus_shows_one_communicator_several_times(tmp_path):
    files = [report(tmp_path / f"{n}", calls(64, 5), number=n, ranks=2, nodes=1) for n in range(2)]

    workload = read_workload(files, name="w")

    assert [m.calls_per_step for m in workload.messages] == [5.0]
    assert workload.provenance.world_size == 2


def test_two_groups_of_one_rank_add_up_and_ranks_do_not(tmp_path):
    files = [
        report(tmp_path / "a", calls(64, 5), number=0, launch_rank=0),
        report(tmp_path / "b", calls(64, 2), number=1, launch_rank=0, communicator="b" * 16),
        report(tmp_path / "c", calls(64, 6), number=0, launch_rank=1),
    ]

    assert [m.calls_per_step for m in read_workload(files, name="w").messages] == [7.0]


def test_a_smaller_group_over_nodes_is_told_apart(tmp_path):
    files = [
        report(tmp_path / "a", calls(64, 1)),
        report(tmp_path / "b", calls(64, 1), number=1, communicator="b" * 16, ranks=2, nodes=2),
    ]

    groups = {(m.message.group_size, m.message.spans_nodes) for m in read_workload(files, name="w").messages}

    assert groups == {(4, False), (2, True)}


def test_what_is_missing_or_unequal_is_said(tmp_path):
    full = {"collective": "all_reduce", "size_class_bytes": 1024, "calls": 9}
    files = [
        report(tmp_path / "a", calls(64, 1), calls(0, 2), full, launch_rank=0, finished=False),
        report(tmp_path / "b", calls(64, 1), launch_rank=1, fnv1a="2" * 16),
    ]

    notes = " | ".join(read_workload(files, name="w").provenance.notes)

    assert "9 calls came after the plugin's counters were full" in notes
    assert "the ranks had different tables: r (1111111111111111), r (2222222222222222)" in notes
    assert "open when their process ended" in notes
    assert "left out: 2 x calls of all_reduce of 0 bytes" in notes
    assert "read 2 of 4 ranks" in notes
    assert "within four times" in notes


def test_what_was_asked_for_is_kept(tmp_path):
    rows = [
        calls(2**20, 3, outcome="applied", algorithm="tree", protocol="ll", channels=0),
        calls(2**20, 1, outcome="unavailable", algorithm="nvls", protocol="simple", channels=4),
    ]

    detail = read_workload([report(tmp_path / "a", *rows)], name="w").provenance.detail

    assert detail["asked_for"] == "all_reduce 1 MiB: TREE/LL"
    assert detail["tables"] == "r (1111111111111111)"


def test_damage_and_emptiness_are_refused(tmp_path):
    for rows in [
        (["no object"],),
        ({"collective": "all_to_all", "size_bytes": 1, "calls": 1},),
        ({"collective": "all_reduce", "size_bytes": 1, "calls": 0},),
        (),
    ]:
        with pytest.raises(TraceError):
            read_workload([report(tmp_path / "a", *rows)], name="w", source="plugin_report")


def test_a_damaged_or_newer_first_line_is_refused(tmp_path):
    for head in [{"ncclt_plugin_report": 2}, {"ranks": 0}, {"pid": "x"}, {"host": 3}, {"launch_rank": None}]:
        with pytest.raises(TraceError):
            read_workload([report(tmp_path / "a", calls(1, 1), **head)], name="w", source="plugin_report")


def test_a_copy_is_refused(tmp_path):
    files = [report(tmp_path / name, calls(64, 1)) for name in "ab"]

    with pytest.raises(TraceError, match="same report"):
        read_workload(files, name="w")
