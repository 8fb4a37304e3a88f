"""Follows a batch job of Slurm until it ends: its state, its logs, its exit code."""

from __future__ import annotations

import codecs
import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ncclt.errors import StudyStoppedError
from ncclt.launch.slurm.job import ask

POLL_S = 3.0
"""Between two queries of the controller: it serves the whole cluster, and nothing here is urgent."""

_REGRET_S = 5.0
"""How long a second Ctrl-C counts."""

_SILENT_QUESTIONS = 20
"""Unanswered queries in a row after which following stops: a controller may take a minute to restart."""

_EXIT_CODES = {"COMPLETED": 0, "TIMEOUT": 124, "DEADLINE": 124, "CANCELLED": 130}
"""What the end of a job means to a shell; every other end but FAILED is 1."""

_UNDER_WAY = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"}
    | {"RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "POWER_UP_NODE"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """Where a job writes its standard output and its standard error."""

    stdout: str
    stderr: str


def follow(
    job_id: str,
    logs: Logs,
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
        logs: where it writes.
        show: receives pieces of the job's standard output.
        say: receives pieces of its standard error, and messages about the job.
        environment: for Slurm's commands; None = this program's own.
        poll_s: seconds between two queries.

    Raises:
        StudyStoppedError: Slurm does not answer any more; the job may well be running.
    """
    continues = f"ncclt: job {job_id} continues; `scancel {job_id}` ends it"
    growing = (_Log(logs.stdout, show), _Log(logs.stderr, say))
    try:
        return _follow(job_id, growing, say=say, environment=environment, poll_s=poll_s)
    except KeyboardInterrupt:
        try:
            say(f"\n{continues}, as does Ctrl-C within {_REGRET_S:.0f} s; its output: {logs.stdout}\n")
            time.sleep(_REGRET_S)
        except KeyboardInterrupt:
            ask(("scancel", job_id), environment)
            say(f"ncclt: job {job_id} is cancelled\n")
        return 130
    except SystemExit:
        # stderr may be closed together with the terminal: that must not hide why this program ends.
        with contextlib.suppress(OSError):
            say(f"\n{continues}; its output: {logs.stdout}\n")
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
        state, reason, exit_code, again = _state(job_id, environment)
        for log in logs:
            log.show_growth()
        silent = 0 if state else silent + 1
        if silent >= _SILENT_QUESTIONS:
            raise StudyStoppedError(
                f"Slurm no longer knows job {job_id}",
                hint=f"`squeue --job {job_id}` and {logs[1].path} may say more; the same command follows it again",
            )
        # Why a job completes is known a moment later.
        now = f"{again}{state.lower()}{f' ({reason})' if reason else ''}"
        if state in _UNDER_WAY and state != "COMPLETING" and now != shown:
            shown = now
            say(f"ncclt: job {job_id} is {now}\n")
        if state and state not in _UNDER_WAY:
            break
        time.sleep(poll_s)
    if not any(log.seen for log in logs):
        say(f"ncclt: its logs cannot be seen from here: {logs[0].path}\n")
    say(f"ncclt: job {job_id} has ended: {state.lower()}{f' ({reason})' if reason else ''}\n")
    return exit_code if state == "FAILED" else _EXIT_CODES.get(state, 1)


def _state(job_id: str, environment: Mapping[str, str] | None) -> tuple[str, str, int, str]:
    """Return state, reason and exit code of a job, and words if it was requeued; no state = Slurm did not answer."""
    said = ask(("scontrol", "show", "job", "--oneliner", job_id), environment).stdout
    known = dict(re.findall(r"(\S+?)=(\S*)", said))
    code, _, number = known.get("ExitCode", "1:0").partition(":")
    exit_code = 128 + int(number) if number not in ("", "0") else int(code)
    reason = known.get("Reason", "")
    again = "" if known.get("Restarts", "0") == "0" else "requeued by Slurm, resumes, and is "
    return known.get("JobState", ""), "" if reason == "None" else reason, exit_code, again


class _Log:
    """A log that another machine writes."""

    def __init__(self, path: str, show: Callable[[str], object]) -> None:
        self.path = path
        self.seen = False
        self._show = show
        self._shown_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show_growth(self) -> None:
        """Show what was added since the last time."""
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
