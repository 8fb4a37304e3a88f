"""Nsight Systems exports, built here as nsys builds them: both payload layouts of NCCL."""

import sqlite3
import struct
from contextlib import closing

import pytest

from ncclt.errors import TraceError
from ncclt.profile.readers.nsys import NsysReader, open_export
from ncclt.testing.reader_contract import message_table

AR, AG, BC, RS, SEND, RECV, INIT = (16777216 + n for n in (5, 4, 6, 7, 9, 10, 0))
COMM = "NCCL communicator ID"
SIZE = "Message size [bytes]"
# schema -> (name, type, offset): NVIDIA/nccl src/collectives.cc 2.16 and src/include/nvtx_payload_schemas.h 2.25.
OLD = {
    AR: [(SIZE, 22, None), ("Reduction operation", 16777227, 8)],
    AG: [(SIZE, 22, None)],
    RS: [(SIZE, 22, None), ("Reduction operation", 16777227, 8)],
    BC: [("Bytes", 22, None), ("Root", 5, 8)],
    INIT: [("Rank", 5, None), ("No. of ranks", 5, 4), ("CUDA device", 5, 8)],
}
NEW = {
    AR: [(COMM, 18, None), (SIZE, 22, 8), ("Reduction operation", 16777232, 16)],
    AG: [(COMM, 18, None), (SIZE, 22, 8)],
    RS: [(COMM, 18, None), (SIZE, 22, 8), ("Reduction operation", 16777232, 16)],
    SEND: [(COMM, 18, None), (SIZE, 22, 8), ("Peer rank", 5, 16)],
    RECV: [(COMM, 18, None), (SIZE, 22, 8), ("Peer rank", 5, 16)],
    INIT: [(COMM, 18, None), ("No. of ranks", 5, 8), ("Rank", 5, 12), ("CUDA device", 5, 16)],
}
NAMES = {AR: "ncclAllReduce", AG: "ncclAllGather", RS: "ncclReduceScatter", BC: "ncclBroadcast"}
NAMES |= {SEND: "ncclSend", RECV: "ncclRecv", INIT: "ncclCommInitRank"}
F32 = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"


class Export:
    """Writes an export of a few tables, with the columns that matter."""

    def __init__(self, path, schemas, *, blobs="true"):
        self.path = path
        self.db = sqlite3.connect(path)
        self.strings = {}
        self.db.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,
                textId INTEGER, domainId INTEGER, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
            CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, type INTEGER,
                name TEXT, offset INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER,
                shortName INTEGER, graphNodeId INTEGER);
            CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcTime TEXT);
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ('2026-05-31T09:18:46');
            INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PARAM_INPUT_FILE', 'my run.nsys-rep');
        """)
        if blobs is not None:
            self.db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PARAM_INCLUDE_BLOBS', ?)", (blobs,))
        # nsys repeats the schemas for each process.
        for schema, fields in [*schemas.items(), *schemas.items()]:
            for index, (name, kind, offset) in enumerate(fields):
                row = (1, schema, index, kind, name, offset)
                self.db.execute("INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (?,?,?,?,?,?)", row)

    def string(self, text):
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.db.execute("INSERT INTO StringIds VALUES (?,?)", (self.strings[text], text))
        return self.strings[text]

    def call(self, schema, *, pid=1, body=None, json=None, blob=None, times=1, name=None):
        if body is not None:
            blob = struct.pack("<IIIIQQ", 1, 0, schema, 0, len(body), 32 + len(body)) + body
        row = (0, 5, 59, None, pid << 24 | 7, self.string(name or NAMES[schema]), 1, None, json, blob)
        for _ in range(times):
            self.db.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?,?,?,?,?)", row)

    def kernel(self, name, times=1, graph=None):
        for _ in range(times):
            row = (0, 9, self.string(name), self.string(name.split("(")[0]), graph)
            self.db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?)", row)

    def write(self):
        with closing(self.db):
            self.db.commit()
        return self.path


@pytest.fixture
def export(tmp_path):
    return lambda schemas, name="run.sqlite", **more: Export(tmp_path / name, schemas, **more)


found = message_table


def init_new(e, pid, rank, ranks, comm=0xFEED):
    e.call(INIT, pid=pid, body=struct.pack("<Qiiixxxx", comm, ranks, rank, rank))


def test_layout_since_2_25_joins_sizes_with_their_communicator(export):
    """Per-rank bytes become the full buffer; ranks of one file are not added up."""
    e = export(NEW)
    for rank in range(2):
        pid = 100 + rank
        init_new(e, pid, rank, 2)
        init_new(e, pid, 0, 8, comm=0xBEEF + rank)
        e.call(AR, pid=pid, body=struct.pack("<QQixxxx", 0xFEED, 4096, 0), times=3)
        e.call(AG, pid=pid, body=struct.pack("<QQ", 0xFEED, 1000))
        e.call(RS, pid=pid, body=struct.pack("<QQixxxx", 0xBEEF + rank, 1000, 0))
        e.call(SEND, pid=pid, body=struct.pack("<QQixxxx", 0xFEED, 512, 1 - rank), times=2)
        e.call(RECV, pid=pid, body=struct.pack("<QQixxxx", 0xFEED, 512, 1 - rank), times=2)
        e.kernel(F32, 3)
    workload = NsysReader().read([e.write()], name="run")
    assert found(workload) == {
        ("all_reduce", "float32", 4096, 2): 3,
        ("all_gather", "uint8", 2000, 2): 1,
        ("reduce_scatter", "uint8", 8000, 8): 1,
        ("send_recv", "uint8", 512, 2): 2,
    }
    assert workload.provenance.created == "2026-05-31"
    assert workload.provenance.detail["kernels"] == "AllReduce float32 x6"
    assert any(
        "all_reduce is float32 according to the names of its kernels" in note for note in workload.provenance.notes
    )
    assert any("all_gather is counted in bytes" in note for note in workload.provenance.notes)


def test_layout_of_2_16_to_2_24_takes_the_one_size_of_group(export):
    """No communicator in the payload; `Bytes` is what broadcasts call their size."""
    e = export(OLD)
    e.call(INIT, body=struct.pack("<iii", 0, 4, 0))
    e.call(AR, body=struct.pack("<Qixxxx", 4096, 0))
    e.call(AG, body=struct.pack("<Q", 1000), times=2)
    e.call(BC, body=struct.pack("<Qixxxx", 64, 0))
    workload = NsysReader().read([e.write()], name="run")
    assert found(workload) == {
        ("all_reduce", "uint8", 4096, 4): 1,
        ("all_gather", "uint8", 4000, 4): 2,
        ("broadcast", "uint8", 64, 4): 1,
    }
    assert any("before 2.25" in note and "4 ranks" in note for note in workload.provenance.notes)


def test_old_layout_with_groups_of_two_sizes_leaves_gathers_out(export):
    """Which of the two a call went over is not known, so its full size is not either."""
    e = export(OLD)
    e.call(INIT, body=struct.pack("<iii", 0, 4, 0))
    e.call(INIT, body=struct.pack("<iii", 0, 2, 0))
    e.call(AR, body=struct.pack("<Qixxxx", 4096, 0))
    e.call(AG, body=struct.pack("<Q", 1000), times=2)
    workload = NsysReader().read([e.write()], name="run")
    assert found(workload) == {("all_reduce", "uint8", 4096, 0): 1}
    assert any(note.startswith("left out: 2 x ncclAllGather") for note in workload.provenance.notes)


def test_json_payloads_are_read_too(export):
    """--include-json=true instead of blobs, numbers also as Nsight shows them."""
    for number, text in enumerate(
        [
            '{"NCCL communicator ID": 65261, "Message size [bytes]": 4096}',
            '{"NCCL communicator ID": "65,261", "Message size [bytes]": "4,096"}',
            '{"payload": {"NCCL communicator ID": 65261, "Message size [bytes]": 4096}}',
        ]
    ):
        e = export(NEW, f"{number}.sqlite", blobs="false")
        e.call(INIT, json='{"NCCL communicator ID": 65261, "No. of ranks": 8, "Rank": 3, "CUDA device": 3}')
        e.call(AG, json=text)
        workload = NsysReader().read([e.write()], name="run")
        assert found(workload) == {("all_gather", "uint8", 32768, 8): 1}
        assert workload.provenance.ranks_read == (3,)
        assert "read 1 of 8 ranks; using the busiest rank's counts" in workload.provenance.notes


def test_blob_as_hexadecimal_text_is_read(export):
    """The column is declared as text, and some tools store it so."""
    e = export(NEW)
    body = struct.pack("<QQixxxx", 1, 4096, 0)
    e.call(AR, blob=(struct.pack("<QQQQ", 1, AR, len(body), 32) + body).hex())
    assert found(NsysReader().read([e.write()], name="run")) == {("all_reduce", "uint8", 4096, 0): 1}


def test_one_process_with_several_gpus_counts_a_call_once(export):
    """Its calls come once for each of its GPUs."""
    e = export(NEW)
    for rank in range(4):
        init_new(e, 1, rank, 4)
        e.call(AR, body=struct.pack("<QQixxxx", 0xFEED, 4096, 0), times=3)
    workload = NsysReader().read([e.write()], name="run")
    assert found(workload) == {("all_reduce", "uint8", 4096, 4): 3}
    assert any("drives 4 GPUs" in note for note in workload.provenance.notes)


def test_partial_payloads_and_graphs_are_said(export):
    """What could not be read is counted, and graphs replay without calls."""
    e = export(NEW)
    e.call(AR, body=struct.pack("<QQixxxx", 1, 4096, 0))
    e.call(AR, blob=b"\x01\x02")
    e.call(AR)
    e.kernel(F32, 5, graph=77)
    notes = NsysReader().read([e.write()], name="run").provenance.notes
    assert "2 calls have no readable payload: the profile is partial" in notes
    assert any(note.startswith("5 NCCL kernels were launched by CUDA graphs") for note in notes)


def test_disputed_schema_is_not_used(export):
    """Two processes that mean different things by one number: neither is believed."""
    e = export({AR: [(SIZE, 22, None)]})
    e.db.execute("INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, ?, 0, 22, ?, 8)", (AR, SIZE))
    e.call(AR, body=struct.pack("<QQ", 5, 4096))
    with pytest.raises(TraceError, match="not the schemas"):
        NsysReader().read([e.write()], name="run")


def test_export_without_payloads_prints_the_command(export):
    """What was seen is named, and the command is exact, also for a name with a blank."""
    e = export(NEW, blobs="false")
    e.call(AR, times=7)
    e.kernel(F32, 7)
    with pytest.raises(TraceError, match=r"AllReduce float32 x7.*ncclAllReduce x7") as caught:
        NsysReader().read([e.write()], name="run")
    assert caught.value.hint.endswith(
        "nsys export --type sqlite --include-blobs=true --force-overwrite=true "
        "--output run-payloads.sqlite 'my run.nsys-rep'"
    )


def test_reasons_of_refusal_differ(export):
    """No NVTX, no NCCL, an NCCL without payloads, a full size that cannot be known."""
    kernels_only = export(NEW, "kernels.sqlite")
    kernels_only.kernel(F32)
    no_nccl = export(NEW, "none.sqlite")
    no_nccl.kernel("void gemm<float>(int)")
    other_library = export(NEW, "other.sqlite")
    other_library.kernel("void deep_ep::internode::dispatch<false, 8>(int4*)", 3)
    old_nccl = export({}, "old.sqlite")
    old_nccl.call(AR)
    late = export(NEW, "late.sqlite")
    late.call(AG, body=struct.pack("<QQ", 1, 4096))
    for e, reason in (
        (kernels_only, "recorded without NVTX"),
        (no_nccl, "not one NCCL kernel or call among 1 kernel"),
        (other_library, r"other libraries did the work \(3 x DeepEP\)"),
        (old_nccl, "since 2.16"),
        (late, "full size needs the ranks"),
    ):
        with pytest.raises(TraceError, match=reason) as caught:
            NsysReader().read([e.write()], name="run")
        assert caught.value.hint


def test_ranks_in_files_of_their_own_are_merged_once(export):
    """And a rank that two files claim is refused."""
    paths = []
    for rank in (0, 1):
        e = export(NEW, f"rank{rank}.sqlite")
        init_new(e, 5, rank, 2)
        e.call(AR, pid=5, body=struct.pack("<QQixxxx", 0xFEED, 4096, 0), times=3)
        paths.append(e.write())
    workload = NsysReader().read(paths, name="run")
    assert found(workload) == {("all_reduce", "uint8", 4096, 2): 3}
    assert workload.provenance.ranks_read == (0, 1)
    copy = paths[0].with_name("copy.sqlite")
    copy.write_bytes(paths[0].read_bytes())
    with pytest.raises(TraceError, match="rank 0 of communicator 0xfeed"):
        NsysReader().read([*paths, copy], name="run")


def test_view_that_recurses_for_ever_is_not_run(tmp_path):
    """Only real tables are read, so a hostile view is no export at all."""
    path = tmp_path / "hostile.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript("""
            CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
                SELECT 'ncclAllReduce' AS text, x AS textId FROM n;
            CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        """)
    with pytest.raises(TraceError, match="no NCCL"):
        NsysReader().read([path], name="hostile")


def test_schema_of_no_utf8_is_damage(export):
    """SQLite quotes it in its own message, which Python cannot decode."""
    path = export(NEW).write()
    whole = path.read_bytes()
    assert b"CREATE TABLE NVTX_EVENTS" in whole
    path.write_bytes(whole.replace(b"CREATE TABLE NVTX_EVENTS", b"CREATE \xc1\xc1\xc1\xc1\xc1 NVTX_EVENTS"))
    assert not NsysReader().recognises(path)
    with pytest.raises(TraceError, match="damaged"):
        NsysReader().read([path], name="run")


def test_statement_without_end_is_stopped(export):
    """The bound on work holds for whatever a file makes SQLite do."""
    path = export(NEW).write()
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(TraceError, match="interrupted"), open_export(path) as opened_export:
        opened_export.connection.execute(endless).fetchall()


def test_reading_leaves_nothing_behind(export, tmp_path):
    """No journal, no lock, no change."""
    e = export(NEW)
    e.call(AR, body=struct.pack("<QQixxxx", 1, 4096, 0))
    path = e.write()
    before = path.read_bytes()
    NsysReader().read([path], name="run")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
