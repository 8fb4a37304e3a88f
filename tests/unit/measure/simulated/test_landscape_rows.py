"""Which words of `other_env` make a condition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.measure.simulated.landscape_rows import condition_of, is_wrong


@pytest.mark.parametrize(
    "text",
    [
        "", "spread 0.4%", "spread 12%", "repeat iteration_3", "iteration_1", "run 2", "mean of 3",
        "default, mean of 3", "default chose TREE/LL128; spread 1.9%", "GPU compute contention ", "p50",
        "median", "avg of oop/ip busbw", "mean of 20 iters", "r2 avg", "automatic", "WRONG=0", "  ",
    ],
)  # fmt: skip
def test_annotations_are_no_condition(text):
    assert condition_of(text) == ""


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("GPU compute contention low", "GPU compute contention low"),
        ("sequential | metric=iteration time", "sequential; metric=iteration time"),
        ("T1aM4 + NCCL_CHECKS_DISABLE; p50", "T1aM4 + NCCL_CHECKS_DISABLE"),
        ("CUDA graph, 127 calls/graph, median; automatic", "CUDA graph, 127 calls/graph"),
        ("QPS=4 SPLIT=1 avg of oop/ip busbw", "QPS=4 SPLIT=1 avg of oop/ip busbw"),
        ("NCCL_CROSS_NIC=1; spread 3%", "NCCL_CROSS_NIC=1"),
    ],
)
def test_anything_else_is_one_without_its_annotations(text, condition):
    assert condition_of(text) == condition


@given(st.text(max_size=60))
def test_a_condition_is_its_own_condition(text):
    once = condition_of(text)
    assert condition_of(once) == once


@pytest.mark.parametrize(("text", "wrong"), [("WRONG=3", True), ("x; WRONG=12", True), ("WRONG=0", False), ("", False)])
def test_failed_validation_is_seen(text, wrong):
    assert is_wrong(text) is wrong
