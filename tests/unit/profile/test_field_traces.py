"""Traces of kinds that people report, with the right values beside them (data/field/README.md)."""

import pytest

from ncclt.profile import read_workload

pytestmark = pytest.mark.shared


@pytest.fixture
def read(shared_data):
    """Return a function that reads files of the field."""
    return lambda *names: read_workload([shared_data / "field" / name for name in names], name="field")


def rows(workload):
    """Return (collective, dtype, bytes, group) -> calls per step."""
    return {
        (m.message.collective.value, m.message.dtype, m.message.size_bytes, m.message.group_size): m.calls_per_step
        for m in workload.messages
    }


def test_stages_of_a_pipeline_give_the_busiest_rank(read):
    """4000 B on rank 0 and 8000 B on rank 1: no rank sends both."""
    workload = read("stage_rank0.json", "stage_rank1.json")
    assert rows(workload) == {("all_reduce", "float32", 8000, 2): 1.0}


def test_group_of_one_is_left_out_with_a_note(read):
    workload = read("group_of_one.json")
    assert rows(workload) == {("all_reduce", "float32", 8000, 8): 1.0}
    assert "left out: all_reduce in a group of one rank, which sends nothing" in workload.provenance.notes
