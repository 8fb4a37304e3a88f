"""A job is followed through everything that Slurm may say of it; scontrol is a stand-in that reads from a list."""

from types import SimpleNamespace

import pytest
from program import stand_in

from ncclt.errors import StudyStoppedError
from ncclt.launch.slurm import sbatch as module
from ncclt.launch.slurm.sbatch import follow

SCONTROL = """\
[ -s "$ANSWERS" ] || exit 1
head -n 1 "$ANSWERS"
sed -i 1d "$ANSWERS"
printf 'grows\\n' >>"$ANSWERS.out"
"""


def followed(folder, answers, *, show=None, say=None):
    environment = stand_in(folder, scontrol=SCONTROL)
    (folder / "answers").write_text("".join(f"JobId=7 {answer}\n" for answer in answers))
    shown, said = [], []
    exit_code = follow(
        "7",
        (str(folder / "answers.out"), str(folder / "answers.err")),
        show=show or shown.append,
        say=say or said.append,
        environment={**environment, "ANSWERS": str(folder / "answers")},
        poll_s=0.0,
    )
    return exit_code, "".join(shown), "".join(said)


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        ("JobState=COMPLETED Reason=None ExitCode=0:0", 0),
        ("JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0", 3),
        ("JobState=FAILED Reason=RaisedSignal ExitCode=0:11", 139),
        ("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15", 124),
        ("JobState=CANCELLED Reason=None ExitCode=0:15", 130),
        ("JobState=NODE_FAIL Reason=None ExitCode=0:0", 1),
        ("JobState=OUT_OF_MEMORY Reason=OutOfMemory ExitCode=0:125", 1),
        ("JobState=PREEMPTED Reason=None ExitCode=0:0", 1),
    ],
)
def test_the_end_of_a_job_becomes_an_exit_code(tmp_path, end, exit_code):
    code, _shown, said = followed(tmp_path, [end])
    assert code == exit_code
    assert "job 7 has ended" in said


def test_logs_are_shown_as_they_grow_and_states_as_they_change(tmp_path):
    """A preempted job that Slurm begins anew is the same job."""
    running = "JobState=RUNNING Reason=None ExitCode=0:0"
    waiting = "JobState=PENDING Reason=Resources ExitCode=0:0"
    states = [waiting, waiting, running, running, waiting, running, "JobState=COMPLETED Reason=None ExitCode=0:0"]
    code, shown, said = followed(tmp_path, states)
    assert code == 0
    assert shown == "grows\n" * len(states)
    assert said == (
        "ncclt: job 7 is pending (Resources)\nncclt: job 7 is running\nncclt: job 7 is pending (Resources)\n"
        "ncclt: job 7 is running\nncclt: job 7 has ended: completed\n"
    )


def test_a_log_that_cannot_be_seen_is_said(tmp_path):
    (tmp_path / "answers.out").mkdir()
    _code, shown, said = followed(tmp_path, ["JobState=COMPLETED Reason=None ExitCode=0:0"])
    assert shown == ""
    assert "its logs cannot be seen from here" in said


def test_a_character_may_be_cut_by_a_look(tmp_path):
    """Half a µ at the end of a look is not shown before its other half is there."""
    log = tmp_path / "answers.err"
    log.write_bytes(b"\xc2")
    shown, said = [], []

    def show_and_go_on(text):
        shown.append(text)
        if len(shown) == 2:  # the first look has seen the first half by now
            with log.open("ab") as end:
                end.write(b"\xb5\n")

    running = "JobState=RUNNING Reason=None ExitCode=0:0"
    ended = "JobState=COMPLETED Reason=None ExitCode=0:0"
    followed(tmp_path, [running, running, ended], show=show_and_go_on, say=said.append)
    assert said.count("µ\n") == 1
    assert "\ufffd" not in "".join(said)


@pytest.mark.parametrize(("silent", "found"), [(19, True), (20, False)])
def test_a_controller_may_be_silent_for_19_questions_in_a_row(tmp_path, silent, found):
    running, ended = ("JobState=RUNNING ExitCode=0:0", "JobState=COMPLETED ExitCode=0:0")
    answers = [*[""] * 19, running, *[""] * silent, ended]
    if found:
        assert followed(tmp_path, answers)[0] == 0
    else:
        with pytest.raises(StudyStoppedError, match="no longer knows job 7"):
            followed(tmp_path, answers)


@pytest.mark.parametrize("again", [False, True])
def test_ctrl_c_leaves_the_job_running_and_a_second_one_cancels_it(tmp_path, monkeypatch, again):
    stand_in(tmp_path, scancel='echo "$@" >"$ANSWERS.cancelled"')

    def interrupt(*_):
        raise KeyboardInterrupt

    # Not `time.sleep` itself: `subprocess` waits by it for scancel.
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=interrupt if again else lambda _seconds: None))
    said = []
    code, _, _ = followed(tmp_path, ["JobState=RUNNING ExitCode=0:0"], show=interrupt, say=said.append)
    assert code == 130
    assert "job 7 continues; `scancel 7` ends it, as does Ctrl-C" in said[0]
    cancelled = tmp_path / "answers.cancelled"
    assert (cancelled.read_text() if cancelled.exists() else "") == ("7\n" if again else "")
    assert said[1:] == (["ncclt: job 7 is cancelled\n"] if again else [])


@pytest.mark.parametrize("closed", [False, True])
def test_an_end_of_this_program_leaves_the_job_running(tmp_path, closed):
    """Also where its terminal is gone, so that nothing more can be said."""
    said = []

    def end(_text):
        raise SystemExit(143)

    def say(text):
        said.append(text)
        if closed:
            raise OSError("closed")

    with pytest.raises(SystemExit, match="143"):
        followed(tmp_path, [""], show=end, say=say)
    assert "job 7 continues; `scancel 7` ends it" in "".join(said)
