"""A command in the foreground: it keeps our terminal, inputs and outputs, and gets the signals that we get."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence

from ncclt.errors import UsageError, reason

_FORWARDED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGXCPU, signal.SIGURG, signal.SIGCONT, signal.SIGWINCH, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)  # fmt: skip
"""What schedulers and people send: Slurm announces the end of its time by the one that `--signal` names, Grid Engine
by SIGXCPU. Stopping is not among them: it is said to the whole group, and a stopped parent would forward nothing."""

_SI_KERNEL = 0x80
"""si_code of a signal by the kernel, as for Ctrl-C (sigaction(2)): the terminal sent it to the command as well."""

_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by Python itself (its own `subprocess` gives them back to a command, too)."""


def run_foreground(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Run a command as a shell would and return its exit code.

    It stays in our process group, so that the terminal treats both as one job. Signals are waited for instead of
    handled: none is lost, none ends us before the command, and its sender is known, so that Ctrl-C is not doubled.

    Returns:
        the exit code; 128 + n where signal n ended it.

    Raises:
        UsageError: the command cannot be started.
    """
    awaited = {*_FORWARDED, signal.SIGCHLD}
    # A parent may have had us ignore the end of children, which would then leave no exit code.
    child_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        pid = _start(argv, environ, mask)
        while True:
            received = signal.sigwaitinfo(awaited)
            if received.si_signo == signal.SIGCHLD:
                status = _reaped(pid)
                if status is not None:
                    break
            elif received.si_code != _SI_KERNEL:
                # Not reaped yet: the number is still its own. What has become another user's cannot be signalled.
                with contextlib.suppress(PermissionError):
                    os.kill(pid, received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, child_handler or signal.SIG_DFL)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _reaped(pid: int) -> int | None:
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


def _start(argv: Sequence[str], environ: Mapping[str, str], mask: set[int | signal.Signals]) -> int:
    def spawn(words: Sequence[str]) -> int:
        return os.posix_spawnp(words[0], list(words), environ, setsigmask=mask, setsigdef=_PYTHON_IGNORES)

    try:
        try:
            return spawn(argv)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return spawn(as_script(argv))
    except (OSError, ValueError) as error:  # an invalid environment is a ValueError
        raise UsageError(f"cannot start {argv[0]}: {reason(error)}", hint="is it installed, and on PATH?") from error
