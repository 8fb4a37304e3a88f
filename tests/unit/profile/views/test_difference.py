"""What changed between two workloads."""

from dataclasses import replace

from made_workloads import calls, workload

from ncclt.profile.views.difference import compare_workloads


def _workload(rows, **more):
    return workload(*(calls(*row) for row in rows), **more)


def test_added_removed_changed_and_unchanged():
    found = compare_workloads(_workload([(8, 1), (16, 2), (32, 3)]), _workload([(16, 2), (32, 4), (64, 1)]))
    assert [c.message.size_bytes for c in found.added] == [64]
    assert [c.message.size_bytes for c in found.removed] == [8]
    assert [(c.message.size_bytes, c.calls_before, c.calls_after) for c in found.changed] == [(32, 3, 4)]
    assert (found.unchanged, found.is_empty) == (1, False)
    assert (found.before.bytes_per_step, found.after.bytes_per_step) == (136, 224)
    assert (found.before.calls, found.after.calls) == (6, 7)


def test_rounding_name_and_date_are_no_difference():
    first = _workload([(8, 1 / 3)])
    second = replace(first, name="v", messages=(replace(first.messages[0], calls_per_step=0.3333333333333334),))
    assert compare_workloads(first, second).is_empty


def test_a_message_that_is_listed_twice_is_one():
    assert compare_workloads(_workload([(8, 1), (8, 2)]), _workload([(8, 3)])).is_empty


def test_the_document_names_every_row_and_both_sums():
    document = compare_workloads(_workload([(8, 1)], step_time_us=5.0), _workload([(16, 2)])).to_document()
    assert [(r["size_bytes"], r["calls_before"], r["calls_after"]) for r in document["added"]] == [(16, 0.0, 2)]
    assert [(r["size_bytes"], r["calls_before"], r["calls_after"]) for r in document["removed"]] == [(8, 1, 0.0)]
    assert document["changed"] == []
    assert document["totals"]["before"]["step_time_us"] == 5.0
    assert document["totals"]["after"]["step_time_us"] is None
