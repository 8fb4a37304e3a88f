"""Numbers as recorders write them, and all that only looks like one."""

import math

from hypothesis import given
from hypothesis import strategies as st

from ncclt.profile.numbers import parse_float, parse_int

NO_NUMBERS = (None, True, "", "x", "nan", "inf", "1_000", "0x10", "1,000", "٣", [], {}, math.nan, math.inf)


def test_other_values_are_no_numbers():
    assert [value for value in NO_NUMBERS if parse_int(value) is not None or parse_float(value) is not None] == []


def test_whole_numbers_are_read_in_every_spelling():
    assert [parse_int(value) for value in (8, 8.0, "8", " 8 ", "8.0", 8.5, "8.5", -1, 2**63)] == [8] * 5 + [None] * 4


def test_range_is_kept():
    assert (parse_int(-1, least=-1), parse_int(9, most=8), parse_float("-0.5", least=0), parse_float(10**400)) == (
        -1,
        None,
        None,
        None,
    )


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15))
def test_decimals_survive_their_spelling(number):
    assert parse_float(str(number)) == number
