"""What a record is as JSON, and what is said of JSON that is not one."""

import json
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple

import pytest
from full_records import fill_record
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.documents import Documented, Shape
from ncclt.core.recheck import Recheck
from ncclt.core.workload import Workload
from ncclt.errors import InputError, NccltError


class Word(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Pair(NamedTuple):
    word: Word
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Documented):
    SHAPE: ClassVar = Shape(complete=True)

    size: int
    wanted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Documented):
    SHAPE: ClassVar = Shape(
        name="a whole",
        hint="write it again",
        schema=3,
        omitted=("note",),
        hidden=("secret",),
        inlined=("part",),
        pairs=("variables",),
        unbounded=("interval",),
        computed=(("twice", "doubled", "words"), ("last", "doubled", "")),
    )

    part: Part
    words: frozenset[Word] = frozenset()
    pairs: tuple[Pair, ...] = ()
    variables: tuple[tuple[str, int], ...] = ()
    interval: tuple[float, float] = (0.0, math.inf)
    detail: Mapping[str, str] = field(default_factory=dict)
    time_us: float | None = None
    note: str = ""
    secret: str = ""

    @property
    def doubled(self) -> int:
        return 2 * self.part.size


WHOLE = Whole(
    part=Part(size=8),
    words=frozenset(Word),
    pairs=(Pair(Word.BAD, 1.5),),
    variables=(("A", 1), ("B", 2)),
    detail={"gpu": "A100"},
    secret="not for others",
)
DOCUMENT = {
    "schema": 3,
    "size": 8,
    "wanted": False,
    "twice": 16,
    "words": ["bad", "good"],
    "pairs": [["bad", 1.5]],
    "variables": {"A": 1, "B": 2},
    "interval": [0.0, None],
    "detail": {"gpu": "A100"},
    "time_us": None,
    "last": 16,
}


def test_fields_are_entries_in_their_order_but_for_what_the_shape_says():
    document = WHOLE.to_document()
    assert document == DOCUMENT
    assert list(document) == list(DOCUMENT)
    json.dumps(document, allow_nan=False)


def test_a_document_comes_back_as_it_was_without_what_is_never_written():
    found = Whole.from_document(json.loads(json.dumps(DOCUMENT)))
    assert found.secret == ""
    assert found.to_document() == DOCUMENT
    assert (found.words, found.pairs, found.interval) == (WHOLE.words, WHOLE.pairs, (0.0, math.inf))


def test_earlier_documents_lack_entries_and_later_ones_have_more():
    found = Whole.from_document({"schema": 3, "size": 1, "wanted": True, "new": [1]})
    assert found == Whole(part=Part(size=1, wanted=True))


def test_a_document_that_does_not_fit_is_refused_with_the_place(subtests):
    for change, said in [
        ({"schema": 4}, "whole schema 4 is not supported"),
        ({"schema": None}, "$.schema is missing"),
        ({"size": "8"}, "$.size is '8' and not an integer"),
        ({"size": True}, "$.size is True and not an integer"),
        ({"size": 8.5}, "$.size is 8.5 and not an integer"),
        ({"wanted": 1}, "$.wanted is 1 and not true or false"),
        ({"words": 1}, "$.words is 1 and not a list"),
        ({"words": ["good", "worse"]}, "$.words[1] is 'worse' and not one of good, bad"),
        ({"pairs": [["bad", 1.5], ["bad"]]}, "$.pairs[1] has 1 items and not 2"),
        ({"pairs": [["bad", 10**400]]}, "$.pairs[0][1] is too large"),
        ({"pairs": [["bad", "1"]]}, "$.pairs[0][1] is '1' and not a number"),
        ({"variables": []}, "$.variables is a list and not an object"),
        ({"variables": {"\udc80": {}}}, r"$.variables['\udc80'] is an object and not an integer"),
        ({"interval": [None, 1.0]}, "$.interval[0] is None and not a number"),
        ({"detail": {"gpu": 1}}, "$.detail['gpu'] is 1 and not a string"),
        ({"note": ["x"]}, "$.note is a list and not a string"),
    ]:
        with subtests.test(change=change, said=said):
            with pytest.raises(InputError) as caught:
                Whole.from_document(DOCUMENT | change)
            assert said in caught.value.message
            assert caught.value.hint
            caught.value.message.encode()


def test_what_must_be_complete_may_not_lack_what_has_a_default():
    with pytest.raises(InputError, match=r"not a whole: \$\.wanted is missing"):
        Whole.from_document({"schema": 3, "size": 1})


def test_a_whole_number_may_have_a_point():
    found = Whole.from_document(DOCUMENT | {"size": 8.0, "time_us": 3})
    assert (found.part.size, found.time_us, type(found.time_us)) == (8, 3.0, float)


def test_what_is_no_object_is_refused(subtests):
    for document in [None, [], "x", 3]:
        with subtests.test(document=document), pytest.raises(InputError, match=r"not a whole: \$ is"):
            Whole.from_document(document)


CALLS = {"collective": "all_reduce", "dtype": "int8", "size_bytes": 8, "calls_per_step": 1.0}
SAMPLES = [
    (Whole, DOCUMENT),
    (Recheck, fill_record(Recheck).to_document()),
    (Workload, {"schema": 1, "name": "w", "provenance": {"source": "model"}, "messages": [CALLS]}),
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(),
    st.just("\ud800"),
    st.just("good"),
)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def spots(value):
    """Every holder and key of a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from spots(value[key])


@given(st.data(), st.sampled_from(SAMPLES))
def test_whatever_stands_in_a_document_only_our_own_errors_come_of_it(data, sample):
    kind, document = sample
    document = deepcopy(document)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(list(spots(document))))
        holder[key] = data.draw(ANYTHING)
        if not list(spots(document)):
            break
    try:
        found = kind.from_document(document)
    except NccltError:
        return
    assert isinstance(found, kind)
    json.dumps(found.to_document())


def test_nesting_without_end_is_not_followed():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InputError, match="is a list and not a string"):
        Whole.from_document(DOCUMENT | {"note": deep})
