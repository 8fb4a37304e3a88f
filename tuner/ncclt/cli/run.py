"""`ncclt run`: start a job with what was proven for it. This file decides what happens to the job if ncclt fails.

Whatever fails in `run_prepare` ends in `main`, in one of three ways:

- `SystemExit`: --help, or invalid options. That depends on the command line alone, never on the environment, a file, a
  server or a clock, so a command line that started a job once always does.
- `StartRefused`: other processes of this job have, or may have, settings that this one lacks. NCCL does not notice
  that ranks disagree: they hang, or compute wrong sums.
- any other exception, expected or not: the job starts unchanged, and one line says why. With `--fallback fail` it
  does not start.

Only the imports at the top of this file have to work for that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Mapping, Sequence

from ncclt.cli.exits import report
from ncclt.cli.render import say
from ncclt.errors import StartRefused, UsageError, all_or_none, as_ncclt_error, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ncclt.deliver.job_plan import JobPlan

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
"""The exit codes of a shell."""

_LOCALE = "LC_CTYPE"


def main(argv: Sequence[str]) -> int:
    """Start the command and return its exit code; without --report this process becomes the command."""
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    options, command = words[:cut], words[cut + 1 :]
    if _is_locale_ours():
        del os.environ[_LOCALE]
    plan = None
    try:
        with all_or_none() if _is_decided_for_all(options) else contextlib.nullcontext():
            from ncclt.cli.run_prepare import parsed, prepared

            arguments = parsed(options, command)
        plan = prepared(arguments, command)
    except StartRefused as refusal:
        _show_traceback(options)
        return report(refusal.why)
    except Exception as error:  # noqa: BLE001 -- see the module's docstring
        _show_traceback(options)
        if _must_succeed(options) or not any(command[:1]):
            return report(as_ncclt_error(error))
        _say_why(error)
    if "--dry-run" in options:
        return 0
    return _start(plan, command, may_differ=not (plan is None or plan.is_common or _must_succeed(options)))


def _is_locale_ours() -> bool:
    """Return True if Python itself added LC_CTYPE at its start, as it does without a locale (PEP 538)."""
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 -- before all imports
            before = b"\0" + file.read()
    except OSError:
        return False
    return os.environ.get(_LOCALE, "").upper().startswith("C.UTF") and f"\0{_LOCALE}=".encode() not in before


def _say_why(error: Exception) -> None:
    with contextlib.suppress(Exception):  # a line that cannot be written stops no job either
        why = as_ncclt_error(error)
        say(f"ncclt: {why.message}; nothing set")
        if why.hint:
            say(f"  hint: {why.hint}")


def _show_traceback(options: Sequence[str]) -> None:
    if "--debug" in options:
        with contextlib.suppress(Exception):  # as above
            import traceback

            traceback.print_exc()


def _is_decided_for_all(options: Sequence[str]) -> bool:
    """Return True if a shared file may give other processes settings that this one failed to read."""
    named = any(word.partition("=")[0] in ("--shared", "--policy") for word in options)
    return named or bool(os.environ.get("NCCLT_SHARED"))


def _must_succeed(options: Sequence[str]) -> bool:
    """Return True for --fallback fail, read without the parser, which may have failed."""
    fallback = ""
    for word, following in zip(options, [*options[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--fallback":
            fallback = value if equals else following
    return fallback == "fail"


def _start(plan: JobPlan | None, command: Sequence[str], *, may_differ: bool) -> int:
    """Start the command; return an exit code if it has ended or cannot be started.

    Args:
        plan: what was prepared; None = the command starts unchanged.
        may_differ: the command may start unchanged if the system refuses its environment.
    """
    argv, environ = (plan.argv, plan.environ) if plan else (command, None)
    if plan is not None and plan.run is not None:
        try:
            return plan.run()
        except UsageError as error:
            # Becoming the command needs no second process; errors of the command itself are reported below.
            if isinstance(error.__cause__, BlockingIOError | MemoryError):
                say(f"ncclt: {error.message}; retrying without reports")
    failure = _become(argv, environ)
    # The environment is too large, or has an impossible value.
    too_large = isinstance(failure, OSError) and failure.errno == errno.E2BIG
    if may_differ and (too_large or isinstance(failure, ValueError)):
        _say_why(UsageError(f"the system refuses the environment: {reason(failure)}"))
        failure = _become(command, None)
    why = failure.strerror if isinstance(failure, OSError) else failure
    say(f"ncclt: cannot start {argv[0]}: {why}")
    return _NOT_FOUND if isinstance(failure, FileNotFoundError) else _NOT_EXECUTABLE


def _become(argv: Sequence[str], environ: Mapping[str, str] | None) -> Exception:
    """Replace this process by the command; return the error if that fails."""
    # Python ignores these two, and the command would inherit that.
    ignored = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        try:
            _execute(argv, environ)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            from ncclt.profile.record.command import as_script

            _execute(as_script(argv), environ)
    except Exception as error:  # noqa: BLE001 -- an invalid environment is a ValueError
        for number, handler in ignored.items():
            signal.signal(number, handler)
        return error
    raise AssertionError("a process that was replaced goes on")


def _execute(argv: Sequence[str], environ: Mapping[str, str] | None) -> None:
    if environ is None:  # as the system has it, with what `os.environ` cannot hold
        os.execvp(argv[0], list(argv))
    else:
        os.execvpe(argv[0], list(argv), dict(environ))
