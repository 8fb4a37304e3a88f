"""The end of a job under the doctor, and a job without NCCL."""

from dataclasses import replace

import pytest

from ncclt.health.doctor.facts import JobRun
from ncclt.profile.record.ranks import RankReport

RUN = JobRun(argv=("train",), exit_code=0, ended_by_ncclt="", wall_s=12.3)
RANK = RankReport(rank=0, state="recorded", steps_seen=10, backend="gloo")


@pytest.mark.parametrize(
    ("code", "by", "ending", "has_failed"),
    [
        (0, "", "ended after 12 s; exit code 0", False),
        (7, "", "failed after 12 s; exit code 7", True),
        (137, "", "killed by SIGKILL after 12 s; exit code 137", True),
        (143, "limit: 60 s", "ended by ncclt after 12 s (limit: 60 s); exit code 143", False),
    ],
)
def test_ending_names_who_ended_it(code, by, ending, has_failed):
    run = replace(RUN, exit_code=code, ended_by_ncclt=by)
    assert (run.ending, run.has_failed) == (ending, has_failed)


@pytest.mark.parametrize(
    ("programs", "seen"),
    [
        ((), "no Python process of it loaded PyTorch"),
        ((replace(RANK, steps_seen=0),), "PyTorch was loaded by 1 process, and none trained"),
        ((RANK, replace(RANK, rank=1)), "2 ranks made 10 steps over gloo"),
        ((replace(RANK, backend=""),), "1 rank made 10 steps without a process group"),
    ],
)
def test_what_was_seen_without_nccl(programs, seen):
    assert replace(RUN, programs=programs).seen == seen
