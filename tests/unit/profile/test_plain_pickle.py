"""Pickles that mean harm: nothing of them runs, and they cost neither the memory nor the time that they ask for."""

import os
import pickle
import struct
import time
import tracemalloc
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.errors import TraceError
from ncclt.profile import plain_pickle, read_workload
from ncclt.profile.plain_pickle import PlainUnpickler, load_pickle
from ncclt.profile.readers import flight_recorder
from ncclt.profile.readers.flight_recorder import FlightRecorderReader

ENTRY = {
    "record_id": 0,
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[5]],
    "input_dtypes": ["Float"],
    "output_sizes": [[5]],
    "output_dtypes": ["Float"],
}
DUMP = {"version": "2.9", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [ENTRY]}


class _Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def _attacks(command):
    return {
        "os.system": _Calls(os.system, command),
        "exec": _Calls(exec, f"import os; os.system({command!r})"),
        "eval": _Calls(eval, f"__import__('os').system({command!r})"),
    }


@pytest.mark.parametrize("kind", ["os.system", "exec", "eval"])
def test_nothing_in_a_pickle_is_run(tmp_path, kind):
    """The very pickle that runs a command when it is loaded carelessly."""
    marker, path = tmp_path / "marker", tmp_path / "nccl_trace_rank_0"
    for protocol in (2, 3, 4, 5):
        evil = pickle.dumps({**DUMP, "more": _attacks(f"touch {marker}")[kind]}, protocol=protocol)
        pickle.loads(evil)
        assert marker.exists(), "the attack works"
        marker.unlink()
        path.write_bytes(evil)
        for read in (FlightRecorderReader().read, read_workload):
            with pytest.raises(TraceError, match="the pickle holds the operation") as caught:
                read([path], name="evil")
            assert "do not load" in caught.value.hint
        assert not marker.exists()


def test_second_guard_holds_alone(tmp_path):
    """The unpickler finds no class even where nobody looked through the opcodes first."""
    marker = tmp_path / "marker"
    evil = pickle.dumps(_attacks(f"touch {marker}")["os.system"])
    with pytest.raises(pickle.UnpicklingError, match="system"):
        PlainUnpickler(BytesIO(evil)).load()
    with pytest.raises(pickle.UnpicklingError, match="outside"):
        PlainUnpickler(BytesIO(b"\x80\x02Pabc\n.")).load()
    assert not marker.exists()


def _nested_key():
    """Write {t: 1} for a tuple t of two tuples of two tuples ..., 80 deep and shared: 2^80 steps to hash."""
    tuples = b"".join(b"h" + bytes([depth]) + b"\x86q" + bytes([depth + 1]) for depth in range(80))
    return b"\x80\x02})q\x00" + tuples + b"K\x01s."


HOSTILE = {
    "global, protocol 0": b"\x80\x02cos\nsystem\n(X\x01\x00\x00\x00xtR.",
    "class instance": b"\x80\x02(X\x01\x00\x00\x00xios\nsystem\n.",
    "persistent id": b"\x80\x02Pabc\n.",
    "extension": b"\x80\x02\x82\x01.",
    "state of an object": b"\x80\x02}}b.",
    "far memo index": b"\x80\x02]r\xff\xff\xff\x7f.",
    "string of 4 EiB": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"abc.",
    "frame of 4 EiB": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"].",
    "number of 2 GiB": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"\x7f.",
    "number of a million digits": b"\x80\x02I" + b"9" * 1_000_000 + b"\n.",
    "key that takes for ever to hash": _nested_key(),
    "marks without end": b"\x80\x02" + b"(" * 200_000 + b".",
    "stored mark": b"\x80\x02(q\x00h\x00.",
    "nothing on the stack": b"\x80\x02.",
    "operands that are not there": b"\x80\x02K\x01\x86.",
    "memo that is not there": b"\x80\x02h\x05.",
    "list that is a number": b"\x80\x02K\x01K\x02a.",
    "no end": b"\x80\x02" + b"]" * 1000,
    "nothing": b"\x80",
}


def test_hostile_opcodes_are_refused_cheaply():
    """Before anything of their size is set aside."""
    for kind in sorted(HOSTILE):
        tracemalloc.start()
        start_s = time.monotonic()
        try:
            with pytest.raises(TraceError) as caught:
                load_pickle(HOSTILE[kind], "hostile")
            _now, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert caught.value.hint
        assert len(caught.value.message) < 300
        assert peak_bytes < 32 * 1024 * 1024
        assert time.monotonic() - start_s < 120


def test_deep_nesting_neither_crashes_nor_counts(tmp_path):
    """A list in a list, 200,000 deep, in the place of the entries."""
    deep = b"]" * 200_000 + b"a" * 199_999
    path = tmp_path / "deep"
    path.write_bytes(b"\x80\x02}(X\x09\x00\x00\x00pg_config}X\x07\x00\x00\x00entries" + deep + b"u.")
    assert FlightRecorderReader().recognises(path)
    with pytest.raises(TraceError, match="no collectives"):
        FlightRecorderReader().read([path], name="deep")


def test_shared_parts_are_never_walked(tmp_path):
    """Ten million million references, a few hundred bytes: a memo bomb costs its own size."""
    bomb = ["x"]
    for _ in range(60):
        bomb = [bomb, bomb]
    odd = {**ENTRY, "input_sizes": bomb, "output_sizes": [bomb], "process_group": bomb, "duration_ms": bomb}
    path = tmp_path / "bomb"
    groups = {"0": {"ranks": bomb, "desc": bomb}, "1": bomb}
    path.write_bytes(pickle.dumps({**DUMP, "version": bomb, "entries": [odd, ENTRY, bomb], "pg_config": groups}))
    workload = FlightRecorderReader().read([path], name="bomb")
    assert [m.message.size_bytes for m in workload.messages] == [20]


def test_too_many_operations_are_refused(monkeypatch):
    """A file of a few MB could become hundreds of times its size in objects."""
    monkeypatch.setattr(plain_pickle, "MAX_OPERATIONS", 100)
    with pytest.raises(TraceError, match="operations"):
        load_pickle(b"\x80\x02](" + b"}" * 100 + b"e.", "many")


def test_too_large_a_file_is_refused(tmp_path, monkeypatch):
    """Unpacked size counts, not that of the compressed file."""
    monkeypatch.setattr(flight_recorder, "MAX_PICKLE_BYTES", 1000)
    path = tmp_path / "large"
    path.write_bytes(pickle.dumps({**DUMP, "more": "x" * 2000}))
    with pytest.raises(TraceError, match="larger than 1,000 bytes"):
        FlightRecorderReader().read([path], name="large")


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
    max_leaves=20,
)


@given(value=_PLAIN, protocol=st.integers(2, 5))
def test_plain_values_come_back_as_they_were(value, protocol):
    """Whatever pickler wrote them."""
    assert load_pickle(pickle.dumps(value, protocol=protocol), "plain") == value
