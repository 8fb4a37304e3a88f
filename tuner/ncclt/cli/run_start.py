"""What `ncclt run` starts, and the exception that prevents it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ncclt.errors import NccltError, described


class MustNotStart(Exception):  # noqa: N818 -- named for its consequence, like KeyboardInterrupt
    """The ranks of the job would disagree if this process started.

    Args:
        reason: what is wrong, and what to do; its exit code becomes ours.
    """

    def __init__(self, reason: NccltError) -> None:
        super().__init__(reason.message)
        self.reason = reason


@contextlib.contextmanager
def all_or_none() -> Iterator[None]:
    """Turn every failure inside into `MustNotStart`: what is prepared there applies to all processes of the job."""
    try:
        yield
    except MustNotStart:
        raise
    except Exception as error:
        raise MustNotStart(described(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A command that is ready to start.

    Attributes:
        argv: the command.
        environ: its whole environment; None = that of this process, untouched.
        is_common: the other processes of the job have the same environment, so this one starts with it or not at all.
        beside: starts the command as a child and returns its exit code; None = replace this process.
    """

    argv: Sequence[str]
    environ: Mapping[str, str] | None = None
    is_common: bool = False
    beside: Callable[[], int] | None = None
