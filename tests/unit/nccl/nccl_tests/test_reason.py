"""Why nothing was measured."""

from hypothesis import given
from hypothesis import strategies as st

from ncclt.nccl.nccl_tests.reason import failure_reason


def test_the_most_telling_line_is_chosen(subtests):
    """A cause goes before a report of failure, and either before the last line."""
    for text, reason in [
        ("all_reduce_perf: invalid option -- 'J'\nUSAGE: all_reduce_perf \n", "does not know one of the options"),
        (
            " .. h pid 1: Test failure common.cu:8\nh: Test NCCL failure a.cu:9 'no algorithm/protocol available'",
            "a.cu:9",
        ),
        ("h: Test CUDA failure common.cu:1 'out of memory'\nh: Test failure", "out of memory"),
        ("x: error while loading shared libraries: libnccl.so.2", "libnccl.so.2"),
        ("# error: remote process exited", "remote process"),
        ("Invalid number of GPUs: 8 requested but only 4 were found.", "only 4"),
        ("# nThread 1\nsomething odd\n# the end", "last line: something odd"),
        ("cannot start /nowhere/all_reduce_perf: No such file", "cannot start /nowhere/all_reduce_perf"),
        ("# nThread 1\n", "before its first row"),
        ("", "printed nothing"),
    ]:
        with subtests.test(text=text, reason=reason):
            assert reason in failure_reason(text)


@given(st.text())
def test_a_reason_is_always_one_short_printable_line(text):
    """It is shown to people, in a table."""
    reason = failure_reason(text)
    assert 0 < len(reason) <= 300
    assert reason.isprintable()
