"""One command in its own session: nothing of it may be left, however it ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ncclt.launch.launcher import FILES, MARK, LaunchPlan
from ncclt.launch.process.process_tree import MARK_VARIABLE, members
from ncclt.launch.process.reaper import reaper
from ncclt.launch.process.session import ProcessSession, filled

FAR_TOO_LONG_S = 300.0
"""What waits for its children, or for a grace that it need not give, waits for ten minutes."""

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


def session(code, *, timeout_s=30.0, grace_s=0.3, keep_bytes=1 << 20):
    plan = LaunchPlan(argv=(sys.executable, "-I", "-S", "-c", code), timeout_s=timeout_s)
    return ProcessSession(plan, environment=os.environ, grace_s=grace_s, keep_bytes=keep_bytes)


def timed_out(code, **options):
    """Run what never ends, within the first limit in which it says something: a busy machine starts it late."""
    for limit_s in (2.0, 8.0, 32.0, 128.0):
        result = session(code, timeout_s=limit_s, **options).run()
        if result.stdout:
            return result
    raise AssertionError(result)


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_command_that_ignores_sigterm_is_killed():
    """After the grace, and what it said is kept."""
    result = timed_out(DEAF)
    assert result.timed_out
    assert result.exit_code == -signal.SIGKILL
    assert "deaf" in result.stdout
    assert 1.2 < result.wall_s < FAR_TOO_LONG_S


def test_a_command_that_obeys_sigterm_gets_time_to_clean_up():
    """mpirun ends its remote ranks in that time."""
    code = "import signal,sys,time; signal.signal(15, lambda *_: (print('tidy', flush=True), sys.exit(3)));"
    result = timed_out(f"{code} print('up', flush=True); time.sleep(600)", grace_s=600.0)
    assert (result.exit_code, result.timed_out) == (3, True)
    assert "tidy" in result.stdout
    assert result.wall_s < FAR_TOO_LONG_S


@pytest.mark.parametrize("own_group", [False, True])
def test_children_are_ended_with_their_parent(own_group):
    """Also those in a process group of their own that ignore SIGTERM."""
    group = 0 if own_group else None
    code = (
        f"import subprocess,sys,time; p = subprocess.Popen([sys.executable,'-I','-S','-c',{DEAF!r}], "
        f"process_group={group}, stdout=subprocess.PIPE); "
        "p.stdout.readline(); print(p.pid, flush=True); time.sleep(600)"
    )
    result = timed_out(code)
    assert result.timed_out
    assert not result.survivors
    assert not is_running(int(result.stdout))


def test_an_orphan_that_holds_the_output_open_is_ended_too():
    """The command itself ends well; its grandchild would keep our pipe open for ten minutes."""
    code = (
        "import os,time\nif os.fork() == 0:\n if os.fork() == 0:\n"
        "  print(os.getpid(), flush=True); time.sleep(600)\n os._exit(0)\nos.wait(); time.sleep(0.2)"
    )
    result = session(code).run()
    assert (result.exit_code, result.timed_out) == (0, False)
    assert result.wall_s < FAR_TOO_LONG_S
    assert not is_running(int(result.stdout))


def test_two_full_outputs_do_not_block_and_cost_little_memory():
    """More than a pipe holds on both, while only the end is kept."""
    code = "import sys\nfor _ in range(200): sys.stderr.write('e' * 50000); sys.stdout.write('o' * 50000)\nprint('end')"
    result = session(code, keep_bytes=100_000).run()
    assert result.exit_code == 0
    assert result.stdout.endswith("end\n")
    assert len(result.stdout) < 200_000
    assert result.dropped_bytes + len(result.stdout) + len(result.stderr) == 2 * 200 * 50_000 + 4


def test_a_command_is_in_no_session_and_no_group_of_ours():
    """A Ctrl-C of the terminal would reach it before we have decided what it means."""
    said = session("import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())").run().stdout
    assert said == "True\n"


@pytest.mark.parametrize("outer", ["", "of the outer one"])
def test_a_launch_within_a_launch_carries_the_marks_of_both(outer):
    """So that the end of the outer one ends it, too."""
    plan = LaunchPlan(argv=("printenv", MARK_VARIABLE), timeout_s=30.0)
    inner = ProcessSession(plan, environment={**os.environ, MARK_VARIABLE: outer})
    assert inner.run().stdout == f"{outer}/{inner.mark}\n".lstrip("/")


def test_the_reaper_forgets_what_has_ended_and_keeps_what_could_not_be_ended(monkeypatch):
    ended, cut_off = session("pass"), session("pass")
    ended.run()
    monkeypatch.setattr(cut_off, "_start_and_watch", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cut_off.run()
    kept = set(reaper()._open)
    reaper().end(cut_off.mark)
    assert {ended.mark, cut_off.mark} & kept == {cut_off.mark}


def test_broken_characters_are_replaced():
    """Output need not be text."""
    assert "\ufffd" in session("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')").run().stdout


def test_kill_from_another_thread_ends_at_once():
    """A second Ctrl-C does not wait for any grace."""
    running = session(DEAF, timeout_s=900.0, grace_s=600.0)
    timer = threading.Timer(0.3, running.kill)
    timer.start()
    result = running.run()
    timer.join()
    assert result.killed
    assert not result.timed_out
    assert result.wall_s < FAR_TOO_LONG_S


def test_an_exception_of_the_callers_own_handler_ends_the_command():
    """The handler stays the caller's, and what it raises comes through."""

    class StopError(Exception):
        pass

    def stop(_number, _frame):
        raise StopError

    before = set(children())  # servers of other tests
    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(StopError):
            session(DEAF, timeout_s=900.0, grace_s=600.0).run()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert not [child for child in set(children()) - before if members("no mark at all", session_id=child)]


def children():
    """Sessions led by children of this process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == os.getpid() and words[3] == stat.parent.name:
            found.append(int(words[3]))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_this_program_ends_the_command_first(start, number, tmp_path):
    """Then it takes effect: KeyboardInterrupt for SIGINT, the end for the others."""
    child = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); {DEAF}"
    code = (
        "import os, sys\n"
        "from ncclt.launch.launcher import LaunchPlan\n"
        "from ncclt.launch.process.session import ProcessSession\n"
        f"plan = LaunchPlan(argv=(sys.executable, '-I', '-S', '-c', {child!r}), timeout_s=60)\n"
        "ProcessSession(plan, environment=os.environ).run()"
    )
    parent = start([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert parent.poll() is None
        time.sleep(0.02)
    parent.send_signal(number)
    _, said = parent.communicate(timeout=120)
    assert parent.returncode == -number
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_files_are_written_for_this_user_alone_and_removed():
    """Their folder and the mark take their places; other braces stay."""
    plan = LaunchPlan(
        argv=("sh", f"{FILES}/run.sh", "{x}"),
        files=(("run.sh", f"echo {MARK} {FILES} 'µ'\n"),),
        clean_up=(("sh", f"{FILES}/run.sh", f"job-{MARK}"),),
        timeout_s=1.0,
    )
    with filled(plan, "m-1") as (ready, folder):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert ready.argv == ("sh", f"{folder}/run.sh", "{x}")
        assert ready.clean_up == (("sh", f"{folder}/run.sh", "job-m-1"),)
        assert (folder / "run.sh").read_text(encoding="utf-8") == f"echo m-1 {FILES} 'µ'\n"
    assert not folder.exists()


def test_a_plan_without_files_needs_no_folder():
    """And its arguments stay as they are, whatever they say."""
    with filled(LaunchPlan(argv=("print", f"{FILES}"), timeout_s=1.0), "m") as (ready, folder):
        assert folder is None
        assert ready.argv == ("print", FILES)


def test_nothing_stays_when_a_file_cannot_be_written(tmp_path, monkeypatch):
    """The folder is removed on the way out."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plan = LaunchPlan(argv=("x",), files=(("no/such/folder", ""),), timeout_s=1.0)
    with pytest.raises(FileNotFoundError), filled(plan, "m"):
        pass
    assert list(tmp_path.iterdir()) == []
