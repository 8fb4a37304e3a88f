"""Files of several ranks that belong together, or do not."""

import gzip
import io
import json
import tarfile

import pytest

from ncclt.errors import TraceError
from ncclt.profile.readers.param_comms import ParamCommsReader


def _rows(size=10, world_size=2, **more):
    row = {"comms": "all_reduce", "in_msg_size": size, "out_msg_size": size, "dtype": "float", "world_size": world_size}
    return json.dumps([{**row, **more}]).encode()


def _sent_by(rank):
    return json.dumps(
        [{"comms": "send", "in_msg_size": 4, "out_msg_size": 4, "dtype": "int", "world_size": 3, "src_rank": rank}]
    ).encode()


@pytest.fixture
def read(tmp_path):
    def _read(*contents):
        paths = [tmp_path / f"{place}.json" for place in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        return ParamCommsReader().read(paths, name="t")

    return _read


def _archive(**members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for label, content in members.items():
            header = tarfile.TarInfo(label)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return packed.getvalue()


def test_ranks_show_one_call_and_differ_in_others(read):
    """The busiest rank stands for all."""
    workload = read(_rows(10), _rows(10), _rows(20))
    assert {m.message.size_bytes: m.calls_per_step for m in workload.messages} == {80: 1.0}


def test_missing_ranks_are_said(read):
    """Two of three files."""
    workload = read(_sent_by(2), _sent_by(0))
    assert workload.provenance.ranks_read == (0, 2)
    assert "read 2 of 3 ranks; using the busiest rank's counts" in workload.provenance.notes


def test_one_rank_twice_is_refused(read):
    """Two recordings of it would be mixed up."""
    with pytest.raises(TraceError, match="rank 1 appears twice"):
        read(_sent_by(1), _sent_by(1))


def test_debris_in_an_archive_is_passed_over(read):
    """File systems and people leave other files beside the traces."""
    workload = read(_archive(notes=b"take the second run", rank0=_rows(10), rank1=gzip.compress(_rows(20))))
    assert {m.message.size_bytes for m in workload.messages} == {80}
    assert workload.provenance.detail["files"] == "0.json:rank0, 0.json:rank1"


def test_archive_without_a_whole_trace_is_refused(read):
    """No member of the kind, or one whose packing is broken."""
    for members in ({"notes": b"nothing else"}, {}, {"rank0": b"\x1f\x8b"}, {"rank0": b"\x1f\x8babc"}):
        with pytest.raises(TraceError) as caught:
            read(_archive(**members))
        assert caught.value.hint
