"""The newcomer's transcript in the documentation is what its commands print."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]


def test_every_line_of_the_transcript_is_what_the_command_prints():
    if not (ROOT / ".venv" / "bin" / "ncclt").exists():
        pytest.skip("there is no .venv here, which `make demo` uses")
    done = subprocess.run(
        [sys.executable, "docs/transcript.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout[:5000]) == (0, ""), done.stderr[-2000:]
