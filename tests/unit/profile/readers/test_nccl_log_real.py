"""NCCL logs that nobody here wrote, against what an independent extractor found in them."""

import pytest

from ncclt.errors import TraceError
from ncclt.testing.reader_contract import message_table

pytestmark = pytest.mark.shared

MIXED = ("rccl_429_allgather_int8.log", "torchtitan_1369_tp2.log", "rccl_variant_lines.log")


@pytest.fixture
def logs(extracted):
    return {key: rows for key, rows in extracted.items() if key.startswith("nccl_log/")}


def test_call_lines_give_the_extractors_table(read_traces, logs):
    """Collective, dtype, size, group and calls of every file with COLL lines.

    Some excerpts show other calls of each rank: the busiest one stands for all, where the extractor mixes them.
    """
    files = {key: rows for key, rows in logs.items() if "[TUNING]" not in key}
    assert len(files) == 8
    with pytest.raises(TraceError, match="group of one rank"):
        read_traces(next(key for key in files if "single_rank" in key and files.pop(key)))
    for key, rows in files.items():
        found = message_table(read_traces(key))
        rows = {(r["collective"], r["dtype"], r["size_bytes"], r["group_size"]): r["calls"] for r in rows}
        if key.endswith(MIXED):
            assert found.items() < rows.items(), key
        else:
            assert found == rows, key


@pytest.mark.parametrize(
    ("key", "group"), [("nccl_log/wayne_tuning_2.29.2_g2_auto.log", 2), ("nccl_log/eunomia_tuning_2.29.7.log", 0)]
)
def test_tuning_lines_give_the_extractors_table(read_traces, logs, key, group):
    """Its dtype column is the choice, which we keep beside; it leaves the group open, which INIT lines tell in one."""
    rows = logs[f"{key} [TUNING]"]
    workload = read_traces(key)
    assert message_table(workload, ("collective", "size_bytes")) == {
        (r["collective"], r["size_bytes"]): r["calls"] for r in rows
    }
    assert {(m.message.dtype, m.message.group_size) for m in workload.messages} == {("uint8", group)}
    choices = dict(workload.provenance.detail)["nccl_choices"].split("; ")
    assert sorted(c.split(": ")[1].rpartition("/")[0] for c in choices) == sorted(r["dtype"] for r in rows)


def test_choice_of_2_23_is_kept_beside_the_calls(read_traces, logs):
    """Algorithm 1 with protocol 2; the same bytes as the call's, since 2.23 logs the full buffer."""
    (file,) = [key.removesuffix(" [TUNING]") for key in logs if "2.23tuning" in key and "[TUNING]" in key]
    assert dict(read_traces(file).provenance.detail)["nccl_choices"] == "all_gather 36.01 MiB: RING/SIMPLE"


def test_cut_lines_are_said(read_traces):
    """Two of the excerpts end in the middle of a call."""
    for key in ("NVIDIA_nccl_1193_ddp_128ranks", "rccl_variant_lines"):
        notes = read_traces(f"nccl_log/issues/{key}.log").provenance.notes
        assert "left out: 1 x calls whose line is cut off or torn apart" in notes
