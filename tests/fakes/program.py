"""Programs that a test runs to their end, and shell scripts in the place of others."""

import os
import subprocess


def run_program(argv, **options):
    """Run a program and return its exit code and texts; unless told otherwise it may fail, and take ten minutes."""
    usual = {"capture_output": True, "text": True, "check": False, "timeout": 600}
    return subprocess.run([*map(str, argv)], **usual | options)


def stand_in(folder, **programs):
    """Write programs as shell scripts, and return the environment that finds them."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}
