"""Bucket lines of Megatron and NeMo."""

from functools import partial

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from ncclt.core.message import DTYPE_SIZES
from ncclt.errors import TraceError
from ncclt.profile.readers.megatron_log import MegatronLogReader
from ncclt.testing.reader_contract import message_table

COUNT = "INFO:megatron.core:Number of buckets for gradient all-reduce / reduce-scatter: "


def config(**fields):
    inside = ", ".join(f"{key}={value}" for key, value in fields.items())
    return f"INFO:megatron.core:Setting up DistributedDataParallel with config DistributedDataParallelConfig({inside})"


@pytest.fixture
def log(read_files):
    return partial(read_files, MegatronLogReader())


table = partial(message_table, fields=("collective", "dtype", "size_bytes"))


def test_bucket_lines_of_every_form(log):
    """The padding is sent, and a dtype in the line wins."""
    for line, dtype, elements in [
        ("Params for bucket 1 (1000 elements):", "float32", 1000),
        ("Params for bucket 1 (1000 elements, 1024 padded size):", "float32", 1024),
        ("Params for bucket 1 (1000 elements, 1024 padded size, 3 param(s) with extra main_grads):", "float32", 1024),
        ("[NeMo I 2026-01-02 b:6] Params for bucket 1 (1000 elements, dtype torch.bfloat16):", "bfloat16", 1000),
        ("INFO:megatron.core.distributed.grad_buffer:Params for bucket 1 (1000 elements):", "float32", 1000),
    ]:
        workload = log([COUNT + "1", line])
        assert table(workload) == {("all_reduce", dtype, elements * DTYPE_SIZES[dtype]): 1.0}
        assert any("assuming all_reduce" in note for note in workload.provenance.notes)
        assert any("float32 assumed" in note for note in workload.provenance.notes) == (dtype == "float32")


def test_main_gradients_tell_the_dtype(log):
    """Megatron Core of 2026 prints it behind each parameter."""
    rows = [COUNT + "1", "Params for bucket 1 (10 elements):", "\tw (param.main_grad.dtype=torch.bfloat16)"]
    assert table(log(rows)) == {("all_reduce", "bfloat16", 20): 1.0}


def test_config_tells_dtype_and_operations(log):
    """A distributed optimizer scatters gradients and gathers parameters; a terminal broke the line."""
    whole = config(grad_reduce_in_fp32=True, use_distributed_optimizer=True, bucket_size=40)
    rows = [whole[:150], whole[150:], COUNT + "1", "Params for bucket 1 (10 elements):"]
    workload = log(rows)
    assert table(workload) == {("reduce_scatter", "float32", 40): 1.0, ("all_gather", "bfloat16", 20): 1.0}
    assert any("bfloat16 assumed" in note for note in workload.provenance.notes)
    assert dict(workload.provenance.detail)["use_distributed_optimizer"] == "True"


def test_arguments_tell_the_rest(log):
    """Megatron-LM prints them with dots."""
    rows = [
        "  accumulate_allreduce_grads_in_fp32 .............. False",
        "  fp16 ............................................ True",
        "  use_distributed_optimizer ....................... True",
        "  data_parallel_size .............................. 8",
        "  world_size ...................................... 16",
        COUNT + "1",
        "Params for bucket 1 (10 elements):",
    ]
    workload = log(rows)
    assert table(workload) == {("reduce_scatter", "float16", 20): 1.0, ("all_gather", "float16", 20): 1.0}
    assert {m.message.group_size for m in workload.messages} == {8}
    assert workload.provenance.world_size == 16
    assert not any("assumed" in note for note in workload.provenance.notes)


def test_buffers_of_a_rank_add_up_and_ranks_do_not(log):
    """Dense and expert gradients have a buffer each; every pipeline stage logs its own."""
    one = ["Params for bucket 1 (10 elements):", "Params for bucket 1 (10 elements):", COUNT + "1", COUNT + "1"]
    assert table(log(one)) == {("all_reduce", "float32", 40): 2.0}
    assert any("2 buffers" in note for note in log(one).provenance.notes)
    stages = [f"{prefix}{line}" for prefix in ("0: ", "[rank4]:", "[default5]:", "[1,6]<stdout>:") for line in one[:1]]
    workload = log(stages)
    assert table(workload) == {("all_reduce", "float32", 40): 1.0}
    assert workload.provenance.ranks_read == (0, 4, 5, 6)
    with pytest.raises(TraceError, match="rank 0 appears twice"):
        log(stages, stages)


def test_missing_buckets_are_said(log):
    """The log was cut after the first of three."""
    notes = log([COUNT + "3", "Params for bucket 1 (10 elements):"]).provenance.notes
    assert "partial: 1 of 3 buckets are in 0.log" in notes


def test_log_without_buckets_is_refused_with_the_reason(log):
    """And with what to record instead."""
    for rows, why in [
        ([COUNT + "2"], "their sizes are not there"),
        (["Params for bucket 1 (0 elements):"], "bucket of 0 bytes"),
        (["Params for bucket 1 (-7 elements):"], "no bucket lines"),
        (["hello"], "no bucket lines"),
    ]:
        with pytest.raises(TraceError, match=why) as caught:
            log(rows)
        assert caught.value.hint


def test_unknown_dtype_is_assumed_aloud(log):
    """A dtype that ncclt does not know."""
    workload = log(["Params for bucket 1 (10 elements, dtype torch.float4):"])
    assert table(workload) == {("all_reduce", "float32", 40): 1.0}
    assert any("'float4'" in note for note in workload.provenance.notes)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.integers(0, 60))
@example(b'{"0":', 1)  # no prefix ends in the middle of a word
@example(b'{"0"', 32)  # a line of the log in front of JSON is no prefix
def test_damaged_logs_are_read_in_part(tmp_path, noise, at):
    """Noise spoils at most the lines it touches."""
    assume(b"Params for bucket" not in noise)  # that is a line of the log, cut
    other = b"Params for bucket 2 (5 elements):"
    path = tmp_path / "fuzz.log"
    path.write_bytes(b"Params for bucket 1 (10 elements):\n" + other[:at] + noise + other[at:] + b"\n" + noise)
    MegatronLogReader().recognises(path)
    assert ("all_reduce", "float32", 40) in table(MegatronLogReader().read([path], name="fuzz"))


@pytest.mark.shared
def test_public_logs_give_the_extractors_elements(read_traces, extracted):
    """It lists elements per bucket; we list bytes, twice with a distributed optimizer (one file)."""
    files = {key: rows for key, rows in extracted.items() if key.startswith("megatron_log/")}
    assert len(files) == 5
    for file, rows in files.items():
        workload = read_traces(file)
        assert workload.provenance.source == "megatron_log"
        gradients = [m for m in workload.messages if m.message.collective != "all_gather"]
        found = {m.message.size_bytes // DTYPE_SIZES[m.message.dtype]: m.calls_per_step for m in gradients}
        assert found == {r["size_bytes"]: r["calls"] for r in rows}, file
        dtypes = {"torch.bfloat16": "bfloat16"}
        assert {m.message.dtype for m in gradients} == {dtypes.get(r["dtype"], "float32") for r in rows}, file
        assert (len(gradients) < len(workload.messages)) == ("moe" in file)
