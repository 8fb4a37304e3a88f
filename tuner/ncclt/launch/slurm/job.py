"""The Slurm job of this program: loss of its nodes, and signals before its end."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

_QUESTION_S = 60.0
"""A busy controller answers within this, or not at all."""


def ask(
    argv: Sequence[str], environment: Mapping[str, str] | None, *, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands; one that does not answer has failed."""
    try:
        return subprocess.run(
            argv,
            env=None if environment is None else dict(environment),
            input=text or "",
            capture_output=True,
            text=True,
            timeout=_QUESTION_S,
            check=False,
            # Ctrl-C is meant for ncclt, not for the query that it may be waiting for.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(argv), 1, "", f"{argv[0]} did not answer within {_QUESTION_S:.0f} s")


_LIVING = frozenset({"RUNNING", "CONFIGURING", "RESIZING", "SIGNALING"})

_ENDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "has reached its time limit",
    "DEADLINE": "has reached its deadline",
    "NODE_FAIL": "has lost a node",
    "PREEMPTED": "was preempted",
    "COMPLETED": "has ended",
    "SUSPENDED": "is suspended",
}

_PASSING = ("COMPLETING", "PENDING", "REQUEUED")
"""States of a job that ends, or that has been queued again, while a process of it still runs."""

_AGAIN = "; Slurm starts it again, and it resumes"

_NEARLY_S = 180.0
"""A job is signalled a minute or two before its time limit (`--signal`, which itself may come a minute early)."""


def job_loss(environment: Mapping[str, str]) -> tuple[str, bool]:
    """Return the reason for which this program's job has lost its nodes, and whether Slurm starts it again by itself.

    The reason is a sentence; empty = the job has its nodes, there is no job, or Slurm is silent.

    Args:
        environment: of this program; salloc, sbatch and srun set SLURM_JOB_ID in it.
    """
    job_id, jobs = _ask(environment)
    for job in jobs:
        requeued = int(job.get("Restarts") or 0) > int(environment.get("SLURM_RESTART_COUNT") or 0)
        if why := _ending(job, environment, requeued=requeued):
            return f"Slurm job {job_id} {why}{_AGAIN if requeued else ''}", requeued
    return "", False


def _ending(job: Mapping[str, str], environment: Mapping[str, str], *, requeued: bool) -> str:
    """Return the end of a job or component; empty = it has not."""
    state = job.get("JobState", "")
    # Its steps are ended at once, itself only after the partition's GraceTime.
    if job.get("PreemptTime", "None") != "None":
        return _ENDS["PREEMPTED"]
    if state in _LIVING:
        # From EndTime on every step is refused, while the job may run for minutes (OverTimeLimit, KillWait).
        return _ENDS["TIMEOUT"] if _seconds_left(job) <= 0 else ""
    if state in _PASSING:
        # Slurm shows this instead of the reason for as long as a process of the job is left, this one for example.
        if _lost_nodes(environment):
            return _ENDS["NODE_FAIL"]
        if requeued:
            return "was requeued"
        limit_s = _duration_s(job.get("TimeLimit", ""))
        is_over = limit_s is not None and (_duration_s(job.get("RunTime", "")) or 0.0) >= limit_s
        return _ENDS["TIMEOUT"] if is_over else _ENDS["CANCELLED"]
    return _ENDS.get(state, f"is {state.lower()}" if state else "is gone")


def _lost_nodes(environment: Mapping[str, str]) -> bool:
    """Return True if a node of this program's job is down."""
    nodes = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_JOB_NODELIST_HET_GROUP_0", "")
    shown = ask(("scontrol", "show", "nodes", nodes, "--oneliner"), environment).stdout if nodes else ""
    return re.search(r"\sState=\S*(?:DOWN|FAIL|NOT_RESPONDING)", shown) is not None


def _duration_s(text: str) -> float | None:
    """Return the seconds of Slurm's `1-02:03:04`; None = it is no duration, as `UNLIMITED`."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def job_notice(environment: Mapping[str, str]) -> str:
    """Return Slurm's reason for a SIGTERM to this program; empty where it has none."""
    loss, _requeued = job_loss(environment)
    if loss:
        return loss
    job_id, jobs = _ask(environment)
    return f"Slurm job {job_id} {_ENDS['TIMEOUT']}" if any(_seconds_left(job) < _NEARLY_S for job in jobs) else ""


def _seconds_left(job: Mapping[str, str]) -> float:
    """Return the time until a job's EndTime, infinite where it has none."""
    try:
        # Slurm writes local time without its zone.
        end = datetime.fromisoformat(job.get("EndTime", "")).astimezone(UTC)
    except ValueError:
        return math.inf
    return (end - datetime.now(UTC)).total_seconds()


def _ask(environment: Mapping[str, str]) -> tuple[str, list[dict[str, str]]]:
    """Return the job's id and the fields of each of its components; {} = Slurm does not know it any more."""
    job_id = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOB_ID_HET_GROUP_0") or ""
    if not job_id:
        return "", []
    try:
        shown = ask(("scontrol", "show", "job", "--oneliner", job_id), environment)
    except OSError:
        return job_id, []
    if shown.returncode != 0:
        return job_id, [{}] if "nvalid job id" in shown.stderr else []
    return job_id, [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in shown.stdout.splitlines() if line.strip()]
