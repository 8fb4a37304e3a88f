"""Who belongs to a launch, according to /proc, and how all of them are ended."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from ncclt.launch.process import process_tree as module
from ncclt.launch.process.process_tree import MARK_VARIABLE, end_members, members, new_mark, signal_members

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
PYTHON = (sys.executable, "-I", "-S", "-c")


@pytest.fixture
def start():
    """Start a process of a mark; end those that are left."""
    started = []

    def _start(code, mark, **options):
        process = subprocess.Popen(
            (*PYTHON, code), env=os.environ | {MARK_VARIABLE: mark}, stdout=subprocess.PIPE, text=True, **options
        )
        started.append(process)
        process.said = process.stdout.readline().strip()
        return process

    yield _start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_marks_differ():
    """They can be part of a job's name."""
    first, second = new_mark(), new_mark()
    assert first != second
    assert first.replace("-", "").isalnum()


def test_the_marked_are_found_and_nobody_else(start):
    """Whatever session they moved to; a launch within a launch belongs to both."""
    outer, inner = new_mark(), new_mark()
    first = start(SLEEP, outer, start_new_session=True)
    second = start(SLEEP, f"{outer}/{inner}")
    start(SLEEP, new_mark())
    assert members(outer) == tuple(sorted((first.pid, second.pid)))
    assert members(inner) == (second.pid,)
    assert members(new_mark()) == ()


def test_whoever_hides_his_mark_is_found_by_session_or_parent(start):
    """An empty environment in the launch's session, and in a session of its own as long as its parent is there."""
    mark = new_mark()
    child = (
        f"subprocess.Popen([sys.executable, '-I', '-S', '-c', {SLEEP!r}], env={{}}, start_new_session=%s, stdout=-3)"
    )
    code = f"import subprocess, sys, time; a = {child % True}; b = {child % False}; print(a.pid, b.pid, flush=True); "
    leader = start(f"{code} time.sleep(600)", mark, start_new_session=True)
    away, near = map(int, leader.said.split())
    assert set(members(mark)) == {leader.pid, away, near}
    os.kill(leader.pid, signal.SIGKILL)
    leader.wait()
    try:
        assert members(mark) == ()
        assert members(mark, session_id=leader.pid) == (near,)
    finally:
        for process_id in (away, near):
            os.kill(process_id, signal.SIGKILL)


def test_a_zombie_and_this_process_never_belong(start):
    """The one runs no more, the other is who asks."""
    mark = new_mark()
    leader = start(SLEEP, mark, start_new_session=True)
    assert signal_members(mark, signal.SIGKILL) == (leader.pid,)
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert members(mark, session_id=leader.pid) == ()
    assert os.getpid() not in members(mark, session_id=os.getsid(0))


def refuse(_process_id):
    raise OSError(38, "Function not implemented")


@pytest.mark.parametrize("has_pidfd", [True, False])
@pytest.mark.parametrize("earlier", [-1, 1])
def test_another_process_that_got_the_id_meanwhile_is_left_alone(start, monkeypatch, has_pidfd, earlier):
    mark, sent = new_mark(), []
    process = start(SLEEP, mark)
    (found,) = module._members(mark.encode(), None)
    monkeypatch.setattr(module, "_members", lambda *_: [replace(found, started=found.started + earlier)])
    monkeypatch.setattr(module.os, "kill", lambda *to: sent.append(to))
    monkeypatch.setattr(module.signal, "pidfd_send_signal", lambda *to: sent.append(to))
    if not has_pidfd:
        monkeypatch.setattr(module.os, "pidfd_open", refuse)
    assert signal_members(mark, signal.SIGTERM) == (process.pid,)
    assert sent == []


def test_kernels_without_pidfd(start, monkeypatch):
    """RHEL 8 has none; the launch is ended there all the same."""
    monkeypatch.setattr(module.os, "pidfd_open", refuse)
    mark = new_mark()
    process = start(SLEEP, mark)
    assert end_members(mark) == ()
    assert process.wait() == -signal.SIGKILL
