"""The rules by which an ExecutionTrace becomes a workload, in the layouts of its schemas."""

import json
import time

import pytest

from ncclt.errors import TraceError
from ncclt.profile.readers.execution_trace import ExecutionTraceReader
from ncclt.testing.reader_contract import message_table

GROUP = ["0", "default_pg"]


def _tensor(elements, size=4):
    return [1, 2, 0, elements, size, "cuda:0"]


def _node(name, into=(), out=(), *, number=10, group=GROUP, place=0, tail=(0, 1, 2), dtype="float", parent=1, attrs=()):
    """Write a node of schema 1.0.3 or later."""
    return {
        "id": number,
        "name": "record_param_comms",
        "ctrl_deps": parent,
        "inputs": {"values": [*into, 7, group, place, name, [], [], *tail], "types": [f"GenericList[Tensor({dtype})]"]},
        "outputs": {"values": list(out), "types": [f"GenericList[Tensor({dtype})]"]},
        "attrs": [{"name": key, "type": "", "value": value} for key, value in attrs],
    }


def _groups(*rows):
    return {"id": 3, "name": "## process_group:init ##", "ctrl_deps": 2, "inputs": {"values": [json.dumps(rows)]}}


def _step(number, at):
    return {"id": at, "name": f"ProfilerStep#{number}", "ctrl_deps": 2, "inputs": {"values": []}}


@pytest.fixture
def read(read_files):
    head = {"schema": "1.1.1", "pid": 1, "start_ts": 5}
    return lambda *nodes, **more: read_files(ExecutionTraceReader(), {**head, "nodes": nodes, **more})


_rows = message_table


def test_lists_of_tensors_are_one_buffer(read):
    """The list form of all_gather shows one output per rank."""
    node = _node("all_gather", [[_tensor(6)]], [[[_tensor(6), _tensor(6)]]], dtype="c10::BFloat16")
    assert _rows(read(node)) == {("all_gather", "bfloat16", 24, 2): 1.0}


def test_flat_nodes_of_the_first_schema(read):
    """1.0.1 has no group size; the splits of an uneven all_to_all tell it for the whole group."""
    pointer = 93891384002768
    flat = {"name": "record_param_comms", "parent": 1, "input_types": ["Tensor(int)"], "output_types": ["Tensor(int)"]}
    splits = {"id": 5, "inputs": [_tensor(8), 1, pointer, 2, "all_to_allv", [4, 2, 2], [3, 3, 3]]}
    reduced = {"id": 6, "inputs": [[_tensor(50)], 2, pointer, 2, "allreduce", [], []], "outputs": [[_tensor(50)]]}
    waiting = {"id": 7, "inputs": [2, 0, 2, "wait", [], []], "outputs": []}
    workload = read({**flat, **splits, "outputs": [_tensor(9)]}, {**flat, **reduced}, {**flat, **waiting})
    assert _rows(workload) == {("all_to_all", "int32", 32, 3): 1.0, ("all_reduce", "int32", 200, 3): 1.0}
    assert workload.provenance.ranks_read == (2,)
    assert workload.provenance.world_size == 3


def test_counts_stand_in_for_tensors(read):
    """A node whose tensors cannot be read still has its attributes."""
    attrs = [("collective_name", "allreduce"), ("dtype", "Half"), ("in_msg_nelems", 8), ("out_msg_nelems", 8)]
    attrs += [("pg_name", "4"), ("pg_size", 16)]
    assert _rows(read(_node("allreduce", attrs=attrs, tail=()))) == {("all_reduce", "float16", 16, 16): 1.0}


def test_tensors_outrank_counts_that_overflowed(read):
    """A C int of torch 2.3 written as uint64."""
    attrs = [("collective_name", "allreduce"), ("dtype", "Float"), ("in_msg_nelems", 2**64 - 2**31)]
    big = [[_tensor(2**31)]]
    assert _rows(read(_node("allreduce", big, big, attrs=attrs))) == {("all_reduce", "float32", 2**33, 2): 1.0}


def test_other_nodes_of_the_same_call_do_not_count(read):
    """`c10d::` and `nccl:` nodes show it again."""
    node = _node("allreduce", [[_tensor(4)]], [[_tensor(4)]])
    again = [{**node, "id": n, "name": name} for n, name in ((8, "c10d::allreduce_"), (12, "nccl:all_reduce"))]
    assert _rows(read(*again, node)) == {("all_reduce", "float32", 16, 2): 1.0}


def test_all_reduce_inside_a_barrier_does_not_count(read):
    """An older barrier is made of one."""
    barrier = _node("barrier", number=20)
    inner = {"id": 21, "name": "c10d::allreduce_", "ctrl_deps": 20}
    hidden = _node("allreduce", [[_tensor(1)]], [[_tensor(1)]], number=22, parent=21)
    seen = _node("allreduce", [[_tensor(4)]], [[_tensor(4)]], number=30)
    assert _rows(read(barrier, inner, hidden, seen)) == {("all_reduce", "float32", 16, 2): 1.0}


def test_parents_in_a_circle_or_a_long_chain_cost_no_time(read):
    """10,000 calls, each below the one before: every way up is gone once."""
    buffer = [[_tensor(4)]]
    chain = [_node("allreduce", buffer, buffer, number=n, parent=n - 1) for n in range(101, 10_101)]
    circle = [_node("allreduce", buffer, buffer, number=n, parent=101 - n) for n in (50, 51)]
    barrier = _node("barrier", number=10_101, parent=1)
    below = [_node("allreduce", buffer, buffer, number=n, parent=n - 1) for n in (10_102, 10_103)]
    start_s = time.monotonic()
    assert _rows(read(*chain, *circle, barrier, *below)) == {("all_reduce", "float32", 16, 2): 10_002.0}
    assert time.monotonic() - start_s < 240


def test_calls_are_counted_in_complete_steps(read):
    """A call before the first step, and those of a step that was cut off, are left out."""
    calls = [_node("allreduce", [[_tensor(4)]], [[_tensor(4)]], number=n) for n in (50, 120, 180, 220, 280, 350)]
    orphan = {"id": 301, "name": "aten::add", "ctrl_deps": 300}  # its parent, step 9, was never written
    workload = read(*calls, _step(7, 100), _step(8, 200), orphan)
    assert _rows(workload) == {("all_reduce", "float32", 16, 2): 2.0}
    assert workload.provenance.steps == 2
    assert "left out: 2 of 6 calls, outside complete steps" in workload.provenance.notes


def test_optimizers_end_steps_before_marks_do(read):
    """Marks of microbatches, and none; what the optimizer itself sends is of the step that it ends."""
    calls = [_node("allreduce", [[_tensor(4)]], [[_tensor(4)]], number=n) for n in (220, 420)]
    sent = [_node("broadcast", [[_tensor(4)]], [[_tensor(4)]], number=at + 2, parent=at) for at in (250, 450)]
    optimizers = [{"id": at, "name": "Optimizer.step#Adam.step", "ctrl_deps": 1} for at in (250, 450)]
    for marks in ([_step(n, 100 * n) for n in range(1, 5)], []):
        workload = read(*calls, *sent, *optimizers, *marks)
        assert set(_rows(workload).values()) == {1.0}
        assert workload.provenance.steps == 2


def test_empty_last_step_is_no_step(read):
    """`prof.step()` opens a step that nothing follows."""
    calls = [_node("allreduce", [[_tensor(4)]], [[_tensor(4)]], number=n) for n in (120, 220)]
    assert read(*calls, _step(1, 100), _step(2, 200), _step(3, 300)).provenance.steps == 2


def test_groups_tell_rank_world_and_backend(read):
    """The list that torch.profiler writes; a gloo group of an NCCL job never reaches NCCL."""
    groups = _groups(
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [], "group_size": 8},
        {"pg_name": "1", "pg_desc": "tp", "backend_config": "cuda:nccl", "ranks": [4, 5, 6, 7], "group_size": 4},
        {"pg_name": "2", "pg_desc": "host", "backend_config": "cpu:gloo", "ranks": [4, 6], "group_size": 2},
    )
    buffer = [[_tensor(4)]]
    workload = read(
        groups,
        _node("allreduce", buffer, buffer, group=["1", "tp"], place=2, tail=()),
        _node("allreduce", buffer, buffer, group=["2", "host"], place=1, tail=(), number=11),
        _node("broadcast", buffer, buffer, place=5, tail=(), number=12),
    )
    assert _rows(workload) == {("all_reduce", "float32", 16, 4): 1.0, ("broadcast", "float32", 16, 8): 1.0}
    assert (workload.provenance.ranks_read, workload.provenance.world_size) == ((6,), 8)
    assert "left out: 1 x call in a group that bypasses NCCL" in workload.provenance.notes


def test_trace_without_messages_is_refused_with_the_reason(read):
    """Nothing is made up."""
    for nodes, reason in [
        ([], "record_param_comms"),
        ([{"id": 4, "name": "gloo:all_reduce"}], "gloo"),
        ([_node("wait"), _node("barrier")], "record_param_comms"),
        ([_node("allreduce", [[_tensor(0)]], [[_tensor(0)]])], "0 bytes"),
        ([_node("allreduce", [[_tensor(-4)]], [[_tensor(-4)]])], "without a usable size"),
        ([_node("allreduce", [[_tensor(2**60)]], [[_tensor(2**60)]])], "without a usable size"),
        ([_node("mystery", [[_tensor(4)]], [[_tensor(4)]])], "ncclt does not support"),
    ]:
        with pytest.raises(TraceError, match=reason) as caught:
            read(*nodes)
        assert caught.value.hint


def test_workload_graph_is_refused_for_its_missing_sizes(tmp_path):
    """It is recognised, so that the reason can be given."""
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"workload_graph": [{"Id": 1, "Name": "c10d::broadcast_(0)", "NodeType": 7}]}))
    assert ExecutionTraceReader().recognises(path)
    with pytest.raises(TraceError, match="1 communication nodes"):
        ExecutionTraceReader().read([path], name="graph")
