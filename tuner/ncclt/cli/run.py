"""`ncclt run`: start a job with what was proven for it. This file decides what becomes of the job where we fail.

Whatever goes wrong while `run_prepare` finds out what the job is given ends in `main`, in one of three ways:

- `SystemExit`: --help, or words that make no sense. That depends on the words alone, never on an environment, a file, a
  server or a clock, so that a command line which started a job once always does.
- `MustNotStart`: other processes of this job have, or may have, something that this one lacks. NCCL does not notice
  that ranks disagree: they hang, or compute wrong sums.
- any other exception, foreseen or not: the job starts as if we were not there, and one line says why. Only with
  `--fallback fail` it does not.

What is imported at the top of this file is all that has to work for that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Sequence

from ncclt.cli.output import report, say
from ncclt.cli.run_start import MustNotStart, Start, all_or_none
from ncclt.errors import UsageError, described

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
"""As a shell gives them."""


def main(argv: Sequence[str]) -> int:
    """Start the command and return its exit code; without --report this process becomes the command."""
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    options, command = words[:cut], words[cut + 1 :]
    unchanged = Start(argv=command, environ=dict(os.environ))
    try:
        with all_or_none() if _is_decided_for_all(options) else contextlib.nullcontext():
            from ncclt.cli.run_options import parsed
            from ncclt.cli.run_prepare import prepared

            arguments = parsed(options, command)
        start = prepared(arguments, command)
    except MustNotStart as refusal:
        _show_traceback(options)
        return report(refusal.reason)
    except Exception as error:  # noqa: BLE001 -- see above
        _show_traceback(options)
        if _must_succeed(options) or not command:
            return report(described(error))
        _say_why(error)
        start = unchanged
    if "--dry-run" in options:
        return 0
    return _started(start, unchanged, may_differ=not (start.is_common or _must_succeed(options)))


def _say_why(error: Exception) -> None:
    with contextlib.suppress(Exception):  # what cannot be said stops no job either
        why = described(error)
        hint = f" ({why.hint})" if why.hint else ""
        say(f"ncclt: {why.message}{hint}; nothing is set: NCCL's own choice stays")
        for note in getattr(error, "__notes__", ()):
            say(f"ncclt: {note}")


def _show_traceback(options: Sequence[str]) -> None:
    if "--debug" in options:
        with contextlib.suppress(Exception):  # as above
            import traceback

            traceback.print_exc()


def _is_decided_for_all(options: Sequence[str]) -> bool:
    """Tell whether other processes may be given something by a file, where this one cannot even find out."""
    named = any(word.partition("=")[0] in ("--shared", "--policy") for word in options)
    return named or bool(os.environ.get("NCCLT_SHARED"))


def _must_succeed(options: Sequence[str]) -> bool:
    """Tell whether --fallback fail was given, by the words themselves: the parser may be what has failed."""
    said = ""
    for word, following in zip(options, [*options[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--fallback":
            said = value if equals else following
    return said == "fail"


def _started(start: Start, unchanged: Start, *, may_differ: bool) -> int:
    """Start the command, and return an exit code where it is over or cannot be started.

    Args:
        start: what was prepared.
        unchanged: the same without us.
        may_differ: the command may start without the changes.
    """
    if start.beside is not None:
        try:
            return start.beside()
        except UsageError as error:
            # Without us beside it the command needs no second process; what it lacks itself is said below.
            if isinstance(error.__cause__, BlockingIOError | MemoryError):
                say(f"ncclt: {error.message}; without a report it is tried once more")
    failure = _become(start)
    if may_differ and start is not unchanged and _is_of_the_environment(failure):
        _say_why(failure)
        failure = _become(unchanged)
    why = failure.strerror if isinstance(failure, OSError) else failure
    say(f"ncclt: cannot start {start.argv[0]}: {why}")
    return _NOT_FOUND if isinstance(failure, FileNotFoundError) else _NOT_EXECUTABLE


def _become(start: Start) -> Exception:
    """Replace this process by the command; return what stands against it."""
    # Python itself ignores these two, and a program that is started inherits that.
    ignored = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execvpe(start.argv[0], list(start.argv), dict(start.environ))  # noqa: S606 -- no shell is wanted
    except Exception as error:  # noqa: BLE001 -- what an environment cannot hold is a ValueError
        for number, handler in ignored.items():
            signal.signal(number, handler)
        return error


def _is_of_the_environment(failure: Exception) -> bool:
    """Tell whether a command was refused for what is in its environment: too much, or what none can hold."""
    return isinstance(failure, ValueError) or (isinstance(failure, OSError) and failure.errno == errno.E2BIG)
