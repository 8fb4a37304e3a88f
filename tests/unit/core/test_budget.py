"""Limits of a budget, and the spelling of its names."""

import pytest

from ncclt.core.budget import Budget
from ncclt.errors import UsageError


def test_an_effort_of_nothing_or_without_end_is_refused(subtests):
    for values in [
        {"trials": 0},
        {"trials": -3},
        {"seconds": 0.0},
        {"gpu_hours": 0.0},
        {"patience": -1},
        {"steps": 0},
        {"blocks": 0},
        {"min_effect": -0.1},
        {"min_effect": 1.0},
        {"study": " "},
        {"study": "a\udcff"},
        {"more": -1},
        {"seed": -1},
        {"seed": 2**31},
        *({name: 10**6 + 1} for name in ("trials", "patience", "more", "blocks")),
        {"steps": 10**12 + 1},
        *({"seconds": seconds} for seconds in (366 * 86400 + 1, float("inf"), float("nan"))),
        *({"gpu_hours": hours} for hours in (10**9 + 1, float("inf"))),
    ]:
        with subtests.test(values=values), pytest.raises(UsageError):
            Budget(**values)


def test_a_refusal_names_the_option_and_its_range():
    with pytest.raises(UsageError, match=r"^--trials must be 1 to 1,000,000, not 1000001$"):
        Budget(trials=1_000_001)
    with pytest.raises(UsageError, match=r"^--time must be above 0 and at most 31,622,400 seconds, not inf$"):
        Budget(seconds=float("inf"))


def test_the_smallest_and_the_largest_numbers_are_taken(subtests):
    for values in [
        {"trials": 1, "seconds": 0.001, "gpu_hours": 0.001, "patience": 0, "steps": 1, "more": 0, "blocks": 1},
        {"trials": 10**6, "patience": 10**6, "more": 10**6, "blocks": 10**6, "steps": 10**12},
        {"seconds": 366 * 86400, "gpu_hours": 10**9},
        {"seed": 0, "min_effect": 0.0},
        {"seed": 2**31 - 1, "min_effect": 0.99},
    ]:
        with subtests.test(values=values):
            kept = Budget(**values)
            assert {name: getattr(kept, name) for name in values} == values


def test_names_of_parameters_are_kept_in_one_form(subtests):
    for given, kept in [
        (("nccl_nthreads", "BUFFSIZE", "NTHREADS"), ("BUFFSIZE", "NTHREADS")),
        (("none",), ()),
        ((), ()),
        (None, None),
        (("none", "buffsize"), ("BUFFSIZE", "NONE")),
    ]:
        with subtests.test(given=given, kept=kept):
            assert Budget(process_wide=given).process_wide == kept
