"""The reaper: what it ends after the death of its process, and that it is never in the way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import soon

from ncclt.launch.launcher import FILES, MARK, LaunchPlan
from ncclt.launch.process.process_tree import members, new_mark
from ncclt.launch.process.reaper import open_launches, reaper, results_folder
from ncclt.launch.process.session import ProcessSession

PATIENT_S = 60.0
WORD = "NCCLT_TEST_WORD"

OWNER = """
import os, sys
from pathlib import Path
from ncclt.launch.launcher import FILES, MARK, LaunchPlan
from ncclt.launch.process.session import ProcessSession
ProcessSession({plan!r}, environment=os.environ).run()
print("done")
"""


@pytest.fixture
def owner():
    """Start a process that runs a plan; its word is carried by it, by all it launches, and by its reaper."""
    started = []

    def start(plan):
        word = new_mark()
        code = OWNER.replace("{plan!r}", repr(plan))
        process = subprocess.Popen(
            (sys.executable, "-c", code), env=os.environ | {WORD: word}, stdout=subprocess.PIPE, text=True
        )
        started.append((process, word))
        return process, word

    yield start
    for process, word in started:
        process.kill()
        process.wait()
        process.stdout.close()
        for left in members(word):
            os.kill(left, signal.SIGKILL)


def stubborn(ready):
    """A command that ignores SIGTERM, and so does its child in another session."""
    return (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork() or os.setsid(); "
        f"open({str(ready)!r}, 'a').write('x'); time.sleep(600)"
    )


def test_nothing_is_left_after_kill_9(owner, tmp_path):
    """Neither processes nor files, here or elsewhere, nor the reaper itself."""
    ready, cleaned = tmp_path / "ready", tmp_path / "cleaned"
    plan = LaunchPlan(
        argv=(sys.executable, "-I", "-S", "-c", stubborn(ready)),
        files=(("end.sh", f'echo "$1" {MARK} $PWD "${WORD}" "$0" >{cleaned}.part; mv {cleaned}.part {cleaned}\n'),),
        clean_up=(("sh", f"{FILES}/end.sh", MARK),),
        timeout_s=600.0,
    )
    process, word = owner(plan)
    assert soon(lambda: ready.exists() and ready.read_text() == "xx")
    assert len(members(word)) >= 4
    process.kill()
    process.wait()
    assert soon(cleaned.exists)
    assert soon(lambda: not members(word))
    mark_of_argv, mark_of_text, folder, word_there, script = cleaned.read_text().split()
    assert mark_of_argv == mark_of_text
    assert (folder, word_there) == ("/", word)
    assert not Path(script).parent.exists()


def test_an_orderly_end_leaves_no_guardian_and_an_open_output_to_nobody(owner):
    """A shell that reads our output through a pipe sees its end."""
    process, word = owner(LaunchPlan(argv=("true",), timeout_s=60.0))
    said, _ = process.communicate(timeout=PATIENT_S)
    assert said == "done\n"
    assert soon(lambda: not members(word))


def test_clean_up_is_run_unless_the_command_succeeds(tmp_path):
    """What it cannot do is reported; it does not carry the mark of the launch whose processes it ends."""
    touched = tmp_path / "touched"
    clean_up = (("sh", "-c", f'echo "$NCCLT_LAUNCH" "$0" >>{touched}; echo it is stuck; exit 1', MARK),)
    results = [
        ProcessSession(
            LaunchPlan(argv=("sh", "-c", code), clean_up=clean_up, timeout_s=timeout_s), environment=os.environ
        ).run()
        for code, timeout_s in (("exit 0", 60.0), ("exit 4", 60.0), ("kill -9 $$", 60.0), ("sleep 600", 0.2))
    ]
    assert [result.exit_code for result in results] == [0, 4, -9, -15]
    told = ("sh ended with exit code 1: it is stuck",)
    assert [result.left_elsewhere for result in results] == [(), told, told, told]
    lines = [line.split() for line in touched.read_text().splitlines()]
    assert len(lines) == 3
    assert all(own != launched for own, launched in lines)


def test_a_guardian_that_was_killed_is_replaced():
    """With all that it had been told."""
    word = new_mark()
    os.environ[WORD] = word
    own = reaper()
    own.forget()  # so that the next one is started with the word
    mark = new_mark()
    try:
        own.begin(mark, grace_s=0.1, environment={})
        (first,) = members(word)
        os.kill(first, signal.SIGKILL)
        assert soon(lambda: first not in members(word))
        other = new_mark()
        own.begin(other, grace_s=0.1, environment={})
        (second,) = members(word)
        assert second != first
        own.end(other)
        own.end(mark)
    finally:
        del os.environ[WORD]
        own.forget()
    assert soon(lambda: not members(word))


def test_launches_that_have_ended_are_none_of_its_business():
    """Nor one whose announcement was cut, for it cannot have begun."""
    lines = [json.dumps(said).encode() + b"\n" for said in ({"begun": "a"}, {"begun": "b"}, {"ended": "a"})]
    assert open_launches([*lines, b'{"begun": "c"']) == [{"begun": "b"}]


def test_folders_of_results_go_last(tmp_path):
    """After kill -9 too, and only when the launch that writes into them has ended."""
    code = """
import os, sys
from pathlib import Path
from ncclt.launch.process.reaper import results_folder
from ncclt.launch.launcher import LaunchPlan
from ncclt.launch.process.session import ProcessSession
with results_folder("trial-", parent=Path(sys.argv[1])) as folder:
    late = ("trap 'sleep 1; echo late >\\"$0/late\\"; exit' TERM; echo >\\"$0/begun\\"; "
            "while :; do sleep 0.1; done")
    ProcessSession(LaunchPlan(argv=("sh", "-c", late, str(folder)), timeout_s=600.0), environment=os.environ).run()
"""
    process = subprocess.Popen((sys.executable, "-c", code, str(tmp_path)))
    try:
        assert soon(lambda: list(tmp_path.glob("trial-*/begun")))
    finally:
        process.kill()
        process.wait()
    assert soon(lambda: not list(tmp_path.iterdir()))
    # Nothing comes back: whoever could write there has ended.
    time.sleep(2.0)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_already_does_not_keep_the_others(tmp_path):
    """A cleaner of temporary folders may have removed it first; that is no error."""
    gone, files, results = tmp_path / "gone", tmp_path / "files", tmp_path / "results"
    files.mkdir()
    results.mkdir()
    launch = {"grace_s": 0.0, "clean_up": [], "environment": {}}
    told = [
        {"begun": new_mark(), "folder": str(gone), **launch},
        {"begun": new_mark(), "folder": str(files), **launch},
        {"begun": str(gone), "results": str(gone)},
        {"begun": str(results), "results": str(results)},
    ]
    said = subprocess.run(
        (sys.executable, "-c", "from ncclt.launch.process.reaper import main; main()"),
        input="".join(json.dumps(one) + "\n" for one in told),
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
    )
    assert (said.stdout, said.stderr) == ("", "")  # read to their end, so the reaper has ended
    assert not list(tmp_path.iterdir())


def test_a_folder_of_results_is_gone_without_the_guardian(tmp_path):
    """The usual end."""
    with results_folder("trial-", parent=tmp_path) as folder:
        (folder / "result.json").write_text("{}")
        assert folder.stat().st_mode & 0o077 == 0
    assert not list(tmp_path.iterdir())
