"""A command in the foreground: it keeps our terminal, inputs and outputs, and gets the signals that we get."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ncclt.errors import UsageError, reason

_FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
    *(signal.SIGXCPU, signal.SIGURG, signal.SIGCONT, signal.SIGWINCH),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
"""Signals of schedulers and people: Slurm announces the end of its time by the one that `--signal` names, Grid Engine
by SIGXCPU. Stop signals are not among them: they go to the whole group, and a stopped parent forwards nothing."""

_ENDS_US = frozenset({*_FORWARDED} - {signal.SIGURG, signal.SIGCONT, signal.SIGWINCH})
"""Those that end a process by default."""

_SI_KERNEL = 0x80
"""si_code of a signal by the kernel, as for Ctrl-C (sigaction(2)): the terminal sent it to the command as well."""

_TO_ALL_S = 0.2
"""Time in which a signal to every process of a job reaches all of them; only then does a signal to us alone pass on."""

_TICK_S = 0.5
"""Time between two calls of `watch`, and between two looks for the end of the command."""

_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by Python itself (its own `subprocess` gives them back to a command, too)."""


def run_foreground(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    stdout: int | None = None,
    watch: Callable[[int], None] | None = None,
) -> int:
    """Run a command as a shell would and return its exit code.

    It stays in our process group, so that the terminal treats both as one job. We wait for signals instead of handling
    them: none is lost, none ends us before the command, and the sender is known, so that Ctrl-C is not doubled. Nor is
    a signal that Slurm sends to every process of the job: a `_Bystander` gets that one too.

    Args:
        argv: the command.
        environ: its environment, complete.
        stdout: descriptor of its standard output, None = ours.
        watch: called now and then by another thread with its process id, which is not reused before it returns. This
            one waits for signals all the time.

    Returns:
        the exit code; 128 + n where signal n ended it.

    Raises:
        UsageError: the command cannot be started.
    """
    awaited = {*_FORWARDED, signal.SIGCHLD}
    # A parent may have had us ignore the end of children, which would then leave no exit code.
    child_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    # Threads that block no signals, such as those of a BLAS library, may take one: it is sent again to this thread.
    ending = {number for number in _ENDS_US if signal.getsignal(number) != signal.SIG_IGN}
    handlers = {number: signal.signal(number, lambda number, _: signal.raise_signal(number)) for number in ending}
    try:
        with _Bystander(awaited) as bystander:
            pid = _start(argv, environ, mask, stdout)
            with _watching(watch, pid) as watching:
                code = _forward_until_end(pid, awaited, bystander, watching)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, child_handler or signal.SIG_DFL)
    return 128 - code if code < 0 else code


def _forward_until_end(pid: int, awaited: Collection[int], bystander: _Bystander, watching: threading.Lock) -> int:
    """Pass on the signals that we get until the command ends; return its exit code, negative = ended by a signal."""
    while True:
        received = signal.sigtimedwait(awaited, _TICK_S)
        if received is not None and received.si_signo != signal.SIGCHLD:
            if received.si_code != _SI_KERNEL and not bystander.has_got(received.si_signo):
                # Not reaped yet: the number is still its own. What has become another user's cannot be signalled.
                with contextlib.suppress(PermissionError):
                    os.kill(pid, received.si_signo)
        elif watching.acquire(blocking=False):
            status = _reap(pid)
            if status is not None:
                return os.waitstatus_to_exitcode(status)
            watching.release()


@contextmanager
def _watching(watch: Callable[[int], None] | None, pid: int) -> Iterator[threading.Lock]:
    """Call `watch` in a thread; return the lock that is held meanwhile, and by the caller from the end of `pid` on."""
    lock, ended = threading.Lock(), threading.Event()

    def run() -> None:
        while watch is not None and not ended.wait(_TICK_S):
            if lock.acquire(blocking=False):
                try:
                    watch(pid)
                finally:
                    lock.release()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield lock
    finally:
        ended.set()
        thread.join()


class _Bystander:
    """A process beside the command that does nothing, and in which signals stay pending: who signals all signals it.

    It reads from a pipe of ours, so that it ends when we do, however that happens.
    """

    def __init__(self, signals: Collection[int]) -> None:
        self._signals = signals
        self._pid, self._pipe = self._begin()

    def _begin(self) -> tuple[int, int]:
        """Return process and pipe; the process 0 where the system has no `cat`: then every signal passes on."""
        source, sink = os.pipe()
        silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        devices = [(os.POSIX_SPAWN_DUP2, source, 0), *silent]
        try:
            return os.posix_spawnp("cat", ["cat"], {}, file_actions=devices, setsigmask=self._signals), sink
        except OSError:
            return 0, sink
        finally:
            os.close(source)

    def has_got(self, number: int) -> bool:
        """Return True if a signal that has just reached us reaches this process as well."""
        until_s = time.monotonic() + _TO_ALL_S
        while self._pid and time.monotonic() < until_s:
            if self._pending() >> (number - 1) & 1:
                before = self._pid, self._pipe
                self._pid, self._pipe = self._begin()  # what is pending there stays pending
                self._stop(*before)
                return True
            time.sleep(0.005)
        return False

    def _pending(self) -> int:
        try:
            with open(f"/proc/{self._pid}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
                return next((int(line.split()[1], 16) for line in file if line.startswith("ShdPnd:")), 0)
        except OSError:
            return 0

    def __enter__(self) -> _Bystander:
        """Return it; it has begun already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._stop(self._pid, self._pipe)

    @staticmethod
    def _stop(pid: int, pipe: int) -> None:
        os.close(pipe)
        if pid:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):  # it was reaped already
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _reap(pid: int) -> int | None:
    """Reap every child that has ended; return the status of `pid`, None = it still runs.

    The others are orphans: they become children of process 1, which this process may be in a container.
    """
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended in (0, pid):
            return status if ended else None


def as_script(argv: Sequence[str]) -> list[str]:
    """Return the command that runs a script without `#!`: the system refuses it (ENOEXEC), shells and `env` do this."""
    return ["/bin/sh", shutil.which(argv[0]) or argv[0], *argv[1:]]


def _start(argv: Sequence[str], environ: Mapping[str, str], mask: set[int | signal.Signals], stdout: int | None) -> int:
    devices = [] if stdout is None else [(os.POSIX_SPAWN_DUP2, stdout, 1)]

    def spawn(words: Sequence[str]) -> int:
        return os.posix_spawnp(
            words[0], list(words), environ, file_actions=devices, setsigmask=mask, setsigdef=_PYTHON_IGNORES
        )

    try:
        try:
            return spawn(argv)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return spawn(as_script(argv))
    except (OSError, ValueError) as error:  # an invalid environment is a ValueError
        raise UsageError(f"cannot start {argv[0]}: {reason(error)}", hint="is it installed, and on PATH?") from error
