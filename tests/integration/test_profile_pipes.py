"""`ncclt profile import`, `ncclt doctor` and `ncclt attest` of what is no regular file, as a shell hands it over."""

import gzip
import json
import os
import shlex
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

TABLE = "collective,size_bytes,calls,dtype\nall_reduce,4194304,3,float32\n"
LIMIT_S = 120
"""Far above what any of these takes, and far below for ever."""


@pytest.fixture
def shell(tmp_path):
    """Return a function that runs a line of bash, in which `$N` is ncclt with a store of its own."""

    def run(line, **more):
        environment = {**os.environ, "NCCLT_STORAGE": f"sqlite:///{tmp_path / 'store.db'}", "TMPDIR": str(tmp_path)}
        line = line.replace("$N", f"{shlex.quote(sys.executable)} -m ncclt")
        return subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, **more
        )

    return run


@pytest.fixture
def files(tmp_path):
    """A table and a trace, plain and gzipped."""
    (tmp_path / "calls.csv").write_text(TABLE)
    (tmp_path / "calls.csv.gz").write_bytes(gzip.compress(TABLE.encode()))
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 1048576,
        "Out msg nelems": 1048576,
        "dtype": "Float",
        "Group size": 2,
    }
    event = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    trace = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{**event, "args": args}]}
    # Longer than the buffer of a pipe, so that a pipe that is opened twice cannot pass.
    (tmp_path / "trace.json").write_text(json.dumps({**trace, "filler": "x" * 300_000}))
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "mkfifo pipe; (sleep 1; gzip -c trace.json) > pipe & $N profile import pipe --name x --json",
        "$N profile import <(gzip -c trace.json | zcat) --name x --json",
        "gzip -c trace.json | $N profile import - --source kineto --name x --json",
        "$N profile import - --name x --json < calls.csv",
    ],
)
def test_pipes_are_read_like_files(files, shell, line):
    done = shell(line)
    assert done.returncode == 0, done.stderr
    message = json.loads(done.stdout)["messages"][0]
    assert (message["collective"], message["size_bytes"]) == ("all_reduce", 4194304)
    assert not list(files.glob("ncclt-input-*"))  # no copy is left behind


REFUSED = {
    "mkfifo a; $N profile import a --name x": "nothing writes into the pipe",
    "mkfifo b; $N doctor --from b": "nothing writes into the pipe",
    "mkfifo c; $N attest c": "nothing writes into the pipe",
    "$N attest /dev/zero": "is a device",
    "mkfifo d; $N profile model x --config d": "is a pipe",
    "$N profile import /dev/zero --name x": "is a device",
    "$N profile import - - --name x < calls.csv": "given twice",
    "$N profile import - --name x </dev/null": "is empty",
}


@pytest.mark.thorough
def test_what_cannot_be_read_is_refused_and_never_waited_for(files, shell, subtests):
    with ThreadPoolExecutor(len(REFUSED)) as pool:  # a pipe is given some seconds
        ended = dict(zip(REFUSED, pool.map(shell, REFUSED), strict=True))
    for line, done in ended.items():
        with subtests.test(line):
            assert done.returncode != 0
            assert REFUSED[line] in done.stderr
            assert "Traceback" not in done.stderr


def test_the_doctor_reads_a_pipe(files, shell):
    (files / "nccl.log").write_text("n0:1:9 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n" * 20_000)
    done = shell("$N doctor --from <(gzip -c nccl.log) --json")
    assert json.loads(done.stdout)["verdict"]
    assert "Traceback" not in done.stderr


def test_a_pipe_that_gives_too_much_or_nothing_is_given_up(tmp_path, monkeypatch):
    """In this process, where the limits can be lowered."""
    from ncclt.errors import TraceError
    from ncclt.profile import read_workload, source

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write(content, hold):
        with pipe.open("wb") as writer:
            try:
                writer.write(content)
                writer.flush()
                hold.wait(LIMIT_S)
            except BrokenPipeError:
                pass  # the reader has given up, as it should

    for content, name, value, said in (
        (b"x" * 500_000, "MOST_COPIED_BYTES", 100_000, "more than the 100000 bytes"),
        (b"", "SILENCE_S", 0.5, "nothing came out"),
    ):
        monkeypatch.setattr(source, name, value)
        hold = threading.Event()
        writer = threading.Thread(target=write, args=(content, hold))
        writer.start()
        try:
            with pytest.raises(TraceError, match=said) as caught:
                read_workload([pipe], name="x")
            assert caught.value.hint
        finally:
            hold.set()
            writer.join(LIMIT_S)
        assert not writer.is_alive(), "the writer waits for a reader that has given up"
