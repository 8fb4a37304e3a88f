"""Programs that a test runs to their end."""

import subprocess


def run_program(argv, **options):
    """Run a program and return its exit code and texts; unless told otherwise it may fail, and take ten minutes."""
    usual = {"capture_output": True, "text": True, "check": False, "timeout": 600}
    return subprocess.run([*map(str, argv)], **usual | options)
