"""Standard streams that are closed, full, cut off by `head`, or in an encoding that lacks characters."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from ncclt.cli.output import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXIT_CUT_OFF = 141
"""What a shell expects of a program whose reader has exited: 128 + SIGPIPE."""


class Output(io.TextIOWrapper):
    """Stdout that remembers why it could not be written, to distinguish that from any other broken file.

    Attributes:
        failure: the first error of a write, None while there was none.
        given: the stream it replaces; it would close the file if it were garbage-collected.
    """

    failure: OSError | None = None
    given: TextIO | None = None

    def write(self, text: str, /) -> int:
        """Write a text, without what would control a terminal; remember and raise the first error."""
        try:
            super().write(printable(text, colours=self.isatty()))
            return len(text)
        except OSError as error:
            self.failure = self.failure or error
            raise

    def flush(self) -> None:
        """Write what is buffered; likewise."""
        try:
            super().flush()
        except OSError as error:
            self.failure = self.failure or error
            raise

    def settle(self, code: int) -> int:
        """Write what is left and return the exit code; an error goes to stderr.

        A reader that has seen enough (`| head -1`) is not an error.
        """
        try:
            self.flush()
        except OSError:
            # Otherwise Python would try again at exit, and print a traceback.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
        if self.failure is None:
            return code
        if self.failure.errno == errno.EPIPE:
            return EXIT_CUT_OFF
        sys.stderr.write(f"ncclt: stdout cannot be written: {self.failure.strerror}\n")
        return code or 1


class _Lossy(io.FileIO):
    """A file that drops what cannot be written.

    Attributes:
        given: the stream of this file; it would close the file if it were garbage-collected.
    """

    given: TextIO

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as much as can be written."""
        left = memoryview(data).cast("B")
        with contextlib.suppress(OSError):
            while left and (count := super().write(left)):
                left = left[count:]
        return memoryview(data).nbytes


class _Terminal(io.TextIOWrapper):
    """Stderr without what would control a terminal.

    Attributes:
        unfiltered: the same for a bar of progress, which moves the cursor and shows no names.
    """

    unfiltered: TextIO

    def write(self, text: str, /) -> int:
        """Write a text."""
        super().write(printable(text, colours=self.isatty()))
        return len(text)


def _lossy(given: TextIO) -> TextIO:
    """Return a stderr whose writes cannot fail: full, closed or cut off, it stops no command.

    Nothing is buffered, since Python would write that at exit, and change the exit code if it failed.
    """
    try:
        file = _Lossy(given.fileno(), "w", closefd=False)
    except (OSError, AttributeError):  # an object of the caller, without a file
        return given
    file.given = given
    options: dict[str, Any] = {"encoding": given.encoding, "errors": "backslashreplace", "write_through": True}
    terminal = _Terminal(file, **options)
    terminal.unfiltered = io.TextIOWrapper(file, **options)
    return terminal


def prepare() -> Output | None:
    """Let every stream take any text, and stderr drop what cannot be written; return stdout.

    None where a caller in the same process has replaced stdout by an object of its own, which is left alone.
    Characters that the encoding lacks become question marks. A closed stream is opened on /dev/null: otherwise the next
    file to be opened would get its number, and prints would end up in it.
    """
    # Open until the process ends, like the streams themselves; in the order of their numbers.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    given = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    sys.stderr = _lossy(sys.stderr)
    if not hasattr(given, "buffer"):
        return None
    errors = given.errors if given.errors and given.errors != "strict" else "replace"
    output = Output(given.buffer, encoding=given.encoding, errors=errors, line_buffering=given.isatty())
    output.given = given
    sys.stdout = output
    return output
