"""Standard streams that are closed, full, cut off by `head`, or in an encoding that lacks characters.

What is printed may come from anybody: names and notes of a store, files, answers of a server. A terminal gets none of
their control characters.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXIT_CUT_OFF = 141
"""Exit code of a program whose reader has exited, as shells expect it: 128 + SIGPIPE."""


_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udc9f]")
"""Control characters but newline and tab, and those that reorder the text around them."""

_SPELLED = str.maketrans(
    {
        "µ": "u",
        "μ": "u",
        "×": "x",
        "·": ".",
        "…": "...",
        "–": "-",
        "—": "-",
        "−": "-",
        "≥": ">=",
        "≤": "<=",
        "±": "+/-",
        "→": "->",
        "─": "-",
        "│": "|",
        "├": "|",
        "└": "|",
        "░": ".",
        **dict(zip("▁▂▃▄▅▆▇█", ".:-=+*##", strict=True)),
        **dict(zip("▏▎▍▌▋▊▉", "...:::#", strict=True)),
    }
)
_HANDLER = "ncclt.spelled"


def visible(text: str) -> str:
    r"""Return a text whose control characters are spelled out: as `\u001b`, which JSON and TOML read back."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace the first character that an encoding lacks; the bytes of undecodable arguments and paths stay."""
    assert isinstance(error, UnicodeEncodeError)
    letter = error.object[error.start]
    if 0xDCA0 <= ord(letter) <= 0xDCFF:
        return bytes([ord(letter) - 0xDC00]), error.start + 1
    spelled = letter.translate(_SPELLED)
    return spelled if spelled.isascii() else f"\\u{ord(letter):04x}", error.start + 1


codecs.register_error(_HANDLER, _spell)


class Output(io.TextIOWrapper):
    """Stdout or stderr without control characters, remembering why it could not be written: no other file's failure.

    Attributes:
        failure: the first error of a write, None while there was none.
        replaced: the stream it replaces; it would close the file if it were garbage-collected.
    """

    failure: OSError | None = None
    replaced: TextIO | None = None

    def write(self, text: str, /) -> int:
        """Write a text without control characters; remember and raise the first error."""
        return self.write_styled(visible(text))

    def write_styled(self, text: str) -> int:
        """Write a text with the control characters that are ours; likewise."""
        try:
            return super().write(text)
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


class Styled:
    """A stream for libraries that write styles: their control characters pass, so texts are made `visible` before."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text as it is."""
        write = getattr(self._stream, "write_styled", self._stream.write)
        count: int = write(text)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Lossy(io.FileIO):
    """A file that drops what cannot be written.

    Attributes:
        replaced: the stream of this file; it would close the file if it were garbage-collected.
    """

    replaced: TextIO

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as much as can be written."""
        unwritten = memoryview(data).cast("B")
        with contextlib.suppress(OSError):
            while unwritten and (count := super().write(unwritten)):
                unwritten = unwritten[count:]
        return memoryview(data).nbytes


def _make_lossy(stream: TextIO) -> TextIO:
    """Return a stderr whose writes cannot fail: full, closed or cut off, it stops no command.

    Nothing is buffered, since Python would write that at exit, and change the exit code if it failed.
    """
    try:
        file = _Lossy(stream.fileno(), "w", closefd=False)
    except (OSError, AttributeError):  # an object of the caller, without a file
        return stream
    file.replaced = stream
    return Output(file, encoding=stream.encoding, errors=_HANDLER, write_through=True)


def prepare() -> Output | None:
    """Let every stream take any text, and stderr drop what cannot be written; return stdout.

    None where a caller in the same process has replaced stdout by an object of its own, which is left alone.
    Lines are written at once, so that a log which takes stdout and stderr has them in order.
    Characters that the encoding lacks are spelled in ASCII. A closed stream is opened on /dev/null: otherwise the next
    file to be opened would get its number, and prints would end up in it.
    """
    # Open until the process ends, like the streams themselves; in the order of their numbers.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    stream = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    sys.stderr = _make_lossy(sys.stderr)
    if not hasattr(stream, "buffer"):
        return None
    output = Output(stream.buffer, encoding=stream.encoding, errors=_HANDLER, line_buffering=True)
    output.replaced = stream
    sys.stdout = output
    return output
