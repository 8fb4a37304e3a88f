"""The end of a job under the doctor, its output, and a job without NCCL."""

import contextlib
import os
import threading
from dataclasses import replace

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.health.doctor import Facts, diagnose, job
from ncclt.health.doctor.facts import JobRun
from ncclt.profile.record.ranks import RankReport

RUN = JobRun(argv=("train",), exit_code=0, ended_by_ncclt="", wall_s=12.3)
RANK = RankReport(rank=0, state="recorded", steps_seen=10, backend="gloo")


def workload(steps):
    message = Message(
        collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=1024, group_size=2, spans_nodes=False
    )
    return Workload(
        name="job",
        messages=(MessageCalls(message=message, calls_per_step=1.0),),
        provenance=Provenance(source="kineto", steps=steps),
    )


@pytest.mark.parametrize(
    ("changes", "ending", "has_failed"),
    [
        ({"exit_code": 0}, "ended after 12 s; exit code 0", False),
        ({"exit_code": 7}, "failed after 12 s; exit code 7", True),
        ({"exit_code": 137}, "killed by SIGKILL after 12 s; exit code 137", True),
        ({"exit_code": 143, "ended_by_ncclt": "limit: 60 s"}, "ended by ncclt after 12 s (limit: 60 s)", False),
        ({"recorded_steps": 5}, "ended by ncclt after 12 s (5 training steps recorded); exit code 0", False),
        ({"recorded_steps": 5, "exit_code": 7}, "failed after 12 s (5 training steps recorded); exit code 7", True),
    ],
)
def test_ending_names_who_ended_it_and_a_failure_behind_recorded_steps_is_one(changes, ending, has_failed):
    run = replace(RUN, **changes)
    assert run.ending.startswith(ending)
    assert run.has_failed == has_failed


def _fill(descriptor):
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(descriptor, b"x" * 4096)


@pytest.mark.parametrize("blocks", [True, False])
def test_slow_reader_gets_the_whole_output_before_the_page(tmp_path, blocks, monkeypatch):
    monkeypatch.setattr(job, "_LEFT_S", 0.0)
    reading, writing = os.pipe()
    _fill(writing)
    os.set_blocking(writing, blocks)
    got = []

    def read():
        while chunk := os.read(reading, 1 << 16):
            got.append(chunk)

    late = threading.Timer(0.5, read)
    late.start()
    with job._Output(tmp_path / "copy", writing) as output:
        os.write(output.theirs, b"the job's last words\n")
    os.set_blocking(writing, True)
    os.write(writing, b"the page")
    os.close(writing)
    late.join()
    os.close(reading)
    assert b"".join(got).endswith(b"xthe job's last words\nthe page")


def test_process_that_holds_the_output_open_holds_nothing_up(tmp_path):
    reading, writing = os.pipe()
    with job._Output(tmp_path / "copy", writing) as output:
        held = os.dup(output.theirs)
        os.write(held, b"said\n")
    os.close(held)
    os.close(writing)
    with open(reading, "rb") as rest:  # noqa: PTH123
        assert rest.read() == b"said\n"


def test_output_that_cannot_be_written_is_reported_and_stops_no_job(tmp_path):
    full = os.open("/dev/full", os.O_WRONLY)
    with job._Output(tmp_path / "copy", full) as output:
        for _ in range(100):
            os.write(output.theirs, b"n:1:1 [0] NCCL INFO Using network IB\n" * 100)
    os.close(full)
    assert output.problems == ("output of the job was lost: No space left on device",)
    assert (tmp_path / "copy").read_bytes().count(b"\n") == 10_000


def test_lines_of_nccl_alone_are_copied(tmp_path):
    null = os.open(os.devnull, os.O_WRONLY)
    ours = b"n:1:1 [0] NCCL INFO Using network IB\nNCCL version 2.27.5+cuda12.8\nRCCL version : 2.22.3-HEAD:abc\n"
    with job._Output(tmp_path / "copy", null) as output:
        os.write(output.theirs, b"backend: NCCL (default)\nexport NCCL_ALGO=Ring for NCCL 2\n" + ours)
    os.close(null)
    assert (tmp_path / "copy").read_bytes() == ours


@pytest.mark.parametrize(
    ("programs", "steps", "seen"),
    [
        ((), None, "no Python process of it loaded PyTorch"),
        ((replace(RANK, steps_seen=0),), None, "PyTorch was loaded by 1 process, and none trained"),
        ((RANK, replace(RANK, rank=1)), None, "2 ranks made 10 steps over gloo"),
        ((replace(RANK, backend=""),), None, "1 rank made 10 steps without a process group"),
        # Ten steps were made, five recorded; a log without steps says nothing about one.
        ((RANK,), 0, "1 rank made 10 steps over gloo"),
        (
            (RANK,),
            5,
            "1 rank made 10 steps over gloo; 5 of them, which were recorded, sent 1 KiB per rank and step in 1 message",
        ),
    ],
)
def test_what_was_seen_without_nccl(programs, steps, seen):
    assert replace(RUN, programs=programs, workload=None if steps is None else workload(steps)).seen == seen


def test_a_variable_set_by_a_script_is_judged_like_one_of_the_shell():
    rank = replace(RANK, backend="nccl", started_with=(("NCCL_PROTO", "LL"), ("NCCL_DEBUG", "INFO")))
    diagnosis = diagnose(Facts(job=replace(RUN, programs=(rank,))))
    (forced,) = [finding for finding in diagnosis.findings if finding.id == "ENV004"]
    assert "NCCL_PROTO" in forced.what
    assert not [finding.id for finding in diagnosis.findings if "NCCL_DEBUG" in finding.what]


def test_the_verdict_on_a_job_without_nccl_leads_with_that():
    diagnosis = diagnose(Facts(job=replace(RUN, programs=(RANK,)), here=True))
    assert diagnosis.verdict == "incomplete"
    assert diagnosis.summary.startswith("no NCCL in this job: 1 rank made 10 steps over gloo; ")
    assert not [part for part in diagnosis.examined if part.part in ("transports", "plugins")]
    not_started = diagnose(Facts(job=replace(RUN, exit_code=127)))
    assert not_started.summary.startswith("job failed after ")


@pytest.mark.parametrize(
    ("backends", "others"),
    [
        (["gloo"], "gloo"),
        (["gloo", "mpi"], "gloo and mpi"),
        (["nccl"], ""),
        (["cpu:gloo,cuda:nccl"], ""),
        ([""], ""),
        ([], ""),
    ],
)
def test_nccl_is_absent_where_only_another_backend_trained(backends, others):
    assert replace(RUN, programs=tuple(replace(RANK, backend=name) for name in backends)).other_backends == others
