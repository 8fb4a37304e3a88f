"""The program that runs one launch with kubectl: what it asks for, and how it ends when it is ended."""

import json
import subprocess
import sys

import pytest

PATIENT_S = 60.0
# Notes each call; no pod ever comes up, so that the driver waits.
# The launch has ended already; what it is asked to delete may stay.
ENDED_KUBECTL = """#!/bin/sh
[ "$2" != delete ] || {{ echo "{refusal}" >&2; exit {deleted}; }}
[ "$2" = get ] || exit 0
[ "$3" = pods ] && echo '{pods}' || echo '{{}}'
"""


@pytest.fixture
def start(tmp_path):
    """Start the driver on a kubectl."""
    kubectl = tmp_path / "kubectl"
    kubectl.touch(0o755)
    started = []

    def begin(kind, script):
        kubectl.write_text(script)
        options = {
            "manifest": tmp_path / "job.json",
            "kind": kind,
            "name": "ncclt-1",
            "selector": "job=ncclt-1",
            "container": "launcher",
            "pods": 3,
            "timeout-s": PATIENT_S,
            "pending-s": PATIENT_S,
            "poll-s": 0.05,
        }
        argv = [sys.executable, "-m", "ncclt.launch.kubernetes.driver"]
        argv += [f"--{name}={value}" for name, value in options.items()]
        started.append(
            subprocess.Popen([*argv, "--", str(kubectl), "--context=lab"], stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield begin
    for driver in started:
        driver.kill()
        driver.communicate()


@pytest.mark.parametrize(
    ("ended", "deleted", "exit_code"), [(0, 0, 0), (0, 1, 1), (7, 0, 7), (7, 1, 7)], ids=lambda code: str(code)
)
def test_a_job_that_could_not_be_deleted_makes_a_success_a_failure(start, ended, deleted, exit_code):
    """The command's own failure says more and stays."""
    state = {"terminated": {"exitCode": ended, "finishedAt": "2026-11-21T10:00:05Z"}}
    status = {"phase": "Failed" if ended else "Succeeded", "containerStatuses": [{"name": "launcher", "state": state}]}
    pod = {"metadata": {"name": "l"}, "spec": {"containers": [{"name": "launcher"}]}, "status": status}
    pods = json.dumps({"items": [pod]})
    script = ENDED_KUBECTL.format(refusal="forbidden", deleted=deleted, pods=pods)
    driver = start("mpijob", script)

    _, told = driver.communicate(timeout=PATIENT_S)

    assert driver.returncode == exit_code
    assert ("cannot delete ncclt-1: forbidden" in told) == bool(deleted)
