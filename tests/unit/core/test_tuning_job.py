"""A tuning job as a record: what it refuses, what its study is named by, what `ncclt tune` is given."""

from dataclasses import replace

import pytest

from ncclt.core.tuning_job import JobState, TuningJob
from ncclt.errors import UsageError
from ncclt.testing.samples import sample_cluster, sample_workload

CLUSTER = replace(sample_cluster("hall"), gpus_per_node=8, driver="570.1")
WORKLOAD = sample_workload("chat")
JOB = TuningJob(id="a" * 16, cluster="hall", model="chat")


def test_only_queued_and_running_jobs_have_not_ended():
    assert [state for state in JobState if not state.ended] == [JobState.QUEUED, JobState.RUNNING]


def test_what_no_job_can_be_is_refused(subtests):
    for wrong in [
        {"priority": 0},
        {"priority": 10},
        {"nodes": 0},
        {"gpus_per_node": 0},
        {"gpus_per_node": -1},
        {"trials": 0},
    ]:
        with subtests.test(wrong=wrong), pytest.raises(UsageError, match=str(next(iter(wrong.values())))):
            replace(JOB, **wrong)


@pytest.mark.parametrize("right", [{"priority": 1}, {"priority": 9}, {"nodes": 1, "gpus_per_node": 1}], ids=str)
def test_the_first_and_the_last_priority_and_a_single_gpu_are_taken(right):
    job = replace(JOB, **right)
    assert {name: getattr(job, name) for name in right} == right


def test_the_same_request_has_the_same_study_whoever_asks():
    study = JOB.on(CLUSTER, WORKLOAD, again=False).study
    assert study.startswith("chat-hall-2x8-job-")
    assert replace(JOB, id="b" * 16, by="ann", priority=9).on(CLUSTER, WORKLOAD, again=False).study == study
    assert replace(JOB, nodes=2).on(CLUSTER, WORKLOAD, again=False).study == study


def test_what_changes_the_answer_changes_the_study(subtests):
    for changed in [
        (replace(JOB, nodes=1), CLUSTER, WORKLOAD, False),
        (replace(JOB, gpus_per_node=4), CLUSTER, WORKLOAD, False),
        (replace(JOB, nccl_version="2.29.1"), CLUSTER, WORKLOAD, False),
        (replace(JOB, seed=1), CLUSTER, WORKLOAD, False),
        (replace(JOB, trials=7), CLUSTER, WORKLOAD, False),
        (JOB, replace(CLUSTER, gpu="H200"), WORKLOAD, False),
        (JOB, replace(CLUSTER, driver="580.1"), WORKLOAD, False),
        (
            JOB,
            CLUSTER,
            replace(WORKLOAD, messages=WORKLOAD.messages[:1]),
            False,
        ),
        (JOB, CLUSTER, WORKLOAD, True),
    ]:
        with subtests.test(changed=changed):
            job, cluster, workload, again = changed
            studies = {job.on(cluster, workload, again=again).study, JOB.on(CLUSTER, WORKLOAD, again=False).study}
            assert len(studies) == 2


def test_measuring_again_is_another_study_for_each_job():
    again = [replace(JOB, id=id).on(CLUSTER, WORKLOAD, again=True).study for id in ("a" * 16, "b" * 16)]
    assert len({*again}) == 2


def test_two_jobs_ask_for_the_same_whatever_their_id_time_and_author():
    other = replace(JOB, id="b" * 16, created="2026-11-23T10:00:00+00:00", by="ann", study="s")
    assert JOB.is_same_request(other)
    assert not JOB.is_same_request(replace(other, priority=1))
    assert not JOB.is_same_request(replace(other, seed=1))


def test_tune_is_given_what_was_asked_for_and_nothing_else():
    asked = replace(
        JOB,
        nodes=2,
        gpus_per_node=4,
        nccl_version="2.29.1",
        trials=9,
        seconds=60.0,
        gpu_hours=1.5,
        blocks=5,
        seed=3,
        prove_variables=True,
        study="s",
    )
    assert asked.arguments() == (
        "--model=chat",
        "--cluster=hall",
        "--nodes=2",
        "--gpus-per-node=4",
        "--nccl-version=2.29.1",
        "--trials=9",
        "--time=60.0",
        "--gpu-hours=1.5",
        "--blocks=5",
        "--seed=3",
        "--study=s",
        "--prove-variables",
    )
    usual = JOB.arguments()
    assert not [word for word in usual if word.startswith(("--nodes", "--time", "--gpu-hours", "--prove"))]
