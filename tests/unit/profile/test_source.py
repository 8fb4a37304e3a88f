"""Files of every packing, whole and damaged."""

import bz2
import gzip
import io
import tarfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.errors import TraceError
from ncclt.profile.source import check_readable, documents, load_json

DATA = b'{"traceEvents": [], "filler": "' + bytes(range(97, 123)) * 200 + b'"}'


def _tar(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


MEMBERS = {"run/a.json": DATA, "run/b.json.gz": gzip.compress(DATA)}
PACKED = {
    "plain": (DATA, ["file"]),
    "gzip": (gzip.compress(DATA), ["file"]),
    "tar": (_tar(MEMBERS), ["file:a.json", "file:b.json.gz"]),
    "tar.gz": (gzip.compress(_tar(MEMBERS)), ["file:a.json", "file:b.json.gz"]),
}


def test_packing_is_told_by_content(tmp_path):
    """The name `file` gives nothing away."""
    for packing in sorted(PACKED):
        data, labels = PACKED[packing]
        path = tmp_path / "file"
        path.write_bytes(data)
        check_readable(path)
        assert [(d.label, load_json(d)["traceEvents"]) for d in documents(path)] == [(label, []) for label in labels]


def test_cut_off_file_is_refused(tmp_path):
    """However much of it is there."""
    for packing, share in [
        (packing, share)
        for packing in sorted(PACKED)
        for share in (0.02, 0.5, 0.98)
        if (packing, share) != ("tar", 0.98)
    ]:
        data, _labels = PACKED[packing]
        path = tmp_path / "cut"
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(TraceError) as caught:
            [load_json(document) for document in documents(path)]
        assert caught.value.hint


def test_garbled_gzip_is_refused(tmp_path):
    """A wrong byte in the middle is noticed by the checksum or the decompressor."""
    data = bytearray(gzip.compress(DATA))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "garbled.json.gz"
    path.write_bytes(bytes(data))
    with pytest.raises(TraceError, match="damaged"):
        [load_json(document) for document in documents(path)]


def test_nothing_to_read_is_said_early(tmp_path):
    """Before any reader is asked."""
    for data, reason in [(b"", "is empty"), (gzip.compress(b" \n"), "is empty"), (gzip.compress(DATA)[:12], "cut off")]:
        path = tmp_path / "file.json"
        path.write_bytes(data)
        with pytest.raises(TraceError, match=reason):
            check_readable(path)


def test_missing_file_and_directory_are_told_apart(tmp_path):
    """The two commonest slips have their own sentence."""
    with pytest.raises(TraceError, match="does not exist"):
        check_readable(tmp_path / "gone")
    with pytest.raises(TraceError, match="is a directory"):
        check_readable(tmp_path)


def test_loose_json_is_accepted(tmp_path):
    """Control characters in strings, bytes that are no UTF-8, and a byte order mark all occur."""
    path = tmp_path / "loose.json"
    path.write_bytes(b'\xef\xbb\xbf{"name": "a\x01\tb\xff"}')
    assert [load_json(d) for d in documents(path)] == [{"name": "a\x01\tb\ufffd"}]


def test_deep_nesting_is_refused(tmp_path):
    """Not a recursion error."""
    path = tmp_path / "deep.json"
    path.write_bytes(b'{"traceEvents":' + b"[" * 200_000)
    with pytest.raises(TraceError):
        [load_json(d) for d in documents(path)]


@given(st.binary(max_size=600))
def test_any_bytes_give_json_or_a_trace_error(tmp_path_factory, data):
    """Nothing else ever comes out."""
    path = tmp_path_factory.mktemp("bytes") / "file"
    for content in (data, gzip.compress(data), b"\x1f\x8b" + data, bz2.compress(data)):
        path.write_bytes(content)
        with suppress(TraceError):
            check_readable(path)
            for document in documents(path):
                load_json(document)
