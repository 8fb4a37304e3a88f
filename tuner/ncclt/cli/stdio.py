"""Standard streams as shells hand them over: closed, full, cut off by `head`, or in an encoding that lacks letters."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXIT_CUT_OFF = 141
"""What a shell expects of a program whose reader is gone: 128 + SIGPIPE."""


class Output(io.TextIOWrapper):
    """Stdout that remembers why it could not be written, so that this is told from any other broken file.

    Attributes:
        failure: the first error of a write, None so far as all went well.
        given: the stream that it stands for; it would close the file if it were forgotten.
    """

    failure: OSError | None = None
    given: TextIO | None = None

    def write(self, text: str, /) -> int:
        """Write a text; remember and pass on what stands against it."""
        try:
            return super().write(text)
        except OSError as error:
            self.failure = self.failure or error
            raise

    def flush(self) -> None:
        """Write what is waiting; likewise."""
        try:
            super().flush()
        except OSError as error:
            self.failure = self.failure or error
            raise

    def settle(self, code: int) -> int:
        """Return the exit code once all is written, or could not be; the reason goes to stderr.

        A reader that has seen enough (`| head -1`) is nothing to complain about.
        """
        try:
            self.flush()
        except OSError:
            # Else Python would try again at its end, and complain in its own words.
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
    """A file that drops what it cannot take.

    Attributes:
        given: the stream whose file it is; it would close the file if it were forgotten.
    """

    given: TextIO

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as much as can be written."""
        left = memoryview(data).cast("B")
        with contextlib.suppress(OSError):
            while left and (count := super().write(left)):
                left = left[count:]
        return memoryview(data).nbytes


def _lossy(given: TextIO) -> TextIO:
    """Return stderr so that no line for people can fail: full, closed or cut off, it stops no command.

    Nothing waits in a buffer, as Python would try that once more at its end, and change the exit code.
    """
    try:
        file = _Lossy(given.fileno(), "w", closefd=False)
    except (OSError, AttributeError):  # an object of a caller, without a file behind it
        return given
    file.given = given
    return io.TextIOWrapper(file, encoding=given.encoding, errors="backslashreplace", write_through=True)


def prepare() -> Output | None:
    """Let every stream take every text, and stderr drop what cannot be written; return stdout.

    None where a caller in the same process has put an object of his own in its place: that is left alone. What its
    encoding lacks becomes a question mark. A closed stream becomes one that forgets: the next file to be opened would
    else get its number, and be written to by whoever prints.
    """
    # Open until the process ends, as the streams themselves; in the order of their numbers.
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
