"""Sources that mark no step: they say so everywhere, and never call what they hold a step."""

import json
import re
from dataclasses import replace

import pytest

from ncclt.cli.advise import advise
from ncclt.cli.profile import print_profile, profile_document
from ncclt.cli.report import report
from ncclt.cli.studies import show
from ncclt.cli.tune import tune
from ncclt.core.message import Collective, Message
from ncclt.core.workload import WHOLE_FILE, MessageCalls, Provenance, Workload
from ncclt.errors import UsageError
from ncclt.profile import read_workload
from ncclt.prove.payback import describe_cost, estimate_gain
from ncclt.testing.samples import sample_recommendation, sample_study, sample_trial

SOURCES = {
    "tracelens": "rank,Collective name,Group size,dtype,In msg nelems,Out msg nelems,operation_count\n"
    "0,allreduce,2,Float,100,100,6\n",
    "csv": "collective,size_bytes,calls,dtype\nall_reduce,400,6,float32\n",
    "nccl_log": "n0:1:9 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 100 datatype 7 op 0 root 0 "
    "comm 0xa [nranks=2] stream 0x3\n" * 6,
    "aicb": "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count\n"
    "CommType.all_reduce,CommGroup.dp_group,2,400,backward,None,None,,None,None,None,6\n",
}


@pytest.fixture(params=sorted(SOURCES))
def workload(request, tmp_path):
    """A file of six equal calls, of each source."""
    path = tmp_path / "file"
    path.write_text(SOURCES[request.param])
    return read_workload([path], name="w", source=request.param)


def test_it_is_said_in_words_and_in_json(workload, capsys):
    print_profile(workload, limit=0)
    out = capsys.readouterr().out
    assert "whole file, number of steps unknown" in out
    assert "calls per file" in out
    assert "for the whole file (" in out
    assert not [line for line in out.splitlines() if "step" in line and "number of steps unknown" not in line]
    document = profile_document(workload)
    assert document["provenance"]["whole_file"] is True
    assert document["provenance"]["steps"] == 0
    assert WHOLE_FILE in document["provenance"]["notes"]
    assert Workload.from_document(json.loads(json.dumps(workload.to_document()))) == workload


def test_it_is_divided_by_the_steps_that_somebody_knows(workload, capsys):
    divided = workload.over_steps(3, "as told")
    assert [m.calls_per_step for m in divided.messages] == [2.0]
    assert (divided.provenance.steps, divided.provenance.whole_file) == (3, False)
    assert WHOLE_FILE not in divided.provenance.notes
    print_profile(divided, limit=0)
    assert "calls per step" in capsys.readouterr().out
    with pytest.raises(UsageError):
        divided.over_steps(2, "again")
    with pytest.raises(UsageError):
        workload.over_steps(0, "none")


def test_no_payback_in_steps_is_claimed(workload):
    verdict = replace(sample_recommendation("r").table.verdict, default_us=1000.0, policy_us=900.0)
    study = replace(sample_study("s"), workload=workload)
    trials = [sample_trial(0)]
    gain = estimate_gain(study, trials, verdict)
    assert (gain.payback_steps, gain.payback_hours, gain.gpu_hours_per_week, gain.worth) == (None, None, None, "")
    assert "for the whole file" in gain.words
    assert "payback unknown" in describe_cost(study, trials, gain)
    assert estimate_gain(replace(study, workload=workload.over_steps(2, "as told")), trials, verdict).payback_steps


def test_an_estimate_compares_no_step_with_it(command, workload):
    command.store.workloads.add(workload)
    words = ("--model", "w", "--cluster", "dgx-a100", "--nodes", "2", "--gpus-per-node", "1")
    out = command(advise, *words)
    assert "for the whole file" in out
    assert "a step" not in out
    with pytest.raises(UsageError, match="no known number of steps"):
        command(advise, *words, "--compute-ms", "5")


def test_no_ending_and_no_report_of_its_study_speaks_of_a_step(command):
    command.store.workloads.add(
        Workload(
            name="w",
            messages=tuple(
                MessageCalls(
                    message=Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size),
                    calls_per_step=6,
                )
                for size in (32 << 20, 4 << 10)
            ),
            provenance=Provenance(source="csv", notes=(WHOLE_FILE,), whole_file=True),
        )
    )
    said = command(tune, "--model", "w", "--cluster", "mi355x-2x8", "--patience", "40", "-v")
    study = command.store.studies.page().items[0].study.id
    shown, page = command(show, study), command(report, study)
    for text in (said, shown):
        assert "demonstration: w on mi355x-2x8 communicates " in text
        assert "all, per file" in text
        assert "saved" in text
        assert "µs/file" in text
    assert "µs per file" in shown
    assert "time for the whole file" in page
    for text in (said, shown, page):
        assert not re.findall(r"Calls / step|µs/step|\bper step\b|\bof the step\b|\ba step\b", text)
