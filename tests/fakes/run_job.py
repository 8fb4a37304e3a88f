"""`ncclt run` as a process: a store with a recommendation, a service on it, and the environment of a job."""

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn

from ncclt.core.policy import Policy
from ncclt.store import open_store
from ncclt_api.app import create_app

ROOT = Path(__file__).parents[1]
NCCLT = [sys.executable, "-m", "ncclt"]
SHAPE = ["--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.28.9"]
SHOW = [sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"]
AWAY = "http://127.0.0.1:9"
NAMES = ["--cluster", "leonardo", "--model", "bert", *SHAPE]
PATIENT_S = 120
SHOW_BYTES = [
    sys.executable,
    "-c",
    "import os, sys; sys.stdout.buffer.write(repr(sorted(os.environb.items())).encode())",
]


def load_samples():
    spec = importlib.util.spec_from_file_location("run_samples", ROOT / "unit" / "api" / "samples.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def store(tmp_path):
    """A store with a tuned recommendation for bert on 2 x 4 GPUs, `0c0ffee1`."""
    samples = load_samples()
    profiles = samples.store_profiles(tmp_path / "profiles")
    with open_store(f"sqlite:///{tmp_path}/ncclt.db", profiles=profiles) as opened:
        study = samples.study()
        opened.studies.open(study)
        # Variables that NCCL 2.28 can say in full: those of the samples need a table.
        rule = replace(samples.PLAIN.rules[0], channels=None)
        given = samples.recommendation(study)
        variables = replace(given.variables, policy=Policy(rules=(rule,)))
        valid = replace(given.fingerprint, nccl_version="2.28.9")
        opened.revisions.publish(replace(given, variables=variables, fingerprint=valid))
        yield opened


@pytest.fixture
def serving(store):
    """Address of a service on that store, and a function that ends it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(store), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        deadline = time.monotonic() + 240
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)

        def stop():
            server.should_exit = True
            thread.join(timeout=240)

        yield f"http://127.0.0.1:{listening.getsockname()[1]}", stop
        stop()
        assert not thread.is_alive()


def job_environ(tmp_path, **more):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "SLURM", "OMPI", "PMI"))}
    places = {name: str(tmp_path / name) for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    # What is published here is simulated, and this machine plays one with GPUs, on which a batch script of Slurm runs.
    return (
        clean
        | places
        | with_gpus(tmp_path)
        | {"NCCLT_ALLOW": "simulated", "SLURM_JOB_ID": "1"}
        | {key: str(value) for key, value in more.items()}
    )


def with_gpus(tmp_path):
    """The variables of a machine with GPUs of a model that no answer names."""
    program = tmp_path / "gpus" / "nvidia-smi"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\necho NVIDIA stand-in\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def run_bert(tmp_path, options, command, **more):
    return subprocess.run(
        [*NCCLT, "run", "--cluster", "leonardo", "--model", "bert", *SHAPE, *map(str, options), "--", *command],
        env=job_environ(tmp_path, **more),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def stand_in(tmp_path, name):
    """A command that has a launcher's name and shows its environment."""
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{SHOW[2]}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def nursery(nursery_for):
    """Return a caller of `ncclt` that saves the start of the interpreter; it returns exit code, stdout and stderr."""
    return nursery_for()


@pytest.fixture
def run(nursery, tmp_path):
    """Return a caller of `ncclt run WORDS -- SHOW_BYTES` that returns what became of it, and the environment it got."""

    def call(*words, environ=None, folder=tmp_path):
        given = job_environ(tmp_path) if environ is None else environ
        code, out, err = nursery(["run", *words, "--", *SHOW_BYTES], given, folder)
        streams = [text.encode(errors="surrogateescape") for text in (out, err)]
        return subprocess.CompletedProcess(words, code, *streams), given

    return call


def start(tmp_path, *words, environ=None, command=SHOW_BYTES, **options):
    """Run `ncclt run WORDS -- command`; return what became of it, and the environment that it was started in."""
    given = job_environ(tmp_path) if environ is None else environ
    options = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    argv = [*NCCLT, "run", *words, "--", *command]
    return subprocess.run(argv, env=given, timeout=PATIENT_S, check=False, **options), given
