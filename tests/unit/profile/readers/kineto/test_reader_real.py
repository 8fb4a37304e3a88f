"""Kineto traces that nobody here wrote, against what an independent extractor found in them."""

from collections import Counter

import pytest

from ncclt.core.message import parse_dtype
from ncclt.errors import TraceError
from ncclt.testing.reader_contract import message_table

pytestmark = pytest.mark.shared

EXACT = [
    "kineto_hta/base__base.json.gz",
    "kineto_hta/distributed_info_unavailable__distributed_info_not_found.json.gz",
    "kineto_hta/nccl_parser_config__nccl_data.json.gz",
    "kineto_tracelens/b200_eager_trace.json.gz",
    "generated/kineto_gloo_torch2.8_fsdp1_rank0.json.gz",
    "generated/kineto_gloo_torch2.8_fsdp2_rank0.json.gz",
    "generated/kineto_gloo_torch2.8_rank0.json.gz",
    "generated/kineto_gloo_torch2.8_rank1.json.gz",
]
ONE_RANK = "kineto_hta/ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
CPU_ONLY = "kineto_hta/cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"
QUEUE = "kineto_hta/negative_queue_length_values_check__rank0.json.gz"
DLRM = "kineto_param_dlrm/dlrm_kineto.tar.gz"


def _found(workload):
    """Return what was read as (collective, dtype, bytes, group) -> calls in the complete steps."""
    steps = workload.provenance.steps or 1
    return Counter({key: round(calls * steps, 6) for key, calls in message_table(workload).items()})


def _expected(rows):
    """Return the extractor's rows in the same form; it writes null for a group that it cannot know, we write 0."""
    counted = Counter()
    for row in rows:
        collective = "send_recv" if row["collective"] in ("send", "recv") else row["collective"]
        counted[collective, parse_dtype(row["dtype"]), row["size_bytes"], row["group_size"] or 0] += row["calls"]
    return counted


@pytest.mark.parametrize("file", EXACT)
def test_messages_are_those_of_the_extractor(read_traces, extracted, file):
    """Collective, dtype, size, group and calls agree exactly."""
    assert _found(read_traces(file)) == _expected(extracted[file])


def test_job_of_one_rank_is_refused(read_traces):
    """The extractor lists its calls, which send nothing."""
    with pytest.raises(TraceError, match="group of one rank, which sends nothing"):
        read_traces(ONE_RANK)


def test_group_of_reduce_scatter_is_told_by_its_operator(read_traces, extracted):
    """The extractor is wrong here: it gives these reduce_scatters the world of 16 ranks.

    Their operators show an output of [8192, 384] for an input of [65536, 384]: 8 ranks, like the all_gathers of the
    same file. It also lists all_to_alls of 0 bytes, which move nothing and are no messages.
    """
    workload, expected = read_traces(QUEUE), _expected(extracted[QUEUE])
    corrected = Counter()
    for (collective, dtype, size, group), calls in expected.items():
        if size:
            corrected[collective, dtype, size, 8 if collective == "reduce_scatter" else group] += calls
    assert _found(workload) == corrected
    assert "left out: 10 x alltoallbase of 0 bytes" in workload.provenance.notes


def test_calls_outside_the_only_marked_step_do_not_count(read_traces, extracted):
    """The extractor counts 5 calls in the file; one step of 210 ms is marked in a recording of 1.3 s.

    One call of each size lies inside that step, so one per step is the truth and five would be wrong. All ten process
    groups of the job have 300 ranks, so the group is known where the extractor writes null.
    """
    workload = read_traces(CPU_ONLY)
    assert _found(workload) == {
        ("all_reduce", "float32", 8329644, 300): 1.0,
        ("all_reduce", "float32", 1285084, 300): 1.0,
    }
    in_file = {(c, d, s) for c, d, s, _group in _expected(extracted[CPU_ONLY])}
    assert {key[:3] for key in _found(workload)} == in_file
    assert "left out: 8 of 10 calls, outside complete steps" in workload.provenance.notes


def test_eight_ranks_in_one_archive_are_counted_once(read_traces, extracted):
    """Eight files show each call eight times; the archive reads like its first rank."""
    workload = read_traces(DLRM)
    first = "kineto_param_dlrm/dlrm_kineto.tar.gz::worker0_step_12.1694128201545.pt.trace.json"
    assert _found(workload) == _expected(extracted[first])
    assert workload.provenance.ranks_read == tuple(range(8))
    assert workload.provenance.world_size == 8


def test_two_ranks_over_gloo_merge_into_one_view(read_traces, extracted):
    """Rank 0 sends what rank 1 receives: one message, and nothing is counted twice."""
    files = [f"generated/kineto_gloo_torch2.8_rank{rank}.json.gz" for rank in (0, 1)]
    assert _found(read_traces(*files)) == _expected(extracted[files[0]])


def test_trace_without_collectives_is_refused(read_traces):
    """A single-GPU trace says so instead of giving an empty workload."""
    with pytest.raises(TraceError, match="no collectives"):
        read_traces("kineto_hta/cuda_event_sync__event_sync_trace.json.gz")


def test_ranks_of_different_jobs_are_refused(read_traces):
    """A world of 2 and a world of 16 are no job."""
    with pytest.raises(TraceError, match="different jobs"):
        read_traces("kineto_hta/nccl_parser_config__nccl_data.json.gz", QUEUE)


def test_kernels_give_durations_in_new_and_old_traces(read_traces):
    """Joined by metadata in the one, by the launching call in the other; both within one step."""
    for file in ("kineto_hta/nccl_parser_config__nccl_data.json.gz", QUEUE, DLRM):
        workload = read_traces(file)
        assert all(m.recorded_us is not None and m.recorded_us > 0 for m in workload.messages)
    assert "kernels that belong to no recorded call: 5 of 80" in read_traces(QUEUE).provenance.notes


def test_provenance_names_versions_and_steps(read_traces):
    """What the head of the trace tells is kept."""
    origin = read_traces("kineto_hta/nccl_parser_config__nccl_data.json.gz").provenance
    assert origin.steps == 3
    assert origin.created == "2024-05-23"
    facts = dict(origin.detail)
    assert (facts["backend"], facts["nccl_version"], facts["torch"]) == ("nccl", "2.17.1", ">=2.4")


def test_waiting_for_other_ranks_is_not_exposed_communication(read_traces):
    """Eight ranks of DLRM: 1.58 ms have communication kernels alone, of which 0.56 ms are communication."""
    workload = read_traces(DLRM)
    assert workload.communication_us == pytest.approx(564)
    assert workload.exposed_us == pytest.approx(564)
    assert any("another 1.02 ms without computation" in note for note in workload.provenance.notes)
