"""The command line as a newcomer types it: a process of its own, with a home of its own.

What is waited for is forked from a process that has imported ncclt; what runs beside a test starts with an interpreter.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest


@dataclass
class Shell:
    """Runs ncclt in a folder, away from the user's own files and variables."""

    folder: object
    popen: object
    nursery: object
    variables: dict = field(default_factory=dict)

    @property
    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "SLURM", "XDG_"))}
        return {**kept, "HOME": str(self.folder), "NO_COLOR": "1", **self.variables}

    def argv(self, *words):
        return [sys.executable, "-m", "ncclt", *map(str, words)]

    def __call__(self, *words, rc=0):
        done = subprocess.CompletedProcess(words, *self.nursery(words, self.environment, self.folder))
        assert rc is None or done.returncode == rc, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done

    def start(self, *words):
        return self.popen(
            self.argv(*words),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def ncclt(tmp_path, start, nursery):
    """The command line in an empty folder; what it starts ends with the test."""
    return Shell(tmp_path, start, nursery)
