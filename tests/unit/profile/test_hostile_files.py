"""Files that are made to take for ever or to fill the memory: each is refused, or read, in bounded time."""

import gzip
import io
import os
import socket
import tarfile
import time

import pytest

from ncclt.errors import TraceError
from ncclt.profile import READERS, get_reader, read_workload, source

LIMIT_S = 60
"""Seconds of the processor: what is refused here takes a few, and took minutes or all memory before."""
BOMB_BYTES = 12 << 20
ROW = b"collective,size_bytes,calls\nall_reduce,4096,1\n"


def _zeros(size_bytes):
    """Return zeros as members of gzip: one is packed, the others are copies."""
    return gzip.compress(bytes(4 << 20), 6) * (size_bytes // (4 << 20))


def _tar(path, mode, members):
    with tarfile.open(path, mode, compresslevel=6) if "gz" in mode else tarfile.open(path, mode) as archive:
        for name, size, content in members:
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, content)
    return path


def _bomb(path):
    path.write_bytes(_zeros(BOMB_BYTES))
    return path


def _bomb_in_tar(path):
    zeros, row = tarfile.TarInfo("zeros"), tarfile.TarInfo("calls.csv")
    zeros.size, row.size = BOMB_BYTES, len(ROW)
    after = row.tobuf() + ROW.ljust(512, b"\0") + bytes(1024)
    path.write_bytes(gzip.compress(zeros.tobuf()) + _zeros(zeros.size) + gzip.compress(after))
    return path


def _bomb_in_bomb(path):
    inner = _zeros(BOMB_BYTES)
    return _tar(path, "w:gz", [("zeros.gz", len(inner), io.BytesIO(inner))])


def _many_members(path):
    path.write_bytes(tarfile.TarInfo("0.json").tobuf() * 50_001 + bytes(1024))
    return path


def _sparse_member(path):
    """One header (GNU format, `S`) that claims a TiB of holes."""
    info = tarfile.TarInfo("trace.json")
    block = bytearray(info.tobuf(format=tarfile.GNU_FORMAT))
    block[156:157] = b"S"
    block[386:410] = b"%011o\0" % 2**30 + b"%011o\0" % 0  # one piece of data, empty, at the end of the hole
    block[483:495] = bytes([0x80]) + (2**40).to_bytes(11, "big")  # the real size
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    path.write_bytes(bytes(block) + bytes(1024))
    return path


def _long_header(path):
    """A pax header that claims 8 GiB, in a file with holes of that size."""
    info = tarfile.TarInfo("PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 8 * 2**30 - 512
    path.write_bytes(info.tobuf(format=tarfile.USTAR_FORMAT))
    os.truncate(path, 8 * 2**30)
    return path


BOMBS = {
    "gzip": (_bomb, "unpacks to more than"),
    "tar.gz": (_bomb_in_tar, "unpacks to more than"),
    "gzip in tar.gz": (_bomb_in_bomb, "unpacks to more than"),
    "many members": (_many_members, "more than 50000 files"),
    "sparse member": (_sparse_member, "unpacks to more than"),
    "long header": (_long_header, "header of"),
}


def test_bombs_are_refused_in_bounded_time(tmp_path, monkeypatch):
    """With a reader that reads to the end, so that nothing is owed to a kind that is not recognised."""
    monkeypatch.setattr(source, "_FREE_BYTES", 8 << 20)
    for kind in sorted(BOMBS):
        make, said = BOMBS[kind]
        path = make(tmp_path / "bomb")
        begun = time.process_time()
        with pytest.raises(TraceError, match=said) as caught:
            get_reader("nccl_log").read([path], name="x")
        assert caught.value.hint
        with pytest.raises(TraceError):
            read_workload([path], name="x")
        assert time.process_time() - begun < LIMIT_S


def test_a_recording_of_many_equal_lines_is_no_bomb(tmp_path, monkeypatch):
    """A log shrinks to a hundredth at most, and a small file may grow by any factor."""
    monkeypatch.setattr(source, "_FREE_BYTES", 1 << 20)
    call = (
        "n0:1:9 [0] NCCL INFO AllReduce: opCount {:x} sendbuff 0x1 recvbuff 0x2 count 256 datatype 7 op 0 root 0 "
        "comm 0xa [nranks=2] stream 0x3\n"
    )
    path = tmp_path / "nccl.log.gz"
    path.write_bytes(gzip.compress("".join(call.format(n) for n in range(20_000)).encode()))
    assert read_workload([path], name="x").messages[0].calls_per_step == 20_000


def test_the_kind_is_seen_in_one_look(tmp_path, monkeypatch):
    """Fourteen readers are asked; the file is opened once for all of them, and once to be read."""
    opened = []

    open_regular = source.open_regular

    def counting(path, **more):
        opened.append(path)
        return open_regular(path, **more)

    monkeypatch.setattr(source, "open_regular", counting)
    path = _tar(tmp_path / "tables.tar.gz", "w:gz", [("calls.csv", len(ROW), io.BytesIO(ROW))])
    read_workload([path], name="x")
    assert len(opened) == 2
    opened.clear()
    strange = tmp_path / "strange"
    strange.write_text("no trace")
    with pytest.raises(TraceError):
        read_workload([strange], name="x")
    assert len(opened) == 1


def test_what_is_no_file_is_never_opened_by_a_reader(tmp_path, monkeypatch):
    """A third party may call a reader itself: no reader waits for a pipe's writer."""
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most 107 bytes
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for name in READERS:
            for path in (tmp_path / "pipe", tmp_path / "socket"):
                assert not get_reader(name).recognises(path)
                with pytest.raises(TraceError):
                    get_reader(name).read([path], name="x")
        with pytest.raises(TraceError, match="is a socket"):
            read_workload([tmp_path / "socket"], name="x")


def test_a_link_to_itself_is_a_file_that_is_not_there(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(TraceError, match="link does not exist"):
        read_workload([link], name="x")


def test_a_cut_archive_is_never_read_as_a_whole_one(tmp_path):
    """Also where the cut lies behind what is looked at."""
    for share in [0.1, 0.5, 0.9]:
        noise = os.urandom(300_000)
        whole = _tar(
            tmp_path / "whole", "w:gz", [("a.csv", len(ROW), io.BytesIO(ROW)), ("b", len(noise), io.BytesIO(noise))]
        )
        data = whole.read_bytes()
        cut = tmp_path / "cut"
        cut.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(TraceError):
            read_workload([cut], name="x", source="csv")
