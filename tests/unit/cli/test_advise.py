"""`ncclt advise`: from a trace or a shipped workload to a table of predictions, and what it refuses."""

import json
from dataclasses import replace

import pytest

from ncclt.cli.advise import advise
from ncclt.cli.profile import import_files
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import UsageError
from ncclt.testing.samples import sample_study, sample_trial

pytest.importorskip("torch")

VIT = ("--model", "vit-l-32", "--cluster", "aws-g6e", "--step-ms", "701", "--compute-ms", "114")
R50 = ("kineto_hta", "nccl_parser_config__nccl_data.json.gz")


def _json(command, *words):
    document = json.loads(command(advise, "--json", *words))
    return document | (document["advice"] or {})


def test_a_shipped_workload_needs_two_times_and_gets_its_table(command):
    document = _json(command, *VIT)
    assert (document["predicted"], document["simulated"], document["sharding"]) == (True, False, "DDP")
    assert document["exposed_ms"] == pytest.approx(587)
    by_name = {row["change"]: row for row in document["changes"]}
    assert by_name["PowerSGD, rank 1"]["lossy"]
    assert by_name["PowerSGD, rank 1"]["step_ms"] < by_name["bf16 or fp16 compression"]["step_ms"] < 701
    assert by_name["static_graph"]["step_ms"] is None
    assert "unused parameters" in by_name["static_graph"]["not_predicted"]
    predicted = [row["step_ms"] for row in document["changes"] if row["step_ms"] is not None]
    assert predicted == sorted(predicted)
    assert all(row["code"] for row in document["changes"] if row["step_ms"] is not None)
    assert document["test_with"].startswith("ncclt verify --against")


def test_compute_alone_predicts_the_step_itself(command):
    words = ("--model", "bert", "--cluster", "dgx-a100", "--nodes", "2", "--compute-ms", "100")
    document = _json(command, *words)
    assert not document["step"]["recorded"]
    assert document["step"]["low_ms"] < document["step"]["step_ms"] < document["step"]["high_ms"]
    names = [row["change"] for row in document["changes"]]
    assert {"1 node x 8 GPUs", "4 nodes x 8 GPUs"} <= set(names)
    assert "%, predicted)" in command(advise, *words)


@pytest.mark.shared
def test_a_trace_goes_on_to_its_ceiling_and_to_advice_without_a_cluster(command, shared_data):
    """Its own times suffice; other numbers of nodes need a cluster."""
    said = command(import_files, str(shared_data.joinpath("traces", *R50)), "--name", "r50")
    assert "no NCCL setting can gain more" in said
    assert "next: `ncclt advise --model r50`" in said
    document = _json(command, "--model", "r50")
    assert document["exposed_ms"] == pytest.approx(10.540, abs=0.001)
    assert not any("nodes" in row["change"] for row in document["changes"])
    assert any("--cluster NAME adds predictions for other numbers of nodes" in note for note in document["notes"])
    with pytest.raises(UsageError, match="need --cluster"):
        command(advise, "--model", "r50", "--nodes", "2")


def test_a_workload_without_times_needs_a_cluster(command):
    with pytest.raises(UsageError, match="lacks the number of GPUs and the times of calls") as refused:
        command(advise, "--model", "bert")
    assert "--cluster NAME" in refused.value.hint


@pytest.mark.shared
def test_a_trace_shows_its_own_backward_pass_and_copies(command, shared_data):
    command(import_files, str(shared_data.joinpath("traces", *R50)), "--name", "r50")
    words = ("--model", "r50", "--cluster", "pcie-pair")
    document = _json(command, *words)
    # The recorded step is of other GPUs: what is exposed here is a prediction, and no more than what is sent.
    assert 0 < document["exposed_ms"] <= document["estimate"]["communication_s"] * 1e3
    assert any("the recorded step of" in note for note in document["notes"])
    document = _json(command, *words, "--step-ms", "222.44")
    assert not any("not recorded" in note for note in document["notes"])
    by_name = {row["change"]: row for row in document["changes"]}
    assert "0.75 ms of copies" in by_name["gradient_as_bucket_view"]["note"]
    # Most of what is exposed are gaps in compute: no change may claim it.
    assert document["model_step_ms"] < document["step"]["step_ms"] - 5
    assert min(row["step_ms"] for row in document["changes"] if row["step_ms"]) > 218
    text = command(advise, *words, "--step-ms", "222.44")
    assert "ms of it. None of these changes fix the rest, often CPU launch overhead." in text


@pytest.mark.shared
def test_a_trace_without_kernels_asks_for_compute(command, shared_data):
    path = shared_data / "traces" / "generated" / "kineto_gloo_torch2.8_rank0.json.gz"
    command(import_files, str(path), "--name", "gloo")
    words = ("--model", "gloo", "--cluster", "pcie-pair")
    assert "exposed communication" in _json(command, *words)["no_advice"]
    assert "ncclt profile record" in command(advise, *words)
    timed = _json(command, *words, "--step-ms", "128.57", "--compute-ms", "90")
    assert timed["exposed_ms"] == pytest.approx(38.57, abs=0.01)


@pytest.mark.shared
def test_a_trace_of_embeddings_is_read_on_its_sixteen_gpus(command, shared_data):
    path = shared_data / "traces" / "kineto_hta" / "negative_queue_length_values_check__rank0.json.gz"
    command(import_files, str(path), "--name", "dlrm")
    document = _json(command, "--model", "dlrm", "--cluster", "aws-p4d")
    assert (document["nodes"], document["gpus_per_node"]) == (2, 8)
    other = _json(command, "--model", "dlrm", "--cluster", "aws-p4d", "--nodes", "1")
    assert "recorded on 16 GPUs" in other["no_advice"]
    assert other["estimate"]["communication_s"] > 0


def test_without_step_times_it_says_what_to_record(command):
    document = _json(command, "--model", "bert", "--cluster", "dgx-a100")
    assert (document["advice"], document["estimate"]["bound"]) == (None, None)
    assert "lacks the step time" in document["no_advice"]
    assert "ncclt profile record --name" in command(advise, "--model", "bert", "--cluster", "dgx-a100")


def test_a_cluster_without_a_network_has_no_row_for_more_nodes(command):
    document = _json(command, "--model", "bert", "--cluster", "pcie-pair", "--compute-ms", "100")
    assert not any("nodes x" in row["change"] for row in document["changes"])


def test_recorded_times_are_named(command):
    cluster = command.store.clusters.get("mi355x-2x8")
    command.store.studies.open(
        replace(sample_study("rec", id="rec"), cluster=cluster, simulated=False, launcher="replay")
    )
    message = Message(
        collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=28351488, group_size=16, spans_nodes=True
    )
    result = TrialResult(outcome=Outcome.OK, measurements=(Measurement(message=message, samples_us=(246.0,)),))
    command.store.trials.add("rec", replace(sample_trial(0), setting=DEFAULT, result=result))
    words = ("--model", "bert", "--cluster", "mi355x-2x8", "--compute-ms", "100")
    document = _json(command, *words)
    assert (document["simulated"], document["recorded"]) == (False, [cluster.recorded_label])
    assert f"note: measured times are {cluster.recorded_label}\n" in command(advise, *words)


def test_unaligned_shards_are_named_and_padding_is_predicted_from_measured_times_alone(command):
    """As in pytorch/pytorch#195450: 8,388,618 bytes per rank. Of one collective both sizes were measured."""
    cluster = command.store.clusters.get("dgx-a100").sized(nodes=1)
    gather, scatter = (
        Message(collective=collective, dtype="bfloat16", size_bytes=67_108_944, group_size=8)
        for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    )
    command.store.workloads.add(
        Workload(
            name="sharded",
            messages=tuple(MessageCalls(message=one, calls_per_step=10) for one in (gather, scatter)),
            provenance=Provenance(source="kineto", world_size=8),
            step_time_us=9e5,
            exposed_us=1e5,
        )
    )
    times_us = ((gather, 700.0), (replace(gather, size_bytes=67_108_992), 350.0))
    measured = tuple(Measurement(message=one, samples_us=(time_us,)) for one, time_us in times_us)
    for id, simulated in (("sim", True), ("real", False)):
        study = replace(sample_study(id, id=id), cluster=cluster, simulated=simulated, launcher="local")
        command.store.studies.open(study)
        result = TrialResult(outcome=Outcome.OK, measurements=measured)
        command.store.trials.add(id, replace(sample_trial(0), setting=DEFAULT, result=result))
        words = ("--model", "sharded", "--cluster", "dgx-a100", "--nodes", "1")
        first, second = _json(command, *words)["unaligned"]
        assert (first["collective"], first["bytes_per_rank"], first["padded_bytes"]) == (
            "all_gather",
            8_388_618,
            67_108_992,
        )
        assert first["padding_elements_per_rank"] == 3
        assert (first["speedup"], first["saved_us_per_step"]) == ((None, None) if simulated else (2.0, 3500.0))
        assert "gain not known" in second["gain"]
    text = command(advise, *words)
    assert "Alignment: in 2 messages (100 % of the bytes), the bytes per rank are not a multiple of 16." in text
    size = "67,108,944 B bfloat16, 8,388,618 B per rank: add 3 elements per rank"
    said = "measured: 700.0 µs as it is (1 launch), 350.0 µs aligned (1 launch): 2.00x, 3.5 ms per step"
    assert f"  all_gather of {size}; {said}\n" in text
    assert f"  reduce_scatter of {size}\n" in text
    assert "  reduce_scatter: gain not known" in text
