"""Texts as people paste them into issues: prefixes, missing headers, forced runs, newer formats."""

import pytest

from ncclt.profile import read_workload

pytestmark = pytest.mark.shared


def sizes(workload):
    return {
        (m.message.collective.value, m.message.size_bytes, m.message.group_size): m.calls_per_step
        for m in workload.messages
    }


def test_prefixes_of_launchers_are_removed(shared_data):
    tables = sorted((shared_data / "field").glob("02_table_*.txt"))
    assert len(tables) == 9
    for path in tables:
        workload = read_workload(path, name="x")
        assert sizes(workload) == {("all_reduce", 1 << 20, 3): 1.0, ("all_reduce", 2 << 20, 3): 1.0}, path.name
    for path in sorted((shared_data / "field").glob("02_deepspeed_*.txt")):
        found = {(m.message.size_bytes, m.calls_per_step) for m in read_workload(path, name="x").messages}
        assert found == {(4096, 10.0), (2 << 20, 5.0)}, path.name
