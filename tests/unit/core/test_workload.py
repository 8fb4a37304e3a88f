"""A workload, and what becomes of it on other nodes: which groups there are, and which of them cross the network."""

from dataclasses import replace

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.workload import WHOLE_FILE, MessageCalls, Provenance, Workload
from ncclt.errors import InputError, UsageError


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
    )
    placed = recorded.placed(nodes=nodes, gpus_per_node=gpus_per_node)
    return {(c.message.group_size, c.message.spans_nodes, c.calls_per_step) for c in placed.messages}


def test_a_group_spans_nodes_where_it_is_larger_than_one_or_was_recorded_across(subtests):
    for recorded, nodes, expected in [
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
    ]:
        with subtests.test(recorded=recorded, nodes=nodes, expected=expected):
            assert _placed(recorded, nodes=nodes, gpus_per_node=8, world_size=32) == {expected}


def test_groups_that_become_one_are_added_up():
    groups = ((0, False), (32, True), (4, False))
    assert _placed(*groups, nodes=2, gpus_per_node=8, world_size=32) == {(16, True, 2.0), (4, False, 1.0)}


def test_a_group_larger_than_the_job_is_refused_and_one_as_large_is_not():
    assert _placed((16, True), nodes=2, gpus_per_node=8) == {(16, True, 1.0)}
    with pytest.raises(UsageError, match="a group of 17 ranks, but 2 x 8 GPUs are 16") as caught:
        _placed((17, True), nodes=2, gpus_per_node=8)
    assert "--nodes" in caught.value.hint


def _calls(size, calls=1.0, **more):
    message = Message(
        collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=4, spans_nodes=True
    )
    return MessageCalls(message=message, calls_per_step=calls, **more)


def _workload(*messages, **more):
    return Workload(name="w", messages=messages, provenance=Provenance(source="kineto"), **more)


def test_the_most_bytes_go_first_and_of_equal_ones_the_smaller_message():
    sizes = [
        calls.message.size_bytes for calls in _workload(_calls(8), _calls(4, 8.0), _calls(64), _calls(32)).messages
    ]
    assert sizes == [64, 4, 32, 8]


@pytest.mark.parametrize("calls", [0.0, -1.0, float("nan")])
def test_what_is_never_sent_is_refused(calls):
    with pytest.raises(InputError, match="no calls per step"):
        _workload(_calls(8), _calls(16, calls))
    with pytest.raises(InputError, match="has no messages"):
        _workload()


def test_a_digest_tells_what_is_sent_and_stays_the_same_in_every_release():
    """Stores hold it, and compare it with that of the workload at hand."""
    workload = _workload(_calls(1 << 20), _calls(8, 2.5))
    named = replace(workload, name="other", provenance=Provenance(source="model"), step_time_us=1.0)
    assert workload.digest() == named.digest() == "e403a8190589"
    for other in (_workload(_calls(1 << 20)), _workload(_calls(1 << 20), _calls(8, 2.5000001))):
        assert other.digest() != workload.digest()


def test_what_a_document_leaves_out_is_not_known():
    row = {"collective": "all_reduce", "dtype": "int8", "size_bytes": 8, "calls_per_step": 1}
    document = {"schema": 1, "name": "w", "provenance": {"source": "model"}, "messages": [row]}
    read = Workload.from_document(document)
    assert (read.provenance.world_size, read.provenance.steps) == (0, 0)
    assert read.messages[0].message == Message(collective=Collective.ALL_REDUCE, dtype="int8", size_bytes=8)
    for broken in ({"schema": 2}, {"messages": [{**row, "collective": "gossip"}]}, {"messages": 1}, {"provenance": []}):
        with pytest.raises(InputError) as caught:
            Workload.from_document(document | broken)
        assert caught.value.hint


def test_exposed_communication_never_exceeds_what_is_sent():
    sent = [_calls(8, 2.0, recorded_us=3.0), _calls(64, recorded_us=4.0)]
    assert _workload(*sent, exposed_us=10.0).exposed_us == 10.0
    assert _workload(*sent, exposed_us=10.5).exposed_us == 10.0
    untimed = _workload(_calls(8), _calls(64, recorded_us=4.0), exposed_us=10.5)
    assert (untimed.communication_us, untimed.exposed_us) == (None, 10.5)


def test_messages_weigh_by_time_where_all_have_one_and_else_by_bytes():
    timed = _workload(_calls(64, recorded_us=1.0), _calls(8, 2.0, recorded_us=3.0))
    assert timed.weights() == (1.0, 6.0)
    assert [calls.message.size_bytes for calls in timed.dominant(6 / 7)] == [8]
    assert [calls.message.size_bytes for calls in timed.dominant(0.9)] == [8, 64]
    assert _workload(_calls(64), _calls(8, 2.0, recorded_us=3.0)).weights() == (64.0, 16.0)
    idle = _workload(_calls(1000, recorded_us=0.0), _calls(10, recorded_us=0.0))
    assert [calls.message.size_bytes for calls in idle.dominant()] == [1000], "times of zero say nothing"
    by_bytes = _workload(_calls(60), _calls(30), _calls(10))
    for share, sizes in ((0.6, [60]), (0.61, [60, 30]), (1.0, [60, 30, 10])):
        assert [calls.message.size_bytes for calls in by_bytes.dominant(share)] == sizes


WHOLE = Workload(
    name="w",
    messages=(_calls(64, 10.0), _calls(8, 5.0)),
    provenance=Provenance(source="tracelens", notes=("a note", WHOLE_FILE), whole_file=True),
)


def test_a_whole_file_is_divided_by_its_steps_once():
    assert (WHOLE.unit, WHOLE.per) == ("file", "for the whole file")
    divided = WHOLE.over_steps(5, "5 steps, as given")
    assert (divided.unit, divided.per) == ("step", "per step")
    assert [calls.calls_per_step for calls in divided.messages] == [2.0, 1.0]
    assert divided.provenance.steps == 5
    assert divided.provenance.notes == ("a note", "5 steps, as given")
    with pytest.raises(UsageError, match="w counts 5 steps"):
        divided.over_steps(5, "again")
    assert WHOLE.over_steps(1, "one").messages == WHOLE.messages
    assert [calls.calls_per_step for calls in WHOLE.over_steps(4, "").messages] == [2.5, 1.25]


@pytest.mark.parametrize("steps", [0, -1])
def test_a_file_of_no_steps_is_refused(steps):
    with pytest.raises(UsageError, match=f"at least 1 step, not {steps}"):
        WHOLE.over_steps(steps, "")


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        (Provenance(source="kineto"), "the calls are per step"),
        (Provenance(source="kineto", steps=3), "w counts 3 steps"),
        (Provenance(source="nccl-tests", whole_file=True), "nccl-tests has no steps"),
    ],
)
def test_steps_are_taken_only_where_they_are_missing(origin, why):
    with pytest.raises(UsageError, match=why):
        replace(WHOLE, provenance=origin).over_steps(2, "")


def test_a_group_as_large_as_the_recorded_job_keeps_its_ranks_in_a_larger_one():
    sent = [Message(collective=Collective.ALL_REDUCE, dtype="int8", size_bytes=64, group_size=size) for size in (0, 2)]
    recorded = Workload(
        name="w",
        provenance=Provenance(source="kineto", world_size=2),
        messages=tuple(MessageCalls(message=message, calls_per_step=1.0) for message in sent),
    )
    (placed,) = recorded.of_group(2, False).placed(nodes=2, gpus_per_node=4).messages
    assert (placed.message.group_size, placed.message.spans_nodes, placed.calls_per_step) == (2, False, 2.0)
