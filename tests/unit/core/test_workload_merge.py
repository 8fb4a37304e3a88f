"""Several workloads as one: what is added, what stays apart, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.workload import MAX_WEIGHT, MessageCalls, Provenance, Workload, merge_workloads
from ncclt.errors import InputError, UsageError

SCHEMA = Path(__file__).parents[3] / "profiles" / "workload.schema.json"


def calls(size, count, *, group=0, spans=False, recorded_us=None):
    message = Message(
        collective=Collective.ALL_REDUCE, dtype="int8", size_bytes=size, group_size=group, spans_nodes=spans
    )
    return MessageCalls(message=message, calls_per_step=count, recorded_us=recorded_us)


def workload(name, *messages, world_size=0, **more):
    return Workload(name=name, messages=messages, provenance=Provenance(source="kineto", world_size=world_size), **more)


def merged(*parts):
    return merge_workloads(parts, name="fleet", created="2026-11-26")


def table(found):
    return {(c.message.size_bytes, c.message.group_size): c.calls_per_step for c in found.messages}


def test_calls_are_weighted_and_those_of_equal_messages_added():
    found = merged((workload("a", calls(64, 2), calls(128, 5)), 3), (workload("b", calls(64, 1), calls(256, 1)), 0.5))
    assert table(found) == {(64, 0): 6.5, (128, 0): 15, (256, 0): 0.5}
    assert found.provenance.detail == {"parts": "3 x a + 0.5 x b"}
    assert (found.provenance.source, found.provenance.created) == ("merge", "2026-11-26")
    assert [(part.name, part.weight) for part in found.parts] == [("a", 3), ("b", 0.5)]
    assert table(found.parts[0]) == {(64, 0): 2, (128, 0): 5}, "of one step of the part"


def test_groups_stay_apart():
    found = merged((workload("a", calls(64, 1, group=4)), 1), (workload("b", calls(64, 1, group=8)), 1))
    assert table(found) == {(64, 4): 1, (64, 8): 1}
    across = merged((workload("a", calls(64, 1, group=4)), 1), (workload("b", calls(64, 1, group=4, spans=True)), 1))
    assert len(across.messages) == 2


def test_the_whole_job_of_each_part_becomes_the_whole_job_of_the_merged_one():
    """Eight ranks are all of the first job, and a group of the second."""
    first = workload("a", calls(64, 1, group=8), world_size=8)
    second = workload("b", calls(64, 1, group=8), calls(64, 2, group=16, spans=True), world_size=16)
    found = merged((first, 1), (second, 1))
    assert table(found) == {(64, 0): 3, (64, 8): 1}
    assert found.provenance.world_size == 0
    assert found.provenance.notes == (
        "recorded: a with 8 ranks, b with 16 ranks; messages of the whole job keep their size",
    )
    placed = found.placed(nodes=4, gpus_per_node=8)
    assert table(placed) == {(64, 32): 3, (64, 8): 1}
    assert [table(part) for part in placed.parts] == [{(64, 32): 1}, {(64, 32): 2, (64, 8): 1}]


def test_parts_of_one_size_keep_it():
    found = merged(*((workload(name, calls(64, 1, group=8), world_size=8), 1) for name in "ab"))
    assert (found.provenance.world_size, table(found), found.provenance.notes) == (8, {(64, 8): 2}, ())


def test_recorded_times_add_up_where_every_part_has_them():
    first = workload("a", calls(64, 1, recorded_us=10.0), step_time_us=100.0, exposed_us=10.0)
    second = workload("b", calls(64, 3, recorded_us=30.0), step_time_us=50.0)
    found = merged((first, 3), (second, 1))
    assert (found.step_time_us, found.exposed_us, found.copied_us) == (350.0, None, None)
    assert found.messages[0].recorded_us == pytest.approx(20.0)
    assert found.communication_us == pytest.approx(3 * 10 + 3 * 30)
    without = merged((first, 3), (workload("b", calls(64, 3)), 1))
    assert (without.messages[0].recorded_us, without.step_time_us) == (None, None)


def test_a_merged_workload_is_kept_whole_and_as_the_schema_says():
    found = merged((workload("a", calls(64, 2)), 3), (workload("b", calls(128, 1)), 1))
    document = json.loads(json.dumps(found.to_document()))
    jsonschema.validate(document, json.loads(SCHEMA.read_text()), cls=jsonschema.Draft202012Validator)
    assert Workload.from_document(document) == found


@pytest.mark.parametrize("damage", [{"weight": 0}, {"messages": []}])
def test_a_damaged_part_is_refused_when_it_is_read(damage):
    document = merged((workload("a", calls(64, 2)), 3), (workload("b", calls(128, 1)), 1)).to_document()
    document["parts"][0] |= damage
    with pytest.raises(InputError, match="'a'"):
        Workload.from_document(document)


A, B = workload("a", calls(64, 1)), workload("b", calls(64, 1))
WHOLE_FILE = replace(B, provenance=replace(B.provenance, whole_file=True))


def test_what_cannot_be_merged_is_refused(subtests):
    for parts, said in [
        ([(A, 1)], "needs two or more workloads, not 1"),
        ([(A, 1), (B, 1), (A, 1)], "a is named 2 times"),
        ([(A, 1), (replace(B, name="fleet"), 1)], "fleet is one of its own parts"),
        ([(A, 1), (merge_workloads([(A, 1), (B, 1)], name="c", created=""), 1)], "c is a merged workload"),
        ([(A, 1), (WHOLE_FILE, 1)], "b holds the calls of a whole file"),
        *(
            ([(A, 1), (B, weight)], "cannot be the weight of b")
            for weight in (0, -1, math.nan, math.inf, MAX_WEIGHT * 2, 0.5 / MAX_WEIGHT)
        ),
    ]:
        with subtests.test(parts=parts, said=said), pytest.raises(UsageError, match=said):
            merged(*parts)
