"""Run the user's own job for a short while with NCCL's log switched on, and end it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import shutil
import signal
import tempfile
import termios
import threading
import time
import tty
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from ncclt.errors import InputError, TraceError, UsageError, reason
from ncclt.health.doctor.facts import Facts, JobRun
from ncclt.health.doctor.files import read_logs
from ncclt.health.doctor.settings import LOG_NAMES, LOG_VARIABLES
from ncclt.launch.mpi import is_open_mpi
from ncclt.launch.process.process_tree import MARK_VARIABLE, end_members, new_mark
from ncclt.launch.process.reaper import reaper
from ncclt.measure.redact import words_without_secrets
from ncclt.nccl.log.facts import LogFacts
from ncclt.profile.record.command import run_foreground
from ncclt.profile.record.plan import Method, RecordOptions, RecordPlan, plan_recording
from ncclt.profile.record.ranks import read_reports
from ncclt.profile.record.session import make_folder, run_recording

_WARMUP, _STEPS = 5, 5
"""Warm-up and recorded steps: DDP and the profiler settle in three, and five show the exposed share."""

_LEFT_S = 5.0
"""Time between SIGTERM and SIGKILL for processes that the command has left behind."""

_MOST_LINE_BYTES = 16 * 1024
"""Max length of a line of NCCL."""

_MOST_LOG_BYTES = 256 * 1024 * 1024
"""Max size of NCCL's lines on standard output: enough for a thousand ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Time limits of a job that does not end by itself, s.

    Attributes:
        silent: without a line of NCCL: models and data are loaded meanwhile.
        steps: from the first line of NCCL, where PyTorch's steps are counted.
        calls: from the first line of NCCL, where they are not.
        grace: between SIGTERM to the command and the end of all of its processes.
    """

    silent: float = 600.0
    steps: float = 300.0
    calls: float = 60.0
    grace: float = 20.0


_LIMITS = TimeLimits()


def run_job(
    argv: Sequence[str], environ: Mapping[str, str], *, to_stderr: bool = False, limits: TimeLimits = _LIMITS
) -> Facts:
    """Run a command with NCCL's log on, for ten training steps or a minute; then end it.

    The command keeps our terminal and inputs, and we pass its output on at once. Each process writes its log
    into a folder beside the job; those that cannot write there log to standard output, which is read as well.

    Args:
        argv: the command.
        environ: of this program.
        to_stderr: pass its standard output on to our standard error.
        limits: of its time.

    Returns:
        the log and the run; what could not be read is named in `missing`.

    Raises:
        UsageError: the command cannot be started, or no folder can be written.
    """
    folder = _make_folder()
    try:
        plan = plan_recording(
            argv,
            RecordOptions(method=Method.AUTO, warmup=_WARMUP, steps=_STEPS, stop_after=True),
            folder=folder,
            environ={name: value for name, value in environ.items() if name not in LOG_NAMES},
            open_mpi=is_open_mpi(argv[0], environ=environ),
        )
        variables = {**dict(plan.set_env), "NCCL_DEBUG_SUBSYS": LOG_VARIABLES["NCCL_DEBUG_SUBSYS"]}
        plan = replace(plan, set_env=tuple(sorted(variables.items())))
        window = _RunLimit(folder, limits)
        recording = run_recording(
            plan,
            folder,
            name="job",
            start=lambda plan: _run(plan, window, environ, to_descriptor=2 if to_stderr else 1),
        )
        programs = read_reports(folder)
        recorded = sum(program.state == "recorded" for program in programs)
        ended_by_ncclt = window.reason or (f"{_STEPS} training steps recorded" if recorded else "")
        log, missing = _read_logs(sorted((folder / "nccl").iterdir()))
    except OSError as error:
        raise UsageError(f"cannot read what the job wrote into {folder}: {reason(error)}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    job = JobRun(
        argv=words_without_secrets(argv),
        exit_code=recording.exit_code,
        ended_by_ncclt=ended_by_ncclt,
        wall_s=window.wall_s,
        programs=programs,
        workload=recording.workload,
        unrecorded=recording.reason,
    )
    return Facts(log=log, job=job, missing=missing)


def _make_folder() -> Path:
    """Make the recording's folder in this one, which other nodes may see as well, or among temporary files."""
    try:
        return make_folder(Path(), keep=None)
    except UsageError:
        return make_folder(Path(tempfile.gettempdir()), keep=None)


def _read_logs(paths: Iterable[Path]) -> tuple[LogFacts, tuple[str, ...]]:
    try:
        return read_logs(tuple(paths), ignored=LOG_NAMES), ()
    except (InputError, TraceError) as error:
        return LogFacts(), (f"the log of the job cannot be used: {error.message}",)


def _run(plan: RecordPlan, window: _RunLimit, environ: Mapping[str, str], *, to_descriptor: int) -> int:
    """Run the command of a plan, and end all of its processes."""
    outer = environ.get(MARK_VARIABLE)
    mark = f"{outer}/{window.mark}" if outer else window.mark
    try:
        reaper().begin(window.mark, grace_s=_LEFT_S, environment=environ, folder=window.folder)
        output = _Output(window.folder / "nccl" / "stdout.log", to_descriptor)
    except OSError as error:
        raise UsageError(f"cannot prepare the start of {plan.argv[0]}: {reason(error)}") from error
    try:
        with output:
            try:
                return run_foreground(
                    plan.argv,
                    environ={**environ, **dict(plan.set_env), MARK_VARIABLE: mark},
                    stdout=output.theirs,
                    watch=window.watch,
                )
            finally:
                end_members(window.mark, grace_s=_LEFT_S)
    finally:
        window.close()
        reaper().end(window.mark)


class _RunLimit:
    """Deadline of a job: `watch` ends the job after it.

    Args:
        folder: of the recording.
        limits: of the time.
    """

    def __init__(self, folder: Path, limits: TimeLimits) -> None:
        self.mark, self.folder = new_mark(), folder
        self.reason = ""
        self.wall_s = 0.0
        self._limits = limits
        self._began_s = time.monotonic()
        self._talks_s: float | None = None
        self._ended_s: float | None = None

    def watch(self, process_id: int) -> None:
        """End the command after its deadline, and all of its processes if that does not help."""
        now_s = time.monotonic()
        if self._ended_s is not None:
            if now_s - self._ended_s >= self._limits.grace:
                end_members(self.mark, grace_s=_LEFT_S)
            return
        if self._talks_s is None and any(path.stat().st_size for path in (self.folder / "nccl").iterdir()):
            self._talks_s = now_s
        if self._talks_s is None:
            since_s, most_s, what = self._began_s, self._limits.silent, "without a line of NCCL"
        else:
            counts_steps = any((self.folder / "ranks").iterdir())
            most_s = self._limits.steps if counts_steps else self._limits.calls
            since_s, what = self._talks_s, "after NCCL's first line"
        if now_s - since_s >= most_s:
            self._ended_s, self.reason = now_s, f"limit: {most_s:g} s {what}"
            with contextlib.suppress(PermissionError):
                os.kill(process_id, signal.SIGTERM)

    def close(self) -> None:
        """Store the time at which the job ended."""
        self.wall_s = time.monotonic() - self._began_s


class _Output:
    """Standard output of a command: passed on as it comes, with a copy of NCCL's lines.

    It is a terminal if ours is one, so that programs write whole lines at once, as without ncclt.

    Args:
        path: of the copy.
        to: descriptor that the output is passed on to.

    Attributes:
        theirs: descriptor for the command.

    Raises:
        OSError: there is no room for the copy, or no more descriptor.
    """

    def __init__(self, path: Path, to: int) -> None:
        self._to = to
        self._copy = path.open("wb", buffering=0)
        if os.isatty(to):
            self._ours, self.theirs = pty.openpty()
            tty.setraw(self.theirs)
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(to, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)
        else:
            self._ours, self.theirs = os.pipe()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def __enter__(self) -> _Output:
        """Begin to read; the thread takes no signals, which wait for the main one."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Pass on the rest; all processes of the command have ended."""
        os.close(self.theirs)
        self._thread.join(_LEFT_S)

    def _pass_on(self) -> None:
        rest, left = b"", _MOST_LOG_BYTES
        with self._copy:
            try:
                while chunk := os.read(self._ours, 1 << 16):  # the end of a terminal is an error
                    _write(self._to, chunk)
                    *lines, rest = (rest[-_MOST_LINE_BYTES:] + chunk).split(b"\n")
                    for line in lines:
                        if b"NCCL " in line and left > 0:
                            left -= len(line)
                            with contextlib.suppress(OSError):  # a full disk costs the log, never the output
                                self._copy.write(line + b"\n")
            except OSError:
                pass
            finally:
                # Our reader has gone: close the pipe, so that the command gets SIGPIPE as it would without us.
                os.close(self._ours)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
