"""Traces read as a stream: the same as parsing them, at every size of the blocks, and never a part for the whole."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclt.errors import TraceError
from ncclt.profile.readers.kineto import stream as kineto_stream
from ncclt.profile.readers.kineto.stream import stream_trace
from ncclt.profile.source import documents

NAMES = st.sampled_from(["pick", "skip", 'a "pick"', "{lambda()#1}", "},\n  {", "é", "\\", "\x01", '"', "{", "}"])
ARGS = st.dictionaries(
    NAMES, NAMES | st.integers() | st.lists(st.fixed_dictionaries({"ph": NAMES}), max_size=2), max_size=2
)
EVENTS = st.fixed_dictionaries({"ph": st.just("X"), "name": NAMES}, optional={"args": ARGS, "ts": st.floats(0, 9)})
ROWS = st.lists(EVENTS | st.integers() | st.none() | NAMES | st.just([{"ph": "pick"}]) | st.just({}), max_size=6)
LAYOUTS = [{"separators": (",", ":")}, {}, {"indent": 2}, {"indent": 4, "ensure_ascii": False}]


@pytest.fixture
def blocks_of(monkeypatch):
    """Make the blocks that are read at once as small as wanted."""
    return lambda size: monkeypatch.setattr(kineto_stream, "BLOCK_BYTES", size)


def _find(data, start):
    while (start := data.find(b'"pick"', start)) >= 0:
        yield start
        start += 1


def _stream(folder, data):
    path = folder / "trace.json"
    path.write_bytes(data)
    taken = []
    for document in documents(path):
        head = stream_trace(document, _find, taken.append)
    return head, taken


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, layout=st.sampled_from(LAYOUTS), block=st.integers(1, 60), place=st.integers(0, 2))
def test_stream_takes_what_a_full_parse_finds(tmp_path, blocks_of, rows, layout, block, place):
    """Events over the borders of blocks, with braces and quotes in strings, at the head's beginning, middle or end."""
    blocks_of(block)
    members = [("a", {"x": [1, {}]}), ("b", "}")]
    members.insert(place, ("traceEvents", rows))
    data = json.dumps(dict(members), **layout).encode()
    head, taken = _stream(tmp_path, data)
    assert head == {"a": {"x": [1, {}]}, "b": "}"}
    assert taken == [row for row in rows if '"pick"' in json.dumps(row)]


SMALL = b'{"a": 1, "traceEvents": [{"ph": "X", "name": "pick"},\n {"ph": "X", "args": {"b": "c"}}, 7], "z": [2]}'


def test_every_cut_is_noticed(tmp_path, blocks_of):
    """Never the beginning for the whole."""
    for block in [1, 7, 1000]:
        blocks_of(block)
        assert [cut for cut in range(1, len(SMALL)) if not _cut_off(tmp_path, SMALL[:cut])] == []


def _cut_off(folder, data):
    try:
        _stream(folder, data)
    except TraceError as error:
        return "cut off" in error.message and bool(error.hint)
    return False


def test_broken_structure_is_refused_with_the_reason(tmp_path):
    """Around the events everything is checked, and so are the events that matter."""
    for old, new, reason in [
        (b'"z": [2]}', b'"z": [2]} x', "follows its end"),
        (b'"z": [2]}', b'"z": [2]}{}', "follows its end"),
        (b'"z": [2]}', b'"z": [2', "ends in the middle"),
        (b'"z"', b"7", "without a name"),
        (b'"z":', b'"z"', "without a name"),
        (b', "z"', b' "z"', "comma is missing"),
        (b", 7", b" 7", "comma is missing between events"),
        (b", 7]", b", 7,]", "no value begins with b']'"),
        (b'"name": "pick"', b'"name" "pick"', "Expecting ':'"),
        (b"[2]", b"[2}", "Expecting ','"),
        (b'"a": 1', b'"traceEvents": []', "more than one"),
        (b"traceEvents", b"traceevents", "no list `traceEvents`"),
        (b'{"a"', b'["a"', "no list `traceEvents`"),
        (b'{"a"', b'"a"', "does not begin"),
    ]:
        assert SMALL.count(old) == 1
        with pytest.raises(TraceError) as caught:
            _stream(tmp_path, SMALL.replace(old, new))
        assert reason in caught.value.message
        assert caught.value.hint


def test_loose_json_is_accepted(tmp_path):
    """A byte order mark, control characters in strings, bytes that are no UTF-8, and numbers that are none."""
    data = b'\xef\xbb\xbf {"traceEvents": [{"name": "pick", "x": "a\x01\t\xff", "y": NaN, "z": -Infinity}, {"n": NaN}]}'
    _, taken = _stream(tmp_path, data)
    assert taken[0]["x"] == "a\x01\t\ufffd"
    assert taken[0]["z"] == -float("inf")


def test_overlong_event_is_refused(tmp_path, blocks_of, monkeypatch):
    """A string without an end must not fill the memory."""
    blocks_of(100)
    monkeypatch.setattr(kineto_stream, "LONGEST_BYTES", 1000)
    with pytest.raises(TraceError, match="longer than"):
        _stream(tmp_path, b'{"traceEvents": [{"name": "' + b"x" * 5000 + b'"}]}')


def test_deep_nesting_is_refused_or_skipped(tmp_path):
    """Not a recursion error: an event of interest cannot be parsed, the others are of no matter."""
    deep = b"[" * 100_000 + b"]" * 100_000
    assert _stream(tmp_path, b'{"traceEvents": [' + deep + b", 1]}")[1] == []
    with pytest.raises(TraceError, match="recursion"):
        _stream(tmp_path, b'{"traceEvents": [{"name": "pick", "x":' + deep + b"}]}")
