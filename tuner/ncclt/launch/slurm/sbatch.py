"""A whole study as one batch job of Slurm: planned, submitted from a login node, and followed until it ends."""

from __future__ import annotations

import codecs
import contextlib
import getpass
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ncclt.errors import StudyStoppedError, UsageError
from ncclt.launch.launcher import JobShape
from ncclt.launch.slurm.job import ask

POLL_S = 3.0
"""Time between two queries of the controller: it serves the whole cluster, and nothing here is urgent."""

_NODE_LOCAL = frozenset({"tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay"})
"""Types of file systems that are local to a machine (/proc/mounts)."""

SHARING = ("--exclusive", "--oversubscribe", "--share", "-s")
"""Options of sbatch that say whether other jobs, which disturb measurements, may run on the same nodes."""

NOTICE_S = 60
"""Time between a job's SIGTERM and its time limit; Slurm is up to a minute early (sbatch, --signal)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """Batch job request.

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

    def logs(self, job_id: str) -> tuple[str, str]:
        """Return the paths of a job's standard output and standard error."""
        stem = self.log_stem.replace("%j", job_id)
        return f"{stem}.out", f"{stem}.err"


def plan_batch(request: BatchRequest) -> BatchPlan:
    """Return the batch job of a request; pure.

    Before its time limit, and on preemption, ncclt itself gets SIGTERM, since it has replaced the batch shell (`exec`):
    it finishes the running trial and saves. A job that Slurm requeues resumes the same study.
    """
    stem = str(request.folder / f"{request.job_name}-%j")
    options = [
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
    # In such a line blanks and # end a value as in a shell.
    split = [option.partition("=") for option in options]
    lines = [f"{name}={shlex.quote(value)}" if equals else name for name, equals, value in split]
    script = "\n".join(
        (
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in lines),
            "# Lines appear in the log when they are written, not when the study ends.",
            "export PYTHONUNBUFFERED=1",
            *(f"export {name}={shlex.quote(value)}" for name, value in request.variables),
            f"exec {shlex.join(request.command)}",
            "",
        )
    )
    return BatchPlan(argv=("sbatch", "--parsable", *request.extra), script=script, log_stem=stem)


def submit(plan: BatchPlan, *, environment: Mapping[str, str] | None = None) -> str:
    """Submit a job and return its id.

    Raises:
        UsageError: sbatch was not found, or it refuses the job.
    """
    try:
        done = ask(plan.argv, environment, text=plan.script)
    except FileNotFoundError:
        raise UsageError(
            "not in a Slurm allocation, and sbatch is not installed here",
            hint="run it on a login node of the cluster, or choose another --launcher",
        ) from None
    if done.returncode != 0:
        complaints = done.stderr.strip().splitlines() or ["no reason given"]
        names_partition = any(word.startswith(("-p", "--partition")) for word in plan.argv)
        hint = "" if names_partition else "many sites need --launcher-option sbatch-arg=--partition=NAME"
        raise UsageError(f"sbatch refused the job: {complaints[-1]}", hint=hint)
    return done.stdout.strip().partition(";")[0]  # `7;cluster` where there are several


def find_job(comment: str, *, environment: Mapping[str, str] | None = None) -> tuple[str, tuple[str, str]] | None:
    """Return this user's job with a comment, queued or running, and the paths of its logs; None = there is none."""
    states = "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"
    try:
        queued = ask(("squeue", "--noheader", f"--user={getpass.getuser()}", states, "--format=%i %k"), environment)
    except OSError:
        return None
    for job_id, _, job_comment in (line.strip().partition(" ") for line in queued.stdout.splitlines()):
        if job_comment.strip() == comment:
            shown = ask(("scontrol", "show", "job", job_id), environment).stdout
            paths = dict(re.findall(r"(?m)^ *(StdOut|StdErr)=(.+)$", shown))
            if len(paths) == 2:
                return job_id, (paths["StdOut"], paths["StdErr"])
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
    inherited = dict(os.environ if environment is None else environment)
    if request.comment and (job := find_job(request.comment, environment=inherited)):
        job_id, logs = job
        say(f"ncclt: job {job_id} is already measuring this study; its output: {logs[0]}\n")
    else:
        job_id = submit(plan, environment=inherited)
        logs = plan.logs(job_id)
        say(f"ncclt: submitted job {job_id}; its output: {logs[0]}\n")
    if not wait:
        return 0
    return follow(job_id, logs, show=show, say=say, environment=inherited, poll_s=poll_s)


def node_local_folder(path: Path, *, mounts: str | None = None) -> str:
    """Return the reason that may hide a file from compute nodes; empty where they probably see it.

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


_REGRET_S = 5.0
"""Time for a second Ctrl-C after the first."""

_SILENT_QUESTIONS = 20
"""Unanswered queries in a row after which following stops: a controller may take a minute to restart."""

_EXIT_CODES = {"COMPLETED": 0, "TIMEOUT": 124, "DEADLINE": 124, "CANCELLED": 130}
"""Exit code of each state in which a job ends; every other state but FAILED is 1."""

_UNDER_WAY = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"}
    | {"RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "POWER_UP_NODE"}
)


def follow(
    job_id: str,
    logs: tuple[str, str],
    *,
    show: Callable[[str], object],
    say: Callable[[str], object],
    environment: Mapping[str, str] | None = None,
    poll_s: float = POLL_S,
) -> int:
    """Show the logs of a job as they grow until it ends, and return its exit code.

    The first Ctrl-C leaves the job running and says how to cancel it (130); a second one right after cancels it. Any
    other end of this program (SystemExit, as raised by a signal handler) leaves the job running as well.

    Args:
        job_id: as `submit` returned it.
        logs: paths of its standard output and standard error.
        show: receives pieces of the job's standard output.
        say: receives pieces of its standard error, and messages about the job.
        environment: for Slurm's commands; None = this program's own.
        poll_s: seconds between two queries.

    Raises:
        StudyStoppedError: Slurm does not answer any more; the job may well be running.
    """
    continues = f"ncclt: job {job_id} continues; `scancel {job_id}` ends it"
    growing = (_Log(logs[0], show), _Log(logs[1], say))
    try:
        return _follow(job_id, growing, say=say, environment=environment, poll_s=poll_s)
    except KeyboardInterrupt:
        try:
            say(f"\n{continues}, as does Ctrl-C within {_REGRET_S:.0f} s; its output: {logs[0]}\n")
            time.sleep(_REGRET_S)
        except KeyboardInterrupt:
            ask(("scancel", job_id), environment)
            say(f"ncclt: job {job_id} is cancelled\n")
        return 130
    except SystemExit:
        # stderr may be closed together with the terminal: that must not hide why this program ends.
        with contextlib.suppress(OSError):
            say(f"\n{continues}; its output: {logs[0]}\n")
        raise


def _follow(
    job_id: str,
    logs: tuple[_Log, _Log],
    *,
    say: Callable[[str], object],
    environment: Mapping[str, str] | None,
    poll_s: float,
) -> int:
    shown = ""
    silent = 0
    while True:
        facts = ask(("scontrol", "show", "job", "--oneliner", job_id), environment).stdout
        job = dict(re.findall(r"(\S+?)=(\S*)", facts))
        state = job.get("JobState", "")  # empty = Slurm did not answer
        reason = f" ({job['Reason']})" if job.get("Reason") not in (None, "", "None") else ""
        for log in logs:
            log.show_growth()
        silent = 0 if state else silent + 1
        if silent >= _SILENT_QUESTIONS:
            raise StudyStoppedError(
                f"Slurm no longer knows job {job_id}",
                hint=f"`squeue --job {job_id}` and {logs[1].path} may say more; the same command follows it again",
            )
        # Why a job completes is known a moment later.
        again = "" if job.get("Restarts", "0") == "0" else "requeued by Slurm, resumes, and is "
        now = f"{again}{state.lower()}{reason}"
        if state in _UNDER_WAY and state != "COMPLETING" and now != shown:
            shown = now
            say(f"ncclt: job {job_id} is {now}\n")
        if state and state not in _UNDER_WAY:
            break
        time.sleep(poll_s)
    if not any(log.seen for log in logs):
        say(f"ncclt: its logs cannot be seen from here: {logs[0].path}\n")
    say(f"ncclt: job {job_id} has ended: {state.lower()}{reason}\n")
    if state != "FAILED":
        return _EXIT_CODES.get(state, 1)
    code, _, number = job.get("ExitCode", "1:0").partition(":")
    return 128 + int(number) if number not in ("", "0") else int(code)


class _Log:
    """A log that another machine writes."""

    def __init__(self, path: str, show: Callable[[str], object]) -> None:
        self.path = path
        self.seen = False
        self._show = show
        self._shown_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show_growth(self) -> None:
        """Show the lines added since the last time."""
        try:
            # Opened again each time: network file systems guarantee fresh contents only after open.
            with Path(self.path).open("rb") as log:
                log.seek(self._shown_bytes)
                added = log.read()
        except OSError:
            return
        self.seen = True
        if added:
            self._shown_bytes += len(added)
            self._show(self._decoder.decode(added))
