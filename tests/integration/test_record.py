"""Recording real trainings of two ranks over gloo: the messages are those that PyTorch's own arithmetic gives."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port
from typer.testing import CliRunner

from ncclt.cli.application import app
from ncclt.profile.model.workload import FsdpUnit, buffer_messages, ddp_messages, fsdp_messages
from ncclt.store import open_store

pytest.importorskip("torch.distributed")
FOLDER = Path(__file__).parent / "training"
_spec = importlib.util.spec_from_file_location("models_of_training", FOLDER / "models.py")
models = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(models)


def _shapes(model):
    return [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]


def _expected(kind):
    if kind == "convnet":
        buffers = {}
        for buffer in models.convnet().buffers():
            name = str(buffer.dtype).removeprefix("torch.")
            buffers[name] = buffers.get(name, 0) + buffer.numel()
        return (*ddp_messages(_shapes(models.convnet()), "float32"), *buffer_messages(buffers))
    model = models.Transformer()
    if kind == "transformer":
        # DDP opens with a bucket of 1 MiB only where no cap is given.
        return ddp_messages(_shapes(model), "float32", bucket_cap_mb=2, first_bucket_mb=2)
    block = sum(p.numel() for p in model.blocks[0].parameters())
    rest = sum(p.numel() for p in model.parameters()) - block * len(model.blocks)
    units = [
        FsdpUnit(name="block", parameters=block, count=len(model.blocks)),
        FsdpUnit(name="root", parameters=rest, is_root=True),
    ]
    return fsdp_messages(units, "float32", "float32")


def _table(calls):
    return {(c.message.collective, c.message.dtype, c.message.size_bytes): c.calls_per_step for c in calls}


def _command(launcher, *arguments):
    script = [str(FOLDER / "train.py"), *arguments]
    if launcher == "torchrun":
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", str(free_port())]
        return [sys.executable, *torchrun, *script]
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    address = ["-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={free_port()!s}"]
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *address, sys.executable, *script]


def _options(tmp_path, *options):
    storage = f"sqlite:///{tmp_path / 'store.db'}"
    return [
        *("profile", "record", "--name", "mine", "--storage", storage, "--dir", str(tmp_path)),
        *("--warmup", "4", "--steps", "3", *options, "--"),
    ]


@pytest.fixture
def recorded(nursery, tmp_path):
    """Return a caller of `ncclt record OPTIONS -- COMMAND`; it is a process, for it may wait for signals."""

    def call(command, *options, environ=None):
        words = [*_options(tmp_path, *options), *command]
        return subprocess.CompletedProcess(words, *nursery(words, os.environ | (environ or {}), tmp_path))

    return call


def _stored(tmp_path):
    with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        return store.workloads.get("mine")


# The transformer under torchrun and the convnet are recorded by the tests below.
@pytest.mark.parametrize(
    ("kind", "launcher"), [("sharded", "torchrun"), pytest.param("transformer", "mpirun", marks=pytest.mark.thorough)]
)
def test_recorded_messages_are_those_of_the_bucket_arithmetic(tmp_path, recorded, kind, launcher):
    done = recorded(_command(launcher, kind, "11"))
    assert done.returncode == 0, done.stderr
    # mpirun forwards both ranks' lines as they come and may join them.
    assert sorted(re.findall(r"rank \d trained \d+ steps", done.stdout)) == [
        f"rank {r} trained 11 steps" for r in (0, 1)
    ]
    assert re.search("note: (recording made steps|no overhead of recording seen)", done.stderr)
    workload = _stored(tmp_path)
    assert _table(workload.messages) == _table(_expected(kind))
    assert {calls.message.group_size for calls in workload.messages} == {2}
    assert (workload.provenance.steps, workload.provenance.ranks_read) == (3, (0, 1))
    assert not list(tmp_path.glob(".ncclt-record-*"))


def test_job_ends_after_the_window_in_all_ranks(tmp_path, recorded):
    started = time.monotonic()
    done = recorded(_command("torchrun", "transformer", "100000"), "--stop-after", "--keep", str(tmp_path / "raw"))
    assert done.returncode == 0, done.stderr
    assert "trained" not in done.stdout
    assert time.monotonic() - started < 240, "100,000 steps take longer"
    assert _table(_stored(tmp_path).messages) == _table(_expected("transformer"))
    assert sorted(path.name for path in (tmp_path / "raw" / "traces").iterdir()) == ["rank0.json", "rank1.json"]


@pytest.mark.thorough
def test_window_cut_short_keeps_complete_steps_and_the_exit_code(tmp_path, recorded):
    command = _command("mpirun", "convnet", "6")
    done = recorded(command, environ={"TRAINING_EXIT": "7"})
    assert done.returncode == 7, done.stderr
    workload = _stored(tmp_path)
    assert workload.provenance.steps == 2
    assert _table(workload.messages) == _table(_expected("convnet"))
    assert any("inside the recorded window" in note for note in workload.provenance.notes)


@pytest.mark.thorough
def test_interrupted_job_passes_its_end_through(tmp_path, start):
    """The signal is sent to ncclt alone and must reach the training."""
    recorder = start(
        [sys.executable, "-m", "ncclt", *_options(tmp_path), *_command("torchrun", "transformer", "1000000")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 240
    while not list(tmp_path.glob(".ncclt-record-*/traces/rank[01].json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    recorder.send_signal(signal.SIGTERM)
    _out, err = recorder.communicate(timeout=240)
    assert recorder.returncode not in (0, -signal.SIGTERM), err
    assert "trained" not in _out
    assert _table(_stored(tmp_path).messages) == _table(_expected("transformer")), err


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ([sys.executable, "-I", "-c", "import torch"], "no Python process of the command was reached"),
        ([sys.executable, "-c", "print(1)"], "no process of the command loaded PyTorch"),
        ([sys.executable, "-c", "import torch"], "no optimizer made a step"),
        (["sh", "-c", "exit 5"], "no Python process of the command was reached"),
    ],
)
def test_nothing_recorded_says_why_and_keeps_the_exit_code(tmp_path, recorded, command, why):
    done = recorded(command)
    assert done.returncode == (5 if command[0] == "sh" else 0)
    assert why in done.stderr
    assert ("the command failed with exit code 5" in done.stderr) == (command[0] == "sh")
    assert "nothing was stored" in done.stderr
    assert "hint: " in done.stderr


NCCL_LOG = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["NCCL_DEBUG_FILE"]).parent
(folder / "host.1.log").write_text(
    "host:1:1 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count 256 datatype 7 op 0 root 0 "
    "comm 0x5500 [nranks=2] stream 0x9\\n"
)
pathlib.Path(sys.argv[1]).write_text("no database" * 1000)
sys.exit(3)
"""


def test_store_that_breaks_meanwhile_loses_no_trace(tmp_path, recorded):
    done = recorded([sys.executable, "-c", NCCL_LOG, str(tmp_path / "store.db")], "--with", "nccl-log")
    assert done.returncode == 3, done.stderr
    (folder,) = tmp_path.glob(".ncclt-record-*")
    assert f"raw files are in {folder}: " in done.stderr
    assert (folder / "nccl" / "host.1.log").stat().st_size


def test_taken_name_is_refused_before_the_training_runs(tmp_path):
    marker = tmp_path / "ran"
    storage = f"sqlite:///{tmp_path / 'store.db'}"
    command = ["--name", "bert", "--replace", "--storage", storage, "--", "touch", str(marker)]
    result = CliRunner().invoke(app, ["profile", "record", *command])
    assert "bert" in result.stderr
    assert result.exit_code != 0
    assert not marker.exists()
