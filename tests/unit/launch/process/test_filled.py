"""What is filled into a plan when it is run."""

import pytest

from ncclt.launch.launcher import FILES, MARK, LaunchPlan
from ncclt.launch.process.filled import filled


def test_files_are_written_for_this_user_alone_and_removed():
    """Their folder and the mark take their places; other braces stay."""
    plan = LaunchPlan(
        argv=("sh", f"{FILES}/run.sh", "{x}"),
        files=(("run.sh", f"echo {MARK} {FILES} 'µ'\n"),),
        clean_up=(("sh", f"{FILES}/run.sh", f"job-{MARK}"),),
        timeout_s=1.0,
    )
    with filled(plan, "m-1") as ready:
        assert ready.folder.stat().st_mode & 0o777 == 0o700
        assert ready.argv == ("sh", f"{ready.folder}/run.sh", "{x}")
        assert ready.clean_up == (("sh", f"{ready.folder}/run.sh", "job-m-1"),)
        assert (ready.folder / "run.sh").read_text(encoding="utf-8") == f"echo m-1 {FILES} 'µ'\n"
    assert not ready.folder.exists()


def test_a_plan_without_files_needs_no_folder():
    """And its arguments stay as they are, whatever they say."""
    with filled(LaunchPlan(argv=("print", f"{FILES}"), timeout_s=1.0), "m") as ready:
        assert ready.folder is None
        assert ready.argv == ("print", FILES)


def test_nothing_stays_when_a_file_cannot_be_written(tmp_path, monkeypatch):
    """The folder is removed on the way out."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plan = LaunchPlan(argv=("x",), files=(("no/such/folder", ""),), timeout_s=1.0)
    with pytest.raises(FileNotFoundError), filled(plan, "m"):
        pass
    assert list(tmp_path.iterdir()) == []
