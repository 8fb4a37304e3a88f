"""A whole study as one batch job of Slurm: planned, submitted from a login node, and followed until it ends."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ncclt.errors import UsageError
from ncclt.launch.launcher import JobShape
from ncclt.launch.slurm.follow import POLL_S, Logs, follow
from ncclt.launch.slurm.job import ask

_NODE_LOCAL = frozenset({"tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay"})
"""Types of file systems that are local to a machine (/proc/mounts)."""

SHARING = ("--exclusive", "--oversubscribe", "--share", "-s")
"""Options of sbatch that say whether other jobs, which disturb measurements, may run on the same nodes."""

NOTICE_S = 60
"""How long before its time limit a job gets SIGTERM; Slurm is up to a minute early (sbatch, --signal)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """What one batch job is to do.

    Attributes:
        command: the command line of ncclt, which then runs inside the job's allocation.
        shape: nodes, and processes on each.
        gpus_per_node: to request; None = none are requested, for sites that allocate whole nodes.
        time_limit: of the job, in Slurm's form (`30`, `2:00:00`); None = the partition's default.
        job_name: for squeue.
        folder: of the job's two logs; the compute nodes must see it.
        extra: further options for sbatch, verbatim; they win. Without one of `SHARING` whole nodes are requested.
        notice_s: how long before its time limit the job gets SIGTERM, seconds.
        variables: set by the script, whatever `--export` lets through.
        comment: by which `find_job` finds the job again.
    """

    command: tuple[str, ...]
    shape: JobShape
    gpus_per_node: int | None = None
    time_limit: str | None = None
    job_name: str = "ncclt"
    folder: Path
    extra: tuple[str, ...] = ()
    notice_s: int = NOTICE_S
    variables: tuple[tuple[str, str], ...] = ()
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A batch job, decided but not submitted.

    Attributes:
        argv: the sbatch command, which reads the script from its standard input.
        script: what the first node runs.
        log_stem: path of the job's logs without `.out` and `.err`; `%j` is replaced by its id.
    """

    argv: tuple[str, ...]
    script: str
    log_stem: str

    def logs(self, job_id: str) -> Logs:
        """Return where a job of this plan writes."""
        stem = self.log_stem.replace("%j", job_id)
        return Logs(stdout=f"{stem}.out", stderr=f"{stem}.err")


def plan_batch(request: BatchRequest) -> BatchPlan:
    """Return the batch job of a request; pure.

    Before its time limit, and on preemption, ncclt itself gets SIGTERM, since it has replaced the batch shell (`exec`):
    it finishes the running trial and saves. A job that Slurm requeues resumes the same study.
    """
    stem = str(request.folder / f"{request.job_name}-%j")
    lines = [
        f"--job-name={request.job_name}",
        f"--nodes={request.shape.nodes}",
        f"--ntasks-per-node={request.shape.processes_per_node}",
        *([f"--gpus-per-node={request.gpus_per_node}"] if request.gpus_per_node else []),
        *([f"--time={request.time_limit}"] if request.time_limit else []),
        *([f"--nodelist={','.join(request.shape.hosts)}"] if request.shape.hosts else []),
        *([] if any(word.partition("=")[0] in SHARING for word in request.extra) else ["--exclusive"]),
        f"--output={stem}.out",
        f"--error={stem}.err",
        "--open-mode=append",
        f"--signal=B:TERM@{request.notice_s}",
        "--requeue",
        "--export=ALL",
        *([f"--comment={request.comment}"] if request.comment else []),
    ]
    script = "\n".join(
        (
            "#!/bin/bash",
            *(f"#SBATCH {_quoted(line)}" for line in lines),
            "# Lines appear in the log when they are written, not when the study ends.",
            "export PYTHONUNBUFFERED=1",
            *(f"export {name}={shlex.quote(value)}" for name, value in request.variables),
            f"exec {shlex.join(request.command)}",
            "",
        )
    )
    return BatchPlan(argv=("sbatch", "--parsable", *request.extra), script=script, log_stem=stem)


def _quoted(option: str) -> str:
    """Quote an option for an #SBATCH line, where blanks and # end it as in a shell."""
    name, equals, value = option.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else option


def submit(plan: BatchPlan, *, environment: Mapping[str, str] | None = None) -> str:
    """Submit a job and return its id.

    Raises:
        UsageError: sbatch was not found, or it refuses the job.
    """
    try:
        done = ask(plan.argv, environment, text=plan.script)
    except FileNotFoundError:
        raise UsageError(
            "this is not a Slurm allocation, and there is no sbatch here to ask for one",
            hint="run it on a login node of the cluster, or choose another --launcher",
        ) from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it did not say why"]
        names_partition = any(word.startswith(("-p", "--partition")) for word in plan.argv)
        hint = "" if names_partition else "many sites need --launcher-option sbatch-arg=--partition=NAME"
        raise UsageError(f"sbatch refused the job: {said[-1]}", hint=hint)
    return done.stdout.strip().partition(";")[0]  # `7;cluster` where there are several


def find_job(comment: str, *, environment: Mapping[str, str] | None = None) -> tuple[str, Logs] | None:
    """Return this user's job with a comment, queued or running, and where it writes; None = there is none."""
    states = "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"
    try:
        queued = ask(("squeue", "--noheader", f"--user={getpass.getuser()}", states, "--format=%i %k"), environment)
    except OSError:
        return None
    for job_id, _, said in (line.strip().partition(" ") for line in queued.stdout.splitlines()):
        if said.strip() == comment:
            shown = ask(("scontrol", "show", "job", job_id), environment).stdout
            paths = dict(re.findall(r"(?m)^ *(StdOut|StdErr)=(.+)$", shown))
            if len(paths) == 2:
                return job_id, Logs(stdout=paths["StdOut"], stderr=paths["StdErr"])
    return None


def submit_and_follow(
    request: BatchRequest,
    *,
    wait: bool,
    show: Callable[[str], object],
    say: Callable[[str], object],
    environment: Mapping[str, str] | None = None,
    poll_s: float = POLL_S,
) -> int:
    """Submit a study as one job, and follow it until it ends if `wait`; return the exit code, or 0 without waiting.

    A job of the same comment that is queued or runs is followed instead. The other arguments and StudyStoppedError are
    those of `follow`.

    Raises:
        UsageError: sbatch was not found, or it refuses the job.
    """
    plan = plan_batch(request)
    known = dict(os.environ if environment is None else environment)
    if request.comment and (found := find_job(request.comment, environment=known)):
        job_id, logs = found
        say(f"ncclt: job {job_id} is measuring this study already; its output: {logs.stdout}\n")
    else:
        job_id = submit(plan, environment=known)
        logs = plan.logs(job_id)
        say(f"ncclt: submitted job {job_id}; its output: {logs.stdout}\n")
    if not wait:
        return 0
    return follow(job_id, logs, show=show, say=say, environment=known, poll_s=poll_s)


def node_local_folder(path: Path, *, mounts: str | None = None) -> str:
    """Return why compute nodes may not see a file; empty where they probably do.

    With a store that only the login node sees, the job would fill one of its own and lose it.

    Args:
        path: absolute.
        mounts: the text of /proc/mounts; None = this machine's.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(errors="replace")
        except OSError:
            return ""
    best, kind = PurePosixPath("/"), ""
    for line in mounts.splitlines():
        _device, point, mounted_kind, *_ = [*line.split(" "), "", "", ""]
        place = PurePosixPath(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point))
        if point and path.is_relative_to(place) and len(place.parts) >= len(best.parts):
            best, kind = place, mounted_kind
    if kind not in _NODE_LOCAL:
        return ""
    return f"{path} is on {best} ({kind}), a file system of this machine, which compute nodes may not see"
