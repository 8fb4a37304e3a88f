"""Reads the outputs of a process as they come, and keeps only their ends."""

from __future__ import annotations

import os
import selectors
import time
from typing import IO

_CHUNK_BYTES = 65536
"""The size of a pipe on Linux (pipe(7)): one read empties it."""


class OutputTail:
    """Keeps the last bytes of a stream."""

    def __init__(self, *, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._kept = bytearray()
        self.dropped_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Append a chunk and drop the oldest bytes beyond the limit."""
        self._kept += chunk
        excess = max(0, len(self._kept) - self._keep_bytes)
        del self._kept[:excess]  # moves the beginning of a bytearray, not its content
        self.dropped_bytes += excess

    def text(self) -> str:
        """Decode what is kept; invalid bytes are replaced."""
        return self._kept.decode("utf-8", errors="replace")


class Capture:
    """Reads several pipes at once, so that a process never waits for one of them to be emptied."""

    def __init__(self, pipes: dict[IO[bytes], OutputTail]) -> None:
        self._selector = selectors.DefaultSelector()
        self._pipes = pipes
        for pipe, tail in pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, tail)

    @property
    def is_open(self) -> bool:
        """Return whether any pipe is still open for reading."""
        return bool(self._selector.get_map())

    def read_for(self, seconds: float) -> None:
        """Wait up to `seconds` for output and store it."""
        if not self.is_open:
            time.sleep(seconds)
            return
        for key, _events in self._selector.select(seconds):
            chunk = os.read(key.fd, _CHUNK_BYTES)
            if chunk:
                key.data.add(chunk)
            else:
                self._selector.unregister(key.fileobj)

    def close(self) -> None:
        """Close the pipes."""
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()
