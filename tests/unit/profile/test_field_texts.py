"""Texts as people paste them into issues: prefixes, missing headers, forced runs, newer formats."""

from functools import partial

import pytest

from ncclt.errors import TraceError
from ncclt.measure.replay.landscape_import import count_nodes, stated_setting
from ncclt.profile import read_workload
from ncclt.profile.readers.nccl_tests import read_tests
from ncclt.store.shipped import profiles_folder, shipped_clusters
from ncclt.testing.reader_contract import message_table

pytestmark = pytest.mark.shared


sizes = partial(message_table, fields=("collective", "size_bytes", "group_size"))


def test_tables_without_device_lines_are_read_by_their_form(shared_data):
    field = shared_data / "field"
    for name, expected in (
        ("01b_all_reduce_no_devices.txt", {("all_reduce", 4 << 20, 16), ("all_reduce", 8 << 20, 16)}),
        ("01c_reduce_scatter_no_devices.txt", {("reduce_scatter", 4 << 20, 8), ("reduce_scatter", 8 << 20, 8)}),
        ("01d_all_reduce_then_alltoall.txt", {("all_reduce", 4 << 20, 16), ("all_to_all", 4 << 20, 16)}),
    ):
        assert set(sizes(read_workload(field / name, name="x"))) == expected
    with pytest.raises(TraceError, match="gather or scatter, which ncclt does not support"):
        read_workload(field / "01a_gather_no_devices.txt", name="x")
    with pytest.raises(TraceError, match="one rank, which sends nothing"):
        read_workload(field / "13_one_rank_all_reduce.log", name="x")


def test_forced_runs_are_read_with_their_setting(shared_data):
    cluster = shipped_clusters(profiles_folder())["dgx-a100"].sized(nodes=2)
    for name in ("15a_forced_by_command_line.log", "15b_forced_in_nccl_log.log"):
        path = shared_data / "field" / name
        runs = {(count_nodes(test, cluster, path), stated_setting(test, path).label) for test in read_tests(path)}
        assert runs == {(2, "tree/ll")}


def test_a_newer_format_is_named_and_read_as_far_as_it_is_alike(shared_data):
    workload = read_workload(shared_data / "field" / "03_inspector_v4.3.jsonl", name="x")
    assert sizes(workload) == {
        ("all_reduce", 4 << 20, 8): 2.0,
        ("all_gather", 8 << 20, 8): 1.0,
        ("send_recv", 64 << 10, 8): 1.0,
    }
    assert any(note.startswith("format v4.3 is newer than v4.2") for note in workload.provenance.notes)
    assert not any("damaged" in note or "left out" in note for note in workload.provenance.notes)


def test_forced_variables_are_told(shared_data):
    for name in ("15a_forced_by_command_line.log", "15b_forced_in_nccl_log.log"):
        origin = read_workload(shared_data / "field" / name, name="x").provenance
        assert origin.detail["nccl_variables"] == "NCCL_ALGO=Tree NCCL_PROTO=LL"
        assert any("times are of this forced setting" in note for note in origin.notes)


def test_a_run_that_was_cut_off_is_told(shared_data, tmp_path):
    text = (shared_data / "field" / "02_table_pdsh.txt").read_text()
    log = tmp_path / "run.log"
    for end, is_cut in ((len(text), False), (text.index("# Out of bounds") - len("node-0: "), True)):
        log.write_text(text[:end])
        assert any("cut off" in note for note in read_workload(log, name="x").provenance.notes) is is_cut
