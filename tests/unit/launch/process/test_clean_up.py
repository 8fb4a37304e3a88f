"""Commands that end what is left elsewhere."""

import os

from ncclt.launch.process import process_tree as module
from ncclt.launch.process.process_tree import clean_up


def test_all_are_run_and_only_failures_are_told(tmp_path):
    """By their last line; one that fails does not keep the others from being run."""
    touched = tmp_path / "touched"
    complaints = clean_up(
        [
            ("sh", "-c", "echo first; echo 'node b: 17 still runs' >&2; echo; exit 3"),
            ("/nowhere/scancel", "7"),
            ("sh", "-c", f'echo "$WORD" >{touched}'),
        ],
        environment={"PATH": os.environ["PATH"], "WORD": "here"},
    )
    assert complaints == (
        "sh ended with exit code 3: node b: 17 still runs",
        "/nowhere/scancel cannot be started: No such file or directory",
    )
    assert touched.read_text() == "here\n"


def test_one_that_hangs_is_ended_with_what_it_started(monkeypatch):
    """A grandchild that keeps its output open is no reason to wait."""
    monkeypatch.setattr(module, "CLEAN_UP_S", 0.5)
    (complaint,) = clean_up([("sh", "-c", "sleep 600 & sleep 600")], environment={"PATH": os.environ["PATH"]})
    assert "not done" in complaint
