"""NCCL logs that nobody here wrote, against what an independent extractor found in them."""

import json

import pytest

from ncclt.errors import TraceError
from ncclt.profile import read_workload

pytestmark = pytest.mark.shared

MIXED = ("rccl_429_allgather_int8.log", "torchtitan_1369_tp2.log", "rccl_variant_lines.log")


@pytest.fixture(scope="module")
def traces(shared_data):
    return shared_data / "traces"


def _expected(traces):
    known = json.loads((traces / "expected.json").read_text())
    return {key: entry["messages"] for key, entry in known.items() if key.startswith("nccl_log/")}


def _read(traces, key):
    return read_workload([traces / key.removesuffix(" [TUNING]")], name="real")


def test_call_lines_give_the_extractors_table(traces):
    """Collective, dtype, size, group and calls of every file with COLL lines.

    Some excerpts show other calls of each rank: the busiest one stands for all, where the extractor mixes them.
    """
    files = {key: rows for key, rows in _expected(traces).items() if "[TUNING]" not in key}
    assert len(files) == 8
    with pytest.raises(TraceError, match="group of one rank"):
        _read(traces, next(key for key in files if "single_rank" in key and files.pop(key)))
    for key, rows in files.items():
        found = {
            (m.message.collective.value, m.message.dtype, m.message.size_bytes, m.message.group_size): m.calls_per_step
            for m in _read(traces, key).messages
        }
        rows = {(r["collective"], r["dtype"], r["size_bytes"], r["group_size"]): r["calls"] for r in rows}
        if key.endswith(MIXED):
            assert found.items() < rows.items(), key
        else:
            assert found == rows, key


@pytest.mark.parametrize(
    ("key", "group"), [("nccl_log/wayne_tuning_2.29.2_g2_auto.log", 2), ("nccl_log/eunomia_tuning_2.29.7.log", 0)]
)
def test_tuning_lines_give_the_extractors_table(traces, key, group):
    """Its dtype column is the choice, which we keep beside; it leaves the group open, which INIT lines tell in one."""
    rows = _expected(traces)[f"{key} [TUNING]"]
    workload = _read(traces, key)
    found = {(m.message.collective.value, m.message.size_bytes): m.calls_per_step for m in workload.messages}
    assert found == {(r["collective"], r["size_bytes"]): r["calls"] for r in rows}
    assert {(m.message.dtype, m.message.group_size) for m in workload.messages} == {("uint8", group)}
    choices = dict(workload.provenance.detail)["nccl_choices"].split("; ")
    assert sorted(c.split(": ")[1].rpartition("/")[0] for c in choices) == sorted(r["dtype"] for r in rows)


def test_choice_of_2_23_is_kept_beside_the_calls(traces):
    """Algorithm 1 with protocol 2; the same bytes as the call's, since 2.23 logs the full buffer."""
    (key,) = [key for key in _expected(traces) if "2.23tuning" in key and "[TUNING]" in key]
    assert dict(_read(traces, key).provenance.detail)["nccl_choices"] == "all_gather 36.01 MiB: RING/SIMPLE"


def test_cut_lines_are_said(traces):
    """Two of the excerpts end in the middle of a call."""
    for key in ("NVIDIA_nccl_1193_ddp_128ranks", "rccl_variant_lines"):
        notes = _read(traces, f"nccl_log/issues/{key}.log").provenance.notes
        assert "left out: 1 x calls whose line is cut off or torn apart" in notes
