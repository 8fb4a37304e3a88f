"""Where JSON values end, against Python's own parser."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from ncclt.profile.readers.kineto.stream import skipper, value_end

# Pieces of JSON inside strings, and keys that look like the beginning of an event.
NASTY = st.lists(
    st.sampled_from(
        ["{", "}", '"', "\\", ",", ":", "[", "]", "},\n  {", '"ph"', "x", "é", ": {", '{"a', "\n", " ", "/"]
    ),
    max_size=6,
).map("".join)
KEYS = st.sampled_from(["ph", "name", "args", "x y", "", "}", '{"ph', "é"]) | NASTY
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | NASTY
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
EVENTS = st.fixed_dictionaries(
    {"ph": st.just("X")}, optional={"name": NASTY, "args": st.dictionaries(KEYS, VALUES, max_size=2), "ts": SCALARS}
)
LAYOUTS = [
    {"separators": (",", ":")},
    {},
    {"indent": 0},
    {"indent": 4},
    {"indent": "\t"},
    {"separators": (" ,\r\n ", "\t: ")},
    {"ensure_ascii": False},
]


@given(value=VALUES, layout=st.sampled_from(LAYOUTS), behind=st.sampled_from([",", "]", "}", " ,1", "\n]"]))
def test_value_ends_where_the_parser_says(value, layout, behind):
    """Whatever the nesting, and with brackets and quotes in strings."""
    text = json.dumps(value, **layout).encode()
    assert value_end(b"[ " + text + behind.encode(), 2) == 2 + len(text)


def _elements(rows, layout):
    """Return an array's bytes, and where each element begins and ends."""
    text = json.dumps(rows, **layout)
    spans, at = [], 1
    while True:
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        if text[at] == "]":
            return text.encode(), [tuple(len(text[:n].encode()) for n in span) for span in spans]
        _, end = json.JSONDecoder().raw_decode(text, at)
        spans.append((at, end))
        at = end


@given(rows=st.lists(EVENTS | VALUES, min_size=1, max_size=6), layout=st.sampled_from(LAYOUTS), data=st.data())
def test_skipping_stops_at_the_beginning_of_an_element(rows, layout, data):
    """The first that it must not or cannot skip, wherever the limit lies, also where events hold lists of events."""
    text, spans = _elements(rows, layout)
    number = data.draw(st.integers(0, len(spans) - 1))
    skip = skipper(text, 1)
    stopped = skip(text, spans[0][0], data.draw(st.integers(*spans[number])))
    assert stopped in [begin for begin, _ in spans[: number + 1]]


EVENTS_OF_REAL_SHAPES = (
    {"ph": "X", "name": "f<{lambda(int)#1}>", "args": {"a": 1}},
    {"ph": "X", "name": "g() const::{lambda()#1}::operator()", "args": {"a": "}"}},
    {"ph": "f", "id": 1},
    {"ph": "X", "args": {}},
    {"ph": "X", "args": {"list": [{"ph": "X", "args": {"b": 1}}, {"ph": "X"}, {"c": {"d": 2}}]}},
    {"ph": "X", "name": '"}},\n  {"ph', "args": {"stack": 'a\\"},{"ph'}},
)


def test_events_of_real_shapes_are_skipped_to_the_last():
    """The last one stays: behind it stands no comma."""
    early = []
    for event, layout in itertools.product(EVENTS_OF_REAL_SHAPES, LAYOUTS):
        text, spans = _elements([event] * 5, layout)
        if skipper(text, 1)(text, spans[0][0], len(text)) != spans[-1][0]:
            early.append((event, layout))
    assert early == []
