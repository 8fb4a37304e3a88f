"""`ncclt run --report` beside the command: it ends with us, orphans are reaped, reports that cannot be kept are not."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import run_job
from run_job import NAMES, PATIENT_S

nursery, run, store = run_job.nursery, run_job.run, run_job.store
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


@pytest.fixture
def beside(tmp_path, store):
    """Return a starter of `ncclt run --report` around a command; what it starts is ended."""
    running = []

    def call(command, **options):
        words = [*NAMES, "--storage", store.url, "--no-plugin", "--report", str(tmp_path / "reports")]
        process = subprocess.Popen(
            [*run_job.NCCLT, "run", *words, "--", *command],
            env=run_job.job_environ(tmp_path),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        running.append(process)
        return process

    yield call
    for process in running:
        with process:
            process.kill()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_command_ends_with_us_when_we_are_killed(beside):
    """With everything that it has started, in a session of its own too, as the ranks of torchrun are."""
    code = (
        "import os, subprocess, sys, time\n"
        "rank = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "print(os.getpid(), rank.pid, flush=True)\n"
        "time.sleep(300)"
    )
    process = beside([sys.executable, "-c", code])
    pids = [int(word) for word in process.stdout.readline().split()]
    try:
        assert all(is_running(pid) for pid in pids)
        process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + PATIENT_S
        while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [pid for pid in pids if is_running(pid)] == []
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_as_the_first_process_of_a_container_it_reaps_the_orphans(beside):
    """Here as a subreaper, which inherits orphans as process 1 does."""
    code = (
        "import os, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "leave = ['sh', '-c', 'sleep 0.5 >&- 2>&- & echo $!']\n"
        "orphan = subprocess.run(leave, capture_output=True, text=True).stdout.strip()\n"
        "deadline = time.monotonic() + 60\n"
        "while Path(f'/proc/{orphan}').exists() and time.monotonic() < deadline:\n"
        "    time.sleep(0.05)\n"
        "sys.exit(9 if Path(f'/proc/{orphan}').exists() else 5)"
    )
    libc = ctypes.CDLL(None)
    process = beside([sys.executable, "-c", code], preexec_fn=lambda: libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    _out, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 5, err


def test_reports_that_cannot_be_kept_stop_no_job(tmp_path, store, run):
    (tmp_path / "file").touch()
    words = [*NAMES, "--storage", store.url, "--no-plugin", "--report", "file"]
    done, _given = run(*words)
    assert (done.returncode, b"NCCLT_RECOMMENDATION" in done.stdout) == (0, True)
    assert b"reports skipped" in done.stderr
    refused, _given = run(*words, "--fallback", "fail")
    assert (refused.returncode, refused.stdout) == (1, b"")
