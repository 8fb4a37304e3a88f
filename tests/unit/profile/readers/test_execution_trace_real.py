"""ExecutionTraces that nobody here wrote, against what an independent extractor found in them."""

from collections import Counter

import pytest

from ncclt.core.message import DTYPE_SIZES, parse_dtype
from ncclt.errors import TraceError
from ncclt.profile.readers.execution_trace import ExecutionTraceReader
from ncclt.profile.source import documents

pytestmark = pytest.mark.shared

DLRM = "et_param/dlrm_pytorch_et.tar.gz"
READ = {"et_chakra/1.0.2-chakra.0.0.4.tgz": (0, 2)}
ONE_RANK = ["et_param/1.0.3-chakra.0.0.4__resnet_1gpu_et.json.gz", "et_param/inputs__resnet_1gpu_et.json.tar.gz"]
REFUSED = {"et_chakra/json_trace.tar.gz": "21 communication nodes", "generated/et_gloo_torch2.8_rank0.json.gz": "gloo"}


def _found(workload):
    """Return (collective, bytes per element, bytes) -> calls in the file."""
    counted = Counter()
    for m in workload.messages:
        calls = round(m.calls_per_step * (workload.provenance.steps or 1), 6)
        counted[m.message.collective.value, DTYPE_SIZES[m.message.dtype], m.message.size_bytes] += calls
    return counted


def _expected(rows):
    """Return the extractor's rows in the same form; of old schemas it gives the element's size alone (`elt4`)."""
    counted = Counter()
    for row in rows:
        dtype = row["dtype"]
        width = int(dtype[3:]) if dtype.startswith("elt") else DTYPE_SIZES[parse_dtype(dtype)]
        counted[row["collective"], width, row["size_bytes"]] += row["calls"]
    return counted


@pytest.mark.parametrize("file", READ)
def test_messages_are_those_of_the_extractor(read_traces, extracted, file):
    """In every schema; the group is known where the extractor writes null, from the node or the list of groups."""
    steps, group = READ[file]
    workload = read_traces(file)
    assert _found(workload) == _expected(extracted[file])
    assert {m.message.group_size for m in workload.messages} == {group}
    assert (workload.provenance.source, workload.provenance.steps) == ("execution_trace", steps)
    assert workload.provenance.ranks_read == (0,)


@pytest.mark.parametrize("file", ONE_RANK)
def test_job_of_one_rank_is_refused(traces, read_traces, extracted, file):
    """The extractor lists its calls, which are read and send nothing."""
    (reading,) = [ExecutionTraceReader().read_rank(document) for document in documents(traces / file)]
    found = Counter()
    for (_group, m), calls in reading.calls.items():
        found[m.collective.value, DTYPE_SIZES[m.dtype], m.size_bytes] += calls
    assert found == _expected(extracted[file])
    assert reading.steps == 3
    with pytest.raises(TraceError, match="group of one rank, which sends nothing"):
        read_traces(file)


def test_eight_ranks_in_one_archive_are_counted_once(read_traces, extracted):
    """Eight files show each call eight times; the archive reads like its first rank."""
    workload = read_traces(DLRM)
    assert _found(workload) == _expected(extracted[f"{DLRM}::dlrm_eg_0.json"])
    assert workload.provenance.ranks_read == tuple(range(8))
    assert workload.provenance.world_size == 8
    assert {m.message.group_size for m in workload.messages} == {8}


def test_the_same_step_reads_the_same_from_both_recordings(read_traces):
    """The Kineto trace of this DLRM step lies there too."""
    other = read_traces("kineto_param_dlrm/dlrm_kineto.tar.gz")
    kept = {m.message: m.calls_per_step for m in read_traces(DLRM).messages}
    assert kept == {m.message: m.calls_per_step for m in other.messages}


@pytest.mark.parametrize("file", REFUSED)
def test_traces_without_sizes_are_refused_with_the_reason(read_traces, file):
    """They are recognised, and nothing is made up."""
    with pytest.raises(TraceError, match=REFUSED[file]) as caught:
        read_traces(file)
    assert caught.value.hint
