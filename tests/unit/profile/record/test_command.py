"""Running a command as a shell would, signals and terminal included."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclt.errors import UsageError
from ncclt.profile.record.command import run_foreground

RUN = (
    "import os, sys; from ncclt.profile.record.command import run_foreground; "
    "sys.exit(run_foreground(sys.argv[1:], environ=os.environ))"
)
COUNT = """
import signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU, signal.SIGALRM, signal.SIGRTMIN):
    signal.signal(number, lambda number, frame: seen.append(number))
print("ready", flush=True)
deadline = time.monotonic() + 240
while not seen and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.5)
print("seen", [int(n) for n in seen], flush=True)
sys.exit(9)
"""


def _python(code, **options):
    return subprocess.run(
        [sys.executable, "-c", RUN, sys.executable, "-c", code], capture_output=True, timeout=90, check=False, **options
    )


def count(start, run=RUN):
    """Begin a command that counts its signals."""
    command = [sys.executable, "-c", run, sys.executable, "-c", COUNT]
    process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_streams_and_exit_code_pass_through():
    code = "import sys; sys.stderr.write('err'); print(sys.stdin.read()); sys.exit(7)"
    done = _python(code, input=b"from outside")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"from outside\n", b"err")


def test_death_by_signal_becomes_128_and_its_number():
    assert _python("import os; os.kill(os.getpid(), 9)").returncode == 137


def test_command_has_the_signals_of_a_fresh_process():
    # Up to 31: glibc's posix_spawn ignores two numbers above it that are its own.
    code = (
        "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), "
        "[n for n in range(1, 32) if signal.getsignal(n) == signal.SIG_IGN])"
    )
    direct = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=240, check=True)
    assert _python(code).stdout == direct.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGXCPU, signal.SIGRTMIN])
def test_signal_sent_to_us_alone_reaches_the_command_once(start, number):
    process = count(start)
    process.send_signal(number)
    out, _err = process.communicate(timeout=240)
    assert out == f"seen [{int(number)}]\n"
    assert process.returncode == 9


def test_signal_taken_by_another_thread_reaches_the_command(start):
    """A thread of a BLAS library blocks no signals."""
    taker = (
        "import signal, sys, threading; "
        "threading.Thread(target=lambda: (sys.stdin.readline(), "
        "signal.pthread_kill(threading.get_ident(), signal.SIGTERM)), daemon=True).start(); "
    )
    process = count(start, taker + RUN)
    out, _err = process.communicate("go\n", timeout=240)
    assert out == f"seen [{int(signal.SIGTERM)}]\n"
    assert process.returncode == 9


def test_interrupt_from_the_terminal_is_not_doubled():
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", RUN, sys.executable, "-c", COUNT])
    shown, deadline = b"", time.monotonic() + 240
    while b"]" not in shown and time.monotonic() < deadline:
        shown += os.read(terminal, 1024)
        if shown.strip() == b"ready":
            os.write(terminal, b"\x03")
            shown += b"|"
    _pid, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"seen [2]" in shown
    assert os.waitstatus_to_exitcode(status) == 9


def test_program_that_cannot_be_started_is_told_and_leaves_no_signal_blocked(tmp_path):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    for name, content in (("missing", None), ("plain", "no program")):
        if content:
            (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match="cannot start") as caught:
            run_foreground([str(tmp_path / name)], environ={})
        assert caught.value.hint
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_signal_to_every_process_of_the_job_reaches_the_command_once(start):
    """As Slurm sends it: to ncclt, to the command and to everything else of the step."""
    job = count(start)
    for pid in (job.pid, *children_of(job.pid)):
        os.kill(pid, signal.SIGUSR1)
    assert job.stdout.readline() == f"seen [{int(signal.SIGUSR1)}]\n"
    assert job.wait(90) == 9


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_watched_command_can_be_ended_and_writes_where_it_is_told():
    watched = (
        "import os, signal, sys; from ncclt.profile.record.command import run_foreground; "
        "sys.exit(run_foreground(['sh', '-c', 'echo out; exec sleep 240'], environ=os.environ, stdout=2, "
        "watch=lambda pid: os.kill(pid, signal.SIGTERM)))"
    )
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, b"", b"out\n")
