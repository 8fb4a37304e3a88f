"""Runs one launch on Kubernetes from beginning to end with kubectl; started as a program by `KubernetesLauncher`.

It applies the manifests, waits for the pods, whose states `progress` reads, prints the log of the first pod, and
deletes what it made, whatever happens. Its exit code is that of the command; messages about the launch itself go to
standard error as `ncclt: kubernetes: ...`.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType
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
    """Stage of a launch."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    UNSTARTABLE = "unstartable"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodProgress:
    """Progress of a launch.

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
    conditions = (job.get("status") or {}).get("conditions") or ()
    if failed_job := [each for each in conditions if each.get("type") == "Failed" and each.get("status") == "True"]:
        words = (failed_job[0].get("reason"), failed_job[0].get("message"))
        refusal = ": ".join(word for word in words if word) or "Failed"
        stage = Stage.ENDED if pods else Stage.UNSTARTABLE
        return PodProgress(stage=stage, reason=f"the job failed: {refusal}", leader=leader)
    if unstartable := next((reason for pod in pods for reason in _unstartable(pod)), ""):
        return PodProgress(stage=Stage.UNSTARTABLE, reason=unstartable, leader=leader)
    running = [pod for pod in pods if _status(pod).get("phase") in ("Running", "Succeeded")]
    if len(running) >= count:
        return PodProgress(stage=Stage.RUNNING, leader=leader)
    waiting = next((reason for pod in pods for reason in _waiting(pod)), f"{len(running)} of {count} pods run")
    return PodProgress(stage=Stage.PENDING, reason=waiting, leader=leader)


def _name(pod: Any) -> str:
    return str(pod["metadata"]["name"])


def _status(pod: Any) -> Any:
    return pod.get("status") or {}


def _containers(pod: Any) -> Any:
    return _status(pod).get("containerStatuses") or ()


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
        message = f" ({end['message'].strip()})" if end.get("message") else ""
        yield end.get("finishedAt") or "", f"pod {_name(pod)}: {how}{message}", int(end["exitCode"]), _name(pod)
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
            message = f": {waiting['message']}" if waiting.get("message") else ""
            yield f"pod {_name(pod)}: {waiting['reason']}{message}"


def _waiting(pod: Any) -> Iterator[str]:
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield f"pod {_name(pod)} has no node: {condition.get('message') or condition.get('reason') or 'no reason'}"
    for each in _containers(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            yield f"pod {_name(pod)}: {waiting['reason']}"


NOT_STARTED = "not started"
TIMED_OUT = "timed out"
LOST = "lost"
_EXIT_NOT_STARTED = 125  # as docker run exits for a container that could not be made
_EXIT_TIMED_OUT = 124  # as timeout(1) exits
_EXIT_LEFT = 1

_CALL_S = 60.0
_DELETE_S = 60
"""Max wait for pods to end: they get 30 s between SIGTERM and SIGKILL by default."""

_SILENT_CALLS = 10
"""Failed calls in a row after which a launch is given up: the cluster is unreachable, or the job was deleted."""

_TAIL_LINES = 20
_MOST_FAILED = 3
"""Pods whose last lines are shown; the others mostly repeat them."""


class Driver:
    """One launch.

    Args:
        kubectl: the program and the options of every call.
        arguments: of this program.
    """

    def __init__(self, kubectl: Sequence[str], arguments: argparse.Namespace) -> None:
        self._kubectl = tuple(kubectl)
        self._arguments = arguments
        self._complaint = ""

    def run(self) -> int:
        """Run the launch and return its exit code."""
        try:
            exit_code = self._launch()
        finally:
            deleted = self._delete()
        return exit_code if deleted else exit_code or _EXIT_LEFT

    def _launch(self) -> int:
        applied = self._call("apply", "--filename", self._arguments.manifest)
        if applied.returncode != 0:
            return _tell(NOT_STARTED, _last_line(applied), _EXIT_NOT_STARTED)
        state = self._wait({Stage.RUNNING, Stage.UNSTARTABLE, Stage.ENDED}, within_s=self._arguments.pending_s)
        if state is None:
            return _tell(NOT_STARTED, f"the job cannot be observed: {self._complaint}", _EXIT_NOT_STARTED)
        if state.stage is Stage.PENDING:
            return _tell(NOT_STARTED, f"after {self._arguments.pending_s:.0f} s {state.reason}", _EXIT_NOT_STARTED)
        if state.stage is Stage.RUNNING:
            state = self._wait({Stage.ENDED}, within_s=self._arguments.timeout_s)
        if state is None:
            return _tell(LOST, f"the job cannot be observed: {self._complaint}", _EXIT_LEFT)
        if state.stage is Stage.UNSTARTABLE:
            return _tell(NOT_STARTED, state.reason, _EXIT_NOT_STARTED)
        self._show_logs(state)
        if state.stage is not Stage.ENDED:
            return _tell(TIMED_OUT, state.reason or "the command did not end", _EXIT_TIMED_OUT)
        if state.reason:
            sys.stderr.write(f"ncclt: kubernetes: {state.reason}\n")
        return 1 if state.exit_code is None else state.exit_code

    def _wait(self, stages: set[Stage], *, within_s: float) -> PodProgress | None:
        """Wait until the launch has reached one of some stages, or the time is over; None = out of sight."""
        arguments = self._arguments
        deadline = time.monotonic() + within_s
        silent = 0
        while True:
            pods = self._get("pods", "--selector", arguments.selector)
            job = self._get(arguments.kind, arguments.name)
            state = None
            if pods is not None and job is not None:
                items = pods.get("items") or []
                state = progress(items, job, container=arguments.container, count=arguments.pods)
            silent = 0 if state else silent + 1
            if silent >= _SILENT_CALLS:
                return None
            if state and (state.stage in stages or time.monotonic() >= deadline):
                return state
            time.sleep(arguments.poll_s)

    def _show_logs(self, state: PodProgress) -> None:
        if state.leader:
            # Not captured: a log may be of any length.
            argv = (*self._kubectl, "logs", state.leader, "--container", self._arguments.container)
            try:
                subprocess.run(argv, stdin=subprocess.DEVNULL, check=False, timeout=_CALL_S)
            except subprocess.TimeoutExpired:
                sys.stderr.write(f"ncclt: kubernetes: the log of {state.leader} was cut off after {_CALL_S:.0f} s\n")
        for pod in [name for name in state.failed if name != state.leader][:_MOST_FAILED]:
            call = self._call("logs", pod, "--tail", str(_TAIL_LINES))
            sys.stderr.write("".join(f"{pod}: {line}\n" for line in call.stdout.splitlines()))

    def _delete(self) -> bool:
        """Delete everything and return whether that succeeded; foreground deletion waits for the pods as well."""
        deleted = self._call(
            *("delete", "--filename", self._arguments.manifest, "--ignore-not-found"),
            *("--cascade=foreground", f"--timeout={_DELETE_S}s"),
            limit_s=_DELETE_S + _CALL_S,
        )
        if deleted.returncode != 0:
            sys.stderr.write(f"ncclt: kubernetes: cannot delete {self._arguments.name}: {_last_line(deleted)}\n")
        return deleted.returncode == 0

    def _get(self, *words: str) -> Any:
        call = self._call("get", *words, "--output", "json")
        if call.returncode != 0:
            self._complaint = _last_line(call)
            return None
        return json.loads(call.stdout)

    def _call(self, *words: str, limit_s: float = _CALL_S) -> subprocess.CompletedProcess[str]:
        argv = (*self._kubectl, *words)
        try:
            return subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(list(argv), 1, "", f"kubectl did not answer within {limit_s:.0f} s")


def _tell(outcome: str, reason: str, exit_code: int) -> int:
    sys.stderr.write(f"ncclt: kubernetes: {outcome}: {' '.join(reason.split())}\n")
    return exit_code


def _last_line(call: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in call.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {call.returncode}"


def main() -> int:
    """Read the arguments and run the launch."""
    parser = argparse.ArgumentParser(prog="ncclt.launch.kubernetes.driver", description=__doc__)
    for option in ("--manifest", "--kind", "--name", "--selector", "--container"):
        parser.add_argument(option, required=True)
    parser.add_argument("--pods", type=int, required=True)
    for option in ("--timeout-s", "--pending-s", "--poll-s"):
        parser.add_argument(option, type=float, required=True)
    parser.add_argument("kubectl", nargs="+")
    arguments = parser.parse_args()

    def stop(number: int, _frame: FrameType | None) -> None:
        # Only the first signal counts: the deletion that follows must not be interrupted by the next one.
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    return Driver(arguments.kubectl, arguments).run()


if __name__ == "__main__":
    sys.exit(main())
