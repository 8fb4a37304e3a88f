"""One decision per job: by many processes at once, after a kill, for a name used again, in unfit folders."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ncclt.deliver.job_info import JobInfo
from ncclt.deliver.shared_decision import REUSE_S, await_decision, check_shared_folder, decide, find_decision
from ncclt.errors import StoreError, UsageError

JOB = JobInfo(name="Slurm step 7.0 start 0")
MPI = JobInfo(name="Open MPI job 99", is_unique=False)
ASKED = "bert on leonardo, nodes 2"

# Waits for the word to go, so that all propose at once; prints what it was told.
PROPOSER = """
import sys, time
from pathlib import Path
from ncclt.deliver.shared_decision import decide
from ncclt.deliver.job_info import JobInfo
folder, number = Path(sys.argv[1]), sys.argv[2]
(folder / f"ready-{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
print(decide(folder, JobInfo(name="j"), question="q", content={"proposal": number}).content["proposal"])
"""
# Is killed by itself, with no chance to clean up, just before or just after it has decided.
KILLED = """
import os, signal, sys
from pathlib import Path
from ncclt.deliver.shared_decision import decide
from ncclt.deliver.job_info import JobInfo
link = Path.hardlink_to
def killed(self, target):
    if sys.argv[2] == "after":
        link(self, target)
    os.kill(os.getpid(), signal.SIGKILL)
Path.hardlink_to = killed
decide(Path(sys.argv[1]), JobInfo(name="j"), question="q", content={"proposal": "killed"})
"""


def proposed(folder, text="mine", *, job=JOB, question=ASKED, **options):
    return decide(folder, job, question=question, content={"proposal": text}, **options)


def aged(folder, age_s, text="mine"):
    """Propose under a name that recurs, so long ago by the clock of the node and by that of the file system."""
    made = proposed(folder, text, job=MPI, clock=lambda: time.time() - age_s)
    os.utime(only_file(folder), (time.time() - age_s,) * 2)
    return made


def only_file(folder):
    (path,) = folder.glob("ncclt-decision-*")
    return path


def test_the_first_proposal_is_the_decision_and_stays_it(tmp_path):
    first = proposed(tmp_path)
    text = only_file(tmp_path).read_bytes()

    assert proposed(tmp_path, "other") == first == find_decision(tmp_path, JOB, question=ASKED)
    assert (first.content, first.pid) == ({"proposal": "mine"}, os.getpid())
    assert only_file(tmp_path).read_bytes() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == [only_file(tmp_path).name]


def test_a_job_started_anew_decides_anew(tmp_path):
    proposed(tmp_path)
    requeued = JobInfo(name="Slurm step 7.0 start 1")

    assert find_decision(tmp_path, requeued, question=ASKED) is None
    assert proposed(tmp_path, "new", job=requeued).content == {"proposal": "new"}


def test_twelve_processes_at_once_are_told_the_same(tmp_path, start):
    running = [
        start([sys.executable, "-c", PROPOSER, tmp_path, str(n)], stdout=subprocess.PIPE, text=True) for n in range(12)
    ]
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("ready-*"))) < 12 and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    told = [process.communicate(timeout=120)[0].strip() for process in running]

    assert [process.returncode for process in running] == [0] * 12
    assert len(set(told)) == 1
    assert told[0] in {str(n) for n in range(12)}


@pytest.mark.parametrize(("moment", "told"), [("before", "mine"), ("after", "killed")])
def test_a_decider_killed_in_the_middle_blocks_nobody(tmp_path, moment, told):
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path, moment], check=False, timeout=120)

    assert killed.returncode == -signal.SIGKILL
    assert proposed(tmp_path, job=JobInfo(name="j"), question="q").content == {"proposal": told}


def test_who_waits_is_told_what_others_decide_meanwhile(tmp_path):
    assert await_decision(tmp_path, JOB, question=ASKED, wait_s=0) is None
    later = f"import time; time.sleep(0.3); {PROPOSER.partition('folder, number')[0]}" + (
        f"decide(Path(sys.argv[1]), JobInfo(name={JOB.name!r}), question={ASKED!r}, content={{'proposal': 'theirs'}})"
    )
    with subprocess.Popen([sys.executable, "-c", later, tmp_path]) as other:
        found = await_decision(tmp_path, JOB, question=ASKED, wait_s=120)
        assert other.wait(timeout=120) == 0
    assert found.content == {"proposal": "theirs"}


def test_a_name_that_recurs_is_decided_anew_when_the_old_job_is_surely_over(tmp_path):
    old = aged(tmp_path, 3 * REUSE_S, "old")
    assert old.content == {"proposal": "old"}
    new = proposed(tmp_path, "new", job=MPI, question="another question")
    assert new.content == {"proposal": "new"}
    assert find_decision(tmp_path, MPI, question="another question") == new
    assert len(list(tmp_path.glob("ncclt-decision-*"))) == 2


def test_where_it_is_not_sure_nothing_starts(tmp_path):
    aged(tmp_path, 1.5 * REUSE_S)

    with pytest.raises(StoreError, match="may be of this job or of an earlier one"):
        proposed(tmp_path, job=MPI)


@pytest.mark.parametrize(("by_node_s", "by_files_s"), [(3 * REUSE_S, 60), (60, 3 * REUSE_S), (-3 * REUSE_S, 9e4)])
def test_nodes_whose_clocks_are_hours_apart_do_not_decide_twice(tmp_path, by_node_s, by_files_s):
    """One would pass over what another follows."""
    proposed(tmp_path, job=MPI, clock=lambda: time.time() - by_node_s)
    os.utime(only_file(tmp_path), (time.time() - by_files_s,) * 2)

    with pytest.raises(StoreError, match="may be of this job or of an earlier one"):
        proposed(tmp_path, "other", job=MPI)
    assert [path.name for path in tmp_path.iterdir()] == [only_file(tmp_path).name]


def test_a_unique_name_is_followed_however_late(tmp_path):
    """A node that joins an elastic job days later must do as the others do."""
    proposed(tmp_path, "old", clock=lambda: time.time() - 1e6)

    assert proposed(tmp_path, "new").content == {"proposal": "old"}


def test_another_question_is_refused(tmp_path):
    proposed(tmp_path)

    with pytest.raises(UsageError, match="asked for bert on leonardo, nodes 2, and this process for gpt") as caught:
        proposed(tmp_path, question="gpt")
    assert "--job" in caught.value.hint


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-1],
        lambda text: b"",
        lambda text: text.replace(b"mine", b"evil"),
        lambda text: b"[1]",
        lambda text: b'{"ncclt_decision": 2}',
        lambda text: b"[" * 100_000,
        lambda text: b"\xff\xfe",
        lambda text: b"x" * (5 << 20),
    ],
)
def test_a_damaged_decision_starts_nothing(tmp_path, damage):
    proposed(tmp_path)
    path = only_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(StoreError) as caught:
        proposed(tmp_path)
    assert caught.value.hint


def test_what_is_no_plain_file_is_neither_followed_nor_waited_for(tmp_path):
    proposed(tmp_path)
    path = only_file(tmp_path)
    path.rename(tmp_path / "elsewhere")
    for make in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "elsewhere")):
        make(path)
        with pytest.raises(StoreError):
            proposed(tmp_path)
        path.unlink()


def test_the_decision_of_another_job_under_this_name_is_refused(tmp_path):
    proposed(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    proposed(other, job=MPI)
    only_file(other).replace(only_file(tmp_path))

    with pytest.raises(StoreError, match="another job, 'Open MPI job 99'"):
        proposed(tmp_path)


@pytest.fixture
def unwritable(tmp_path, monkeypatch):
    """A folder in which nothing can be made; of root too, whom no permission stops."""

    def refused(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    return lambda: monkeypatch.setattr("ncclt.deliver.shared_decision.tempfile.mkstemp", refused)


def test_who_cannot_write_follows_or_does_not_start(tmp_path, unwritable):
    unwritable()
    with pytest.raises(StoreError, match="no node has decided") as caught:
        proposed(tmp_path)
    assert "hard links" in caught.value.hint


def test_who_cannot_write_can_follow(tmp_path, unwritable):
    proposed(tmp_path)
    unwritable()
    assert proposed(tmp_path, "other").content == {"proposal": "mine"}


def test_a_file_system_without_hard_links_is_refused_and_left_clean(tmp_path, monkeypatch):
    def no_links(self, target):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    with pytest.raises(StoreError, match="Operation not supported"):
        proposed(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_lost_answer_of_nfs_is_no_failure(tmp_path, monkeypatch):
    link = Path.hardlink_to

    def answer_lost(self, target):
        link(self, target)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "hardlink_to", answer_lost)
    assert proposed(tmp_path).content == {"proposal": "mine"}


def test_a_lost_answer_of_nfs_is_no_failure_while_the_decision_is_not_visible_yet(tmp_path, monkeypatch):
    """The number of links shows that the link was made, though the folder's cached content lacks it."""
    link, exists = Path.hardlink_to, Path.exists

    def answer_lost(self, target):
        link(self, target)
        monkeypatch.setattr(Path, "exists", lambda path: False)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "hardlink_to", answer_lost)
    assert proposed(tmp_path).content == {"proposal": "mine"}
    monkeypatch.setattr(Path, "exists", exists)


def test_a_link_that_fails_because_another_process_was_first_is_no_failure(tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    proposed(other, "theirs")

    def too_late(self, target):
        only_file(other).replace(self)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "hardlink_to", too_late)
    assert proposed(tmp_path).content == {"proposal": "theirs"}


def test_a_decision_that_others_can_write_starts_nothing(tmp_path):
    proposed(tmp_path)
    only_file(tmp_path).chmod(0o666)

    with pytest.raises(StoreError, match="other users can write"):
        proposed(tmp_path)


def test_a_decision_that_stays_unseen_starts_nothing(tmp_path, monkeypatch):
    def exists(self, target):
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(Path, "hardlink_to", exists)
    with pytest.raises(StoreError, match="exists but is not visible"):
        proposed(tmp_path, patience_s=0.2)


def test_a_folder_that_is_not_here_is_not_made(tmp_path):
    with pytest.raises(StoreError, match="is not on"):
        check_shared_folder(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_a_folder_that_cannot_be_reached_is_no_crash(tmp_path, monkeypatch):
    """As with a Kerberos ticket that has run out; of root too, whom no permission stops."""

    def refused(self, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(StoreError, match=r"cannot be reached on .*Permission denied"):
        check_shared_folder(tmp_path)


def test_a_mount_point_is_refused(tmp_path):
    (tmp_path / "link").symlink_to("/proc")
    for path in (Path("/proc"), tmp_path / "link"):
        with pytest.raises(UsageError, match="mount point"):
            check_shared_folder(path)


def test_a_link_to_a_folder_on_another_file_system_is_no_mount_point(tmp_path):
    """A home that links to a scratch file system, for example."""
    other = next(one for one in ("/dev/shm", "/var/tmp") if Path(one).stat().st_dev != tmp_path.stat().st_dev)
    with tempfile.TemporaryDirectory(dir=other) as elsewhere:
        (tmp_path / "link").symlink_to(elsewhere)
        assert check_shared_folder(tmp_path / "link") == Path(elsewhere)


def test_the_document_is_json_for_people_who_look(tmp_path):
    proposed(tmp_path)
    outer = json.loads(only_file(tmp_path).read_text())
    assert json.loads(outer["decision"])["job"] == JOB.name
