"""A followed command: its lines, its end, and that nothing of it stays."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ncclt.errors import StudyStoppedError
from ncclt.launch.process.followed import FollowedProcess
from ncclt.launch.process.process_tree import members

PATIENT_S = 60.0


def begun(code):
    return FollowedProcess([sys.executable, "-u", "-c", code], environment=os.environ)


def test_lines_and_exit_code():
    with begun("import sys; print('one'); print('two', file=sys.stderr); print('x' * 5000); sys.exit(3)") as process:
        assert process.wait(PATIENT_S) == 3
        deadline_s, lines = time.monotonic() + PATIENT_S, []
        while len(lines) < 5 and time.monotonic() < deadline_s:
            lines += process.lines()
    assert lines == ["one", "two", "x" * 2000, "x" * 2000, "x" * 1000]


def test_it_ends_by_a_signal_or_with_the_block():
    with begun("import time; print('ready'); time.sleep(600)") as process:
        assert process.wait(0.0) is None
        process.signal(signal.SIGTERM)
        assert process.wait(PATIENT_S) == -signal.SIGTERM
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    with begun(code) as process:
        deadline_s = time.monotonic() + PATIENT_S
        while len(members(process._mark)) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.05)
    assert members(process._mark) == ()


def test_lines_that_nobody_reads_keep_no_program_from_ending():
    code = """
import os, sys
from ncclt.launch.process.followed import FollowedProcess
with FollowedProcess([sys.executable, "-c", "print('x\\\\n' * 3000)"], environment=os.environ) as process:
    print(process.wait(60.0))
"""
    said = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, timeout=PATIENT_S)
    assert (said.stdout, said.returncode) == ("0\n", 0), said.stderr


def test_what_cannot_be_started():
    with pytest.raises(StudyStoppedError, match="/no/such cannot be started"):
        FollowedProcess(["/no/such"], environment=os.environ)
