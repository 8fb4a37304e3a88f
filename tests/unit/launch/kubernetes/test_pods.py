"""What the state of pods and job means for a launch."""

import pytest

from ncclt.launch.kubernetes.driver import PodProgress, Stage, progress

RUNNING = {"phase": "Running", "containerStatuses": [{"name": "launcher", "state": {"running": {}}}]}


def ended(code, *, reason="Error", at="2026-11-21T10:00:05Z", container="launcher"):
    state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"name": container, "state": state}]}


def pod(name, status, *, container="launcher", index=None):
    metadata = {"name": name}
    if index is not None:
        metadata["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
    return {"metadata": metadata, "spec": {"containers": [{"name": container}]}, "status": status}


def worker(name, status=RUNNING):
    return pod(name, status, container="worker")


def judged(*pods, job=None, container="launcher", count=3):
    return progress(pods, job or {}, container=container, count=count)


def waiting(reason, message=""):
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "launcher", "state": state}]}


def test_nothing_is_there_yet():
    assert judged() == PodProgress(stage=Stage.PENDING, reason="0 of 3 pods run")


def test_a_launch_runs_when_all_of_its_pods_do():
    workers = [worker("w0"), worker("w1")]
    assert judged(*workers).stage is Stage.PENDING
    assert judged(*workers, pod("l", RUNNING)) == PodProgress(stage=Stage.RUNNING, leader="l")
    # One that is to go, beside the one that took its place.
    assert judged(*workers, worker("w2"), pod("l", RUNNING)).stage is Stage.RUNNING


@pytest.mark.parametrize(
    ("said", "why"), [({"reason": "Unschedulable"}, "Unschedulable"), ({}, "no reason")], ids=["reason", "nothing"]
)
def test_a_pod_without_a_node_has_at_least_a_word_for_it(said, why):
    condition = {"type": "PodScheduled", "status": "False", **said}
    assert judged(worker("w", {"phase": "Pending", "conditions": [condition]})).reason == f"pod w has no node: {why}"


@pytest.mark.parametrize(
    "condition", [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
)
def test_a_pod_that_has_its_node_is_merely_not_running_yet(condition):
    seen = judged(worker("w", {"phase": "Pending", "conditions": [condition]}))
    assert (seen.stage, seen.reason) == (Stage.PENDING, "0 of 3 pods run")


def test_a_worker_that_has_succeeded_is_not_waited_for():
    assert judged(worker("w0", ended(0)), worker("w1"), pod("l", RUNNING)).stage is Stage.RUNNING


def test_a_container_that_is_being_created_is_waited_for():
    assert judged(pod("l", waiting("ContainerCreating"))).reason == "pod l: ContainerCreating"
    assert judged(pod("l", waiting("ErrImagePull"))).stage is Stage.PENDING


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"])
def test_what_no_patience_cures_ends_the_waiting(reason):
    seen = judged(pod("l", waiting(reason, "no such image")))
    assert (seen.stage, seen.reason) == (Stage.UNSTARTABLE, f"pod l: {reason}: no such image")


def test_success_of_the_leader_counts_although_the_others_are_ended_then():
    seen = judged(pod("l", ended(0)), worker("w0", ended(143, at="2026-11-21T10:00:00Z")))
    assert seen == PodProgress(stage=Stage.ENDED, exit_code=0, leader="l")


def test_a_leader_succeeds_by_its_phase_or_by_all_of_its_containers():
    """A pod with a side car keeps running, and one whose containers are forgotten has its phase alone."""
    done = ended(0)["containerStatuses"][0]
    side_car = {"name": "side-car", "state": {"running": {}}}
    assert judged(pod("l", {"phase": "Succeeded"})).stage is Stage.ENDED
    assert judged(pod("l", {"phase": "Running", "containerStatuses": [done]})).exit_code == 0
    assert judged(pod("l", {"phase": "Running", "containerStatuses": [done, side_car]})).stage is Stage.PENDING
    assert judged(pod("l", {"phase": "Running"})).stage is Stage.PENDING


def test_the_first_failure_is_the_cause():
    seen = judged(
        pod("l", ended(1, at="2026-11-21T10:00:09Z")),
        worker("w0", ended(143, at="2026-11-21T10:00:09Z", container="worker")),
        worker("w1", ended(139, at="2026-11-21T10:00:02Z", container="worker")),
    )
    assert (seen.stage, seen.exit_code, seen.reason) == (Stage.ENDED, 139, "pod w1: exit code 139")
    assert seen.failed == ("l", "w0", "w1")


def test_memory_is_named():
    assert judged(pod("l", ended(137, reason="OOMKilled"))).reason == "pod l: out of memory"


def test_a_container_may_leave_a_last_word():
    status = ended(3)
    status["containerStatuses"][0]["state"]["terminated"]["message"] = "no GPU\n"
    assert judged(pod("l", status)).reason == "pod l: exit code 3 (no GPU)"


def test_a_pod_may_fail_as_a_whole():
    seen = judged(pod("l", RUNNING), worker("w0", {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}))
    assert (seen.stage, seen.exit_code, seen.reason) == (Stage.ENDED, None, "pod w0: Evicted: low on memory")
    killed = ended(137, container="worker") | {"reason": "Evicted", "message": "low on memory"}
    assert judged(pod("l", ended(1)), worker("w0", killed)).reason == "pod w0: Evicted: low on memory"


def test_a_pod_that_failed_counts_once_unless_its_node_was_taken():
    assert judged(pod("l", ended(1) | {"reason": "Odd"})).reason == "pod l: exit code 1"
    assert judged(pod("l", {"phase": "Failed"})).reason == "pod l: it failed"


def test_a_node_that_was_taken_is_the_cause_whatever_the_container_ended_with(subtests):
    cases = ["Evicted", "Preempted", "Terminated", "NodeLost"]
    for reason in cases:
        with subtests.test(reason=reason):
            seen = judged(pod("l", ended(137) | {"reason": reason}))
            assert (seen.exit_code, seen.reason, seen.failed) == (None, f"pod l: {reason}", ("l",))


def test_the_first_pod_of_a_train_job_leads():
    pods = [pod(f"n{index}", ended(0, container="node"), container="node", index=index) for index in (1, 0)]
    assert judged(*pods, container="node", count=2).leader == "n0"
    assert judged(pods[0], container="node", count=2).stage is Stage.PENDING


def test_a_job_that_failed_without_pods_was_not_started():
    condition = {"type": "Failed", "status": "True", "reason": "TrainingRuntimeNotSupported", "message": "no runtime"}
    job = {"status": {"conditions": [{"type": "Created", "status": "True"}, condition]}}
    seen = judged(job=job)
    assert seen.stage is Stage.UNSTARTABLE
    assert seen.reason == "the job failed: TrainingRuntimeNotSupported: no runtime"
    assert judged(pod("l", RUNNING), job=job).stage is Stage.ENDED


def test_a_job_that_has_not_failed_says_so_too():
    job = {"status": {"conditions": [{"type": "Failed", "status": "False", "reason": "NotYet"}]}}
    assert judged(job=job).stage is Stage.PENDING
    job["status"]["conditions"][0] = {"type": "Failed", "status": "True"}
    assert judged(job=job).reason == "the job failed: Failed"
