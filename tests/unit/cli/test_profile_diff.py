"""`profile diff A B`."""

import json
from dataclasses import replace

import pytest

from ncclt.cli.profile import diff
from ncclt.testing.samples import sample_workload


@pytest.fixture
def two(command):
    """Two workloads: `new` has another step time, one message less, and one with twice the calls."""
    old = sample_workload("old", messages=3)
    kept = old.messages[:2]
    new = replace(
        old,
        name="new",
        messages=(kept[0], replace(kept[1], calls_per_step=2 * kept[1].calls_per_step)),
        step_time_us=2000.0,
    )
    command.store.workloads.add(old)
    command.store.workloads.add(new)
    return command


def test_rows_and_sums_are_printed(two):
    out = two(diff, "old", "new")
    assert "0 added, 1 removed, 1 with other calls per step, 1 unchanged" in out
    assert [line[0] for line in out.splitlines()[1:3]] == ["-", "~"]
    assert "step time" in out


def test_json_has_the_same(two):
    document = json.loads(two(diff, "old", "new", "--json"))
    assert (document["schema"], document["before"], document["after"]) == (1, "old", "new")
    assert (len(document["added"]), len(document["removed"]), document["unchanged"]) == (0, 1, 1)
    assert [(row["calls_before"], row["calls_after"]) for row in document["changed"]] == [(2.5, 5.0)]
    assert document["totals"]["after"]["step_time_us"] == 2000.0
