"""Who belongs to a session, according to /proc."""

import os
import signal
import subprocess
import sys

from ncclt.launch.session import session_members, signal_session


def test_members_are_found_signalled_and_forgotten_when_they_end():
    """A zombie that waits for its parent counts no more, and a session without members is empty."""
    leader = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    assert session_members(leader.pid) == (leader.pid,)
    assert signal_session(leader.pid, signal.SIGKILL) == (leader.pid,)
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert session_members(leader.pid) == ()
    assert leader.wait() == -signal.SIGKILL


def test_this_program_is_a_member_of_its_own_session():
    """The name of a process may hold anything; only what follows it is read."""
    assert os.getpid() in session_members(os.getsid(0))
