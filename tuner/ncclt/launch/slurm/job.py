"""Whether the Slurm job of this program still has its nodes, and why not."""

from __future__ import annotations

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

_NEARLY_S = 180.0
"""A job is signalled a minute or two before its time limit (`--signal`, which itself may come a minute early)."""


def job_loss(environment: Mapping[str, str]) -> str:
    """Return why this program's job has lost its nodes; empty if it has them, there is no job, or Slurm is silent.

    Args:
        environment: of this program; salloc, sbatch and srun set SLURM_JOB_ID in it.
    """
    job_id, jobs = _ask(environment)
    for job in jobs:
        state = job.get("JobState", "")
        if state not in _LIVING:
            return f"Slurm job {job_id} {_ENDS.get(state, f'is {state.lower()}' if state else 'is gone')}"
        # Its steps are ended at once, itself only after the partition's GraceTime.
        if job.get("PreemptTime", "None") != "None":
            return f"Slurm job {job_id} {_ENDS['PREEMPTED']}"
    return ""


def job_notice(environment: Mapping[str, str]) -> str:
    """Return why Slurm sent this program SIGTERM; empty where Slurm has no reason to."""
    if loss := job_loss(environment):
        return loss
    job_id, jobs = _ask(environment)
    ends = [datetime.fromisoformat(job["EndTime"]) for job in jobs if job.get("EndTime", "Unknown") != "Unknown"]
    # Slurm writes local time without its zone.
    nearly = [end for end in ends if (end.astimezone(UTC) - datetime.now(UTC)).total_seconds() < _NEARLY_S]
    return f"Slurm job {job_id} {_ENDS['TIMEOUT']}" if nearly else ""


def _ask(environment: Mapping[str, str]) -> tuple[str, list[dict[str, str]]]:
    """Return the job's id and the fields of each of its components; {} = Slurm does not know it any more."""
    job_id = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOB_ID_HET_GROUP_0") or ""
    if not job_id:
        return "", []
    try:
        said = ask(("scontrol", "show", "job", "--oneliner", job_id), environment)
    except OSError:
        return job_id, []
    if said.returncode != 0:
        return job_id, [{}] if "nvalid job id" in said.stderr else []
    return job_id, [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in said.stdout.splitlines() if line.strip()]
