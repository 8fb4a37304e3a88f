"""The progress of a launch on Kubernetes, read from its pods and its job as kubectl prints them; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_UNSTARTABLE = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "CreateContainerConfigError"}
    | {"CreateContainerError", "RunContainerError", "StartError"}
)
"""Reasons of a waiting container that waiting does not cure; ErrImagePull is not one, because it is retried first."""

TAKEN = ("Evicted", "Preempted", "Terminated", "NodeLost")
"""Reasons of a failed pod whose node was taken away, whatever its containers ended with (Terminated: of the node)."""

_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


class Stage(StrEnum):
    """How far a launch has come."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    UNSTARTABLE = "unstartable"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodProgress:
    """How far a launch has come.

    Attributes:
        stage: pending until every pod runs.
        reason: why it is waiting, or how it failed; empty where neither applies.
        exit_code: of the first container that failed, or 0; None = it has not ended, or ended without one.
        leader: the pod that prints the result; empty = it does not exist yet.
        failed: names of the pods that failed.
    """

    stage: Stage
    reason: str = ""
    exit_code: int | None = None
    leader: str = ""
    failed: tuple[str, ...] = ()


def progress(pods: Sequence[Any], job: Mapping[str, Any], *, container: str, count: int) -> PodProgress:
    """Judge a launch.

    Args:
        pods: the items of `kubectl get pods --output json`.
        job: the MPIJob or TrainJob.
        container: the name of the container that prints the result: `launcher`, or `node` in the first of all pods.
        count: how many pods the job has in the end.
    """
    leader = next((_name(pod) for pod in pods if _leads(pod, container)), "")
    # First of all: after a success the operator ends the other pods, which then look as if they had failed.
    if any(_leads(pod, container) and _succeeded(pod) for pod in pods):
        return PodProgress(stage=Stage.ENDED, exit_code=0, leader=leader)
    if failures := sorted(failure for pod in pods for failure in _failures(pod)):
        _when, reason, exit_code, _pod = failures[0]
        failed = tuple(sorted({pod for _when, _reason, _code, pod in failures}))
        return PodProgress(stage=Stage.ENDED, reason=reason, exit_code=exit_code, leader=leader, failed=failed)
    if refusal := _condition(job, "Failed"):
        stage = Stage.ENDED if pods else Stage.UNSTARTABLE
        return PodProgress(stage=stage, reason=f"the job failed: {refusal}", leader=leader)
    if unstartable := next((said for pod in pods for said in _unstartable(pod)), ""):
        return PodProgress(stage=Stage.UNSTARTABLE, reason=unstartable, leader=leader)
    running = [pod for pod in pods if _status(pod).get("phase") in ("Running", "Succeeded")]
    if len(running) >= count:
        return PodProgress(stage=Stage.RUNNING, leader=leader)
    waiting = next((said for pod in pods for said in _waiting(pod)), f"{len(running)} of {count} pods run")
    return PodProgress(stage=Stage.PENDING, reason=waiting, leader=leader)


def _name(pod: Any) -> str:
    return str(pod["metadata"]["name"])


def _status(pod: Any) -> Mapping[str, Any]:
    status: Mapping[str, Any] = pod.get("status") or {}
    return status


def _containers(pod: Any) -> Sequence[Any]:
    statuses: Sequence[Any] = _status(pod).get("containerStatuses") or ()
    return statuses


def _leads(pod: Any, container: str) -> bool:
    metadata = pod["metadata"]
    index = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}.get(_COMPLETION_INDEX, "0")
    return index == "0" and any(each["name"] == container for each in pod["spec"]["containers"])


def _failures(pod: Any) -> Iterator[tuple[str, str, int | None, str]]:
    """Yield (when, how, exit code, pod) of each container that failed, and of a pod that failed as a whole."""
    # A runtime may restart a container that failed: only its last state shows that.
    states = [each.get(state) or {} for each in _containers(pod) for state in ("lastState", "state")]
    ended = [state["terminated"] for state in states if (state.get("terminated") or {}).get("exitCode")]
    for end in ended[:1]:
        how = "out of memory" if end.get("reason") == "OOMKilled" else f"exit code {end['exitCode']}"
        said = f" ({end['message'].strip()})" if end.get("message") else ""
        yield end.get("finishedAt") or "", f"pod {_name(pod)}: {how}{said}", int(end["exitCode"]), _name(pod)
    status = _status(pod)
    if status.get("phase") == "Failed" and (not ended or status.get("reason") in TAKEN):
        how = ": ".join(word for word in (status.get("reason"), status.get("message")) if word) or "it failed"
        yield "", f"pod {_name(pod)}: {how}", None, _name(pod)


def _succeeded(pod: Any) -> bool:
    ended = [(each.get("state") or {}).get("terminated") for each in _containers(pod)]
    return _status(pod).get("phase") == "Succeeded" or (
        bool(ended) and all(end is not None and end.get("exitCode") == 0 for end in ended)
    )


def _unstartable(pod: Any) -> Iterator[str]:
    for each in _containers(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _UNSTARTABLE:
            said = f": {waiting['message']}" if waiting.get("message") else ""
            yield f"pod {_name(pod)}: {waiting['reason']}{said}"


def _waiting(pod: Any) -> Iterator[str]:
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield f"pod {_name(pod)} has no node: {condition.get('message') or condition.get('reason') or 'no reason'}"
    for each in _containers(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            yield f"pod {_name(pod)}: {waiting['reason']}"


def _condition(job: Mapping[str, Any], kind: str) -> str:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == "True":
            return ": ".join(word for word in (condition.get("reason"), condition.get("message")) if word) or kind
    return ""
