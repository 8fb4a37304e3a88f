"""A recorded workload on other nodes: which groups there are, how large, and which of them cross the network."""

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import UsageError


def _placed(*groups, nodes, gpus_per_node, world_size=0):
    """Return (group size, spans nodes, calls) of messages recorded as (group size, spans nodes), one call each."""
    recorded = Workload(
        name="w",
        provenance=Provenance(source="kineto", world_size=world_size),
        messages=tuple(
            MessageCalls(
                message=Message(
                    collective=Collective.ALL_REDUCE, dtype="int8", size_bytes=64, group_size=size, spans_nodes=spans
                ),
                calls_per_step=1.0,
            )
            for size, spans in groups
        ),
    )  # fmt: skip
    placed = recorded.placed(nodes=nodes, gpus_per_node=gpus_per_node)
    return {(c.message.group_size, c.message.spans_nodes, c.calls_per_step) for c in placed.messages}


@pytest.mark.parametrize(
    ("recorded", "nodes", "expected"),
    [
        ((8, False), 2, (8, False, 1.0)),  # TP=8 on nodes of 8 GPUs stays on NVLink
        ((9, False), 2, (9, True, 1.0)),
        ((7, False), 2, (7, False, 1.0)),
        ((2, True), 2, (2, True, 1.0)),  # one rank of each node, as in pipelines
        ((2, True), 1, (2, False, 1.0)),
        ((8, True), 2, (8, True, 1.0)),
        ((0, False), 1, (8, False, 1.0)),  # the whole job fills one node
        ((0, True), 1, (8, False, 1.0)),
        ((0, False), 2, (16, True, 1.0)),
        ((32, True), 1, (8, False, 1.0)),  # the recorded world
        ((32, True), 4, (32, True, 1.0)),
    ],
)
def test_a_group_spans_nodes_where_it_is_larger_than_one_or_was_recorded_across(recorded, nodes, expected):
    assert _placed(recorded, nodes=nodes, gpus_per_node=8, world_size=32) == {expected}


def test_groups_that_become_one_are_added_up():
    groups = ((0, False), (32, True), (4, False))
    assert _placed(*groups, nodes=2, gpus_per_node=8, world_size=32) == {(16, True, 2.0), (4, False, 1.0)}


def test_a_group_larger_than_the_job_is_refused_and_one_as_large_is_not():
    assert _placed((16, True), nodes=2, gpus_per_node=8) == {(16, True, 1.0)}
    with pytest.raises(UsageError, match="a group of 17 ranks, but 2 x 8 GPUs are 16") as caught:
        _placed((17, True), nodes=2, gpus_per_node=8)
    assert "--nodes" in caught.value.hint
