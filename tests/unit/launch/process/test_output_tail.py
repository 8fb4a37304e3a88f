"""Outputs are read at once and only their ends are kept."""

import os

from hypothesis import given
from hypothesis import strategies as st

from ncclt.launch.process.session import Capture, OutputTail


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=30), st.integers(1, 100))
def test_the_end_is_kept_and_the_rest_counted(chunks, keep_bytes):
    """At least the bytes asked for, less than one chunk more, and none is lost uncounted."""
    tail = OutputTail(keep_bytes=keep_bytes)
    for chunk in chunks:
        tail.add(chunk)
    whole = b"".join(chunks)
    kept = whole[tail.dropped_bytes :]
    assert tail.text() == kept.decode(errors="replace")
    assert len(kept) >= min(keep_bytes, len(whole))
    assert len(kept) < keep_bytes + 50


def test_two_pipes_are_read_without_waiting_for_either():
    """A full pipe that nobody empties would stop the process at the other end."""
    first, second = OutputTail(keep_bytes=100), OutputTail(keep_bytes=100)
    pairs = [os.pipe(), os.pipe()]
    capture = Capture({os.fdopen(pairs[0][0], "rb"): first, os.fdopen(pairs[1][0], "rb"): second})
    os.write(pairs[1][1], b"only the second")
    capture.read_for(1.0)
    assert (first.text(), second.text()) == ("", "only the second")
    for _, writer in pairs:
        os.close(writer)
    while capture.is_open:
        capture.read_for(1.0)
    capture.close()
    assert second.dropped_bytes == 0
