"""Run the user's own job for a short while with NCCL's log switched on, and end it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import tempfile
import termios
import threading
import time
import tty
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from ncclt.errors import InputError, TraceError, UsageError, reason
from ncclt.health.doctor.facts import LOG_VARIABLES, Facts, JobRun
from ncclt.health.doctor.files import MOST_LOG_BYTES, read_logs
from ncclt.health.doctor.settings import LOG_NAMES
from ncclt.launch.mpi import is_open_mpi
from ncclt.launch.process.process_tree import MARK_VARIABLE, end_members, new_mark
from ncclt.launch.process.reaper import reaper
from ncclt.measure.redact import words_without_secrets
from ncclt.nccl.log.facts import LogFacts
from ncclt.nccl.log.lines import BY_NCCL
from ncclt.profile.record.command import run_foreground
from ncclt.profile.record.plan import Method, RecordOptions, RecordPlan, can_be_named, plan_recording
from ncclt.profile.record.ranks import read_reports
from ncclt.profile.record.session import make_folder, run_recording

_WARMUP, _STEPS = 5, 5
"""Warm-up and recorded steps: DDP and the profiler settle in three, and five show the exposed share."""

_NO_LOG = (
    "for NCCL did not start, or launcher or container hand no NCCL_DEBUG* on, or the job sets these itself; run it "
    "with NCCL_DEBUG=INFO, save its output, and give that with --from"
)

_LEFT_S = 5.0
"""Time between SIGTERM and SIGKILL for processes that the command has left behind."""

_MOST_LINE_BYTES = 16 * 1024
"""Max length of a line of NCCL."""

_OF_NCCL = re.compile(BY_NCCL.pattern.encode())

_MOST_HELD_BYTES = 1024 * 1024
"""More than a pipe holds by default (64 KiB), and what it may hold at most (pipe(7), fs.pipe-max-size)."""


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
        to_stderr: pass its standard output on to our standard error.

    Nothing of ours stops a command that has started: what goes wrong then is named in `missing`.

    Returns:
        the log and the run.

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
        log, problems = _read_logs(folder / "nccl")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    job = JobRun(
        argv=words_without_secrets(argv),
        exit_code=recording.exit_code,
        ended_by_ncclt=window.reason,
        recorded_steps=_STEPS if any(program.state == "recorded" for program in programs) else 0,
        wall_s=window.wall_s,
        programs=programs,
        workload=recording.workload,
        unrecorded=recording.reason,
    )
    if not (log.lines or problems or job.other_backends):
        problems = (f"no NCCL log: no process wrote a line of it, {_NO_LOG}",)
    return Facts(log=log, job=job, missing=(*window.problems, *problems))


def _make_folder() -> Path:
    """Make the recording's folder in this one, which other nodes may see as well, or among temporary files."""
    with contextlib.suppress(OSError, UsageError):  # it is gone, or not ours to write
        if can_be_named(folder := Path().resolve()):
            return make_folder(folder, keep=None)
    return make_folder(Path(tempfile.gettempdir()), keep=None)


def _read_logs(folder: Path) -> tuple[LogFacts, tuple[str, ...]]:
    try:
        return read_logs(tuple(sorted(folder.iterdir())), ignored=LOG_NAMES)
    except OSError as error:
        why = f"{reason(error)}; does the job clear {folder.parent.parent}?"
    except (InputError, TraceError) as error:
        why = error.message
    return LogFacts(), (f"the log of the job cannot be used: {why}",)


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
                window.wall_s = time.monotonic() - window.began_s
                end_members(window.mark, grace_s=_LEFT_S)
    finally:
        window.problems += output.problems
        reaper().end(window.mark)


class _RunLimit:
    """Deadline of a job: `watch` ends the job after it.

    Attributes:
        reason: why the job was ended; empty = it was not.
        problems: what went wrong on our side while the job ran.
    """

    def __init__(self, folder: Path, limits: TimeLimits) -> None:
        self.mark, self.folder = new_mark(), folder
        self.reason = ""
        self.problems: tuple[str, ...] = ()
        self.wall_s = 0.0
        self._limits = limits
        self.began_s = time.monotonic()
        self._talks_s: float | None = None
        self._counts_steps = False
        self._ended_s: float | None = None

    def watch(self, process_id: int) -> None:
        """End the command after its deadline, and all of its processes if that does not help."""
        now_s = time.monotonic()
        if self._ended_s is not None:
            if now_s - self._ended_s >= self._limits.grace:
                end_members(self.mark, grace_s=_LEFT_S)
            return
        with contextlib.suppress(OSError):  # the job may clear its folder: the limits hold, and the log is missing
            if self._talks_s is None and any(path.stat().st_size for path in (self.folder / "nccl").iterdir()):
                self._talks_s = now_s
            self._counts_steps = self._counts_steps or any((self.folder / "ranks").iterdir())
        if self._talks_s is None:
            since_s, most_s, phase = self.began_s, self._limits.silent, "without a line of NCCL"
        else:
            most_s = self._limits.steps if self._counts_steps else self._limits.calls
            since_s, phase = self._talks_s, "after NCCL's first line"
        if now_s - since_s >= most_s:
            self._ended_s, self.reason = now_s, f"limit: {most_s:g} s {phase}"
            with contextlib.suppress(PermissionError):
                os.kill(process_id, signal.SIGTERM)


class _Output:
    """Standard output of a command: passed on as it comes, with a copy of NCCL's lines.

    It is a terminal if ours is one, so that programs write whole lines at once, as without ncclt.

    Args:
        to: descriptor that the output is passed on to.

    Attributes:
        theirs: descriptor for the command.
        problems: what could not be passed on or copied, and why.

    Raises:
        OSError: there is no room for the copy, or no more descriptor.
    """

    def __init__(self, path: Path, to: int) -> None:
        self._to = to
        self._copy = path.open("wb", buffering=0)
        self.problems: tuple[str, ...] = ()
        if os.isatty(to):
            self._ours, self.theirs = pty.openpty()
            tty.setraw(self.theirs)
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(to, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)
        else:
            self._ours, self.theirs = os.pipe()
        self._end, self._ended = os.pipe()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def __enter__(self) -> _Output:
        """Begin to read; the thread takes no signals, which wait for the main one."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Pass on the rest, at the pace of our reader; all processes of the command that can be found have ended."""
        os.close(self.theirs)
        os.close(self._ended)
        self._thread.join()
        os.close(self._end)

    def _pass_on(self) -> None:
        line_start, log_bytes, held_bytes = b"", MOST_LOG_BYTES, _MOST_HELD_BYTES
        waiting = select.poll()
        waiting.register(self._ours, select.POLLIN)
        waiting.register(self._end, select.POLLIN)
        try:
            with self._copy:
                while held_bytes > 0:
                    ready = {descriptor for descriptor, _event in waiting.poll()}
                    # Without ours the command has ended, and a process that left it holds the pipe open.
                    if self._ours not in ready or not (chunk := _read(self._ours)):
                        return
                    held_bytes -= len(chunk) if self._end in ready else 0
                    self._write(chunk)
                    *lines, line_start = (line_start[-_MOST_LINE_BYTES:] + chunk).split(b"\n")
                    for line in filter(_OF_NCCL.search, lines):
                        log_bytes -= len(line)
                        self._keep(line, is_full=log_bytes < 0)
        except BrokenPipeError:
            pass  # our reader has gone: the pipe is closed, so that the command gets SIGPIPE as without us
        finally:
            os.close(self._ours)

    def _write(self, chunk: bytes) -> None:
        """Pass a chunk on.

        Raises:
            BrokenPipeError: the reader has gone.
        """
        view = memoryview(chunk)
        while view:
            try:
                view = view[os.write(self._to, view) :]
            except BlockingIOError:  # whoever shares our output has switched it
                select.select([], [self._to], [])
            except BrokenPipeError:
                raise
            except OSError as error:
                self._report(f"output of the job was lost: {reason(error)}")
                return

    def _keep(self, line: bytes, *, is_full: bool) -> None:
        if is_full:
            self._report(f"NCCL's lines on standard output were read up to {MOST_LOG_BYTES >> 20} MiB")
            return
        try:
            self._copy.write(line + b"\n")
        except OSError as error:
            self._report(f"NCCL's lines on standard output could not be kept: {reason(error)}")

    def _report(self, problem: str) -> None:
        self.problems = tuple(dict.fromkeys((*self.problems, problem)))


def _read(descriptor: int) -> bytes:
    """Read what there is; empty at the end."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""  # the end of a terminal is an error
