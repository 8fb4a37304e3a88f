#!/usr/bin/env python3
"""A kubectl for tests: `apply` starts the command of the first pod as a process here, `delete` ends it.

It knows the calls that ncclt makes and no others. Its cluster is the folder KUBECTL_STAND_IN; a file `mode` in it says
what goes wrong: `unschedulable`, `image`, `refuse`, `rejected`, `silent`, `stuck`, `evicted`, `crashloop`. The command
gets the variables of its manifest and PATH alone, as in a container, so nothing of the caller's can be found in it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

FOLDER = Path(os.environ["KUBECTL_STAND_IN"])
NO_VALUE = ("--allow-run-as-root",)
WRAPPER = 'out=$1 code=$2; shift 2; "$@" >"$out" 2>&1; echo $? >"$code"'


def mode():
    path = FOLDER / "mode"
    return path.read_text().strip() if path.exists() else ""


def fail(text):
    sys.stderr.write(f"{text}\n")
    raise SystemExit(1)


def apply(path):
    if mode() == "refuse":
        fail('error: unable to recognize "job.json": no matches for kind "MPIJob" in version "kubeflow.org/v2beta1"')
    documents = json.loads(Path(path).read_text())["items"]
    body = next(document for document in documents if document["kind"] in ("MPIJob", "TrainJob"))
    files = next((document["data"] for document in documents if document["kind"] == "ConfigMap"), {})
    home = FOLDER / body["metadata"]["name"]
    (home / "files").mkdir(parents=True)
    for name, text in files.items():
        (home / "files" / name).write_text(text)
    (home / "job.json").write_text(json.dumps(body))
    if mode() in ("unschedulable", "image", "rejected", "evicted"):
        return
    argv, environment = command_of(body)
    # Its mount, file by file: the checkout that these tests run from may be called /…/ncclt, too.
    mounted = {f"/ncclt/{name}": str(home / "files" / name) for name in files}
    argv = [mounted.get(word, word) for word in argv]
    process = subprocess.Popen(
        ["sh", "-c", WRAPPER, "sh", str(home / "log"), str(home / "code"), *argv],
        env={"PATH": os.environ["PATH"], **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    (home / "pid").write_text(str(process.pid))


def command_of(body):
    """The command of one process and its variables; whoever starts the others is not tried here."""
    if body["kind"] == "TrainJob":
        trainer = body["spec"]["trainer"]
        assert trainer["command"][:2] == ["torchrun", "--no-python"]
        return trainer["command"][2:], {each["name"]: each["value"] for each in trainer["env"]}
    (container,) = body["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    words = container["command"]
    assert words[0] == "mpirun"
    at = 1
    while words[at].startswith("-"):
        at += 1 if words[at] in NO_VALUE else 2
    return words[at:], {each["name"]: each["value"] for each in container["env"]}


def pods(name):
    """The pods of a job as the API server gives them."""
    home = FOLDER / name
    if not home.exists():
        return []
    body = json.loads((home / "job.json").read_text())
    if mode() in ("rejected",):
        return []
    if body["kind"] == "TrainJob":
        names = [(f"{name}-node-0-{index}", "node", index) for index in range(body["spec"]["trainer"]["numNodes"])]
    else:
        workers = body["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        names = [(f"{name}-launcher", "launcher", None)]
        names += [(f"{name}-worker-{index}", "worker", None) for index in range(workers)]
    return [pod(home, *each) for each in names]


def pod(home, name, container, index):
    labels = {} if index is None else {"batch.kubernetes.io/job-completion-index": str(index)}
    phase, state, conditions, more = "Running", {"running": {}}, [], {}
    leads = container == "launcher" or index == 0
    code = home / "code"
    if mode() == "unschedulable":
        phase, state = "Pending", {}
        conditions = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            }
        ]
    elif mode() == "image":
        phase = "Pending"
        state = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry/none:1"'}}
    elif mode() == "evicted" and not leads:
        phase, state, more = "Failed", {}, {"reason": "Evicted", "message": "The node was low on resource: memory."}
    elif leads and code.exists() and code.read_text().strip():
        ended = int(code.read_text())
        finished = {
            "terminated": {
                "exitCode": ended,
                "reason": "Error" if ended else "Completed",
                "finishedAt": "2026-11-21T10:00:00Z",
            }
        }
        if mode() == "crashloop":
            state, more = {"waiting": {"reason": "CrashLoopBackOff"}}, {"restarted": finished}
        else:
            phase, state = "Failed" if ended else "Succeeded", finished
    statuses = [{"name": container, "state": state, "lastState": more.pop("restarted", {})}] if state else []
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": container}]},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": statuses, **more},
    }


def get(kind, words):
    if mode() == "silent":
        fail("Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout")
    if kind == "pods":
        name = words[words.index("--selector") + 1].partition("=")[2]
        print(json.dumps({"items": pods(name)}))
        return
    path = FOLDER / words[0] / "job.json"
    if not path.exists():
        fail(f'Error from server (NotFound): {kind}s.kubeflow.org "{words[0]}" not found')
    body = json.loads(path.read_text())
    if mode() == "rejected":
        body["status"] = {
            "conditions": [
                {
                    "type": "Failed",
                    "status": "True",
                    "reason": "TrainingRuntimeNotSupported",
                    "message": "runtime not found",
                }
            ]
        }
    print(json.dumps(body))


def delete(words):
    selected = next((word.partition("=")[2] for word in words if word.startswith("--selector=")), "")
    if "--filename" in words:
        made = json.loads(Path(words[words.index("--filename") + 1]).read_text())
        name = made["items"][-1]["metadata"]["name"]
    else:
        name = selected.partition("=")[2]
    home = FOLDER / name
    if mode() == "stuck":
        fail("error: timed out waiting for the condition on mpijobs")
    with (FOLDER / "deleted").open("a") as log:
        log.write(f"{name}\n")
    if (home / "pid").exists() and not ((home / "code").exists() and (home / "code").read_text().strip()):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int((home / "pid").read_text()), signal.SIGKILL)
    if home.exists():
        home.rename(FOLDER / f"{name}.gone")


def main():
    words = [word for word in sys.argv[1:] if not word.startswith(("--namespace=", "--context="))]
    verb, *rest = words
    if verb == "apply":
        apply(rest[rest.index("--filename") + 1])
    elif verb == "get":
        get(rest[0], rest[1:])
    elif verb == "logs":
        log = FOLDER / rest[0].removesuffix("-launcher").removesuffix("-node-0-0") / "log"
        sys.stdout.write(log.read_text() if log.exists() else f"nothing of {rest[0]}\n")
    elif verb == "delete":
        delete(rest)
    else:
        fail(f"unknown command {verb}")


main()
