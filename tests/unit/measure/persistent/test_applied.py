"""A choice that NCCL does not offer must not pass for one that was measured."""

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Rule
from ncclt.errors import BenchmarkError
from ncclt.measure.persistent.attested import Attested
from ncclt.nccl.switching import ForcedState

FORCE = ForcedState(
    rules=tuple(
        Rule(collective=collective, algorithm=Algorithm.RING, protocol=Protocol.LL)
        for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER)
    )
)
HEAD = {"ncclt_plugin_report": 1, "not_in_use": ""}


def message(collective=Collective.ALL_REDUCE, group_size=4):
    return Message(collective=collective, dtype="float32", size_bytes=4096, group_size=group_size)


def line(outcome="applied", collective="all_reduce"):
    pair = {"algorithm": "ring", "protocol": "ll", "channels": 0} if outcome != "unmatched" else {}
    return {"collective": collective, "size_bytes": 4096, "outcome": outcome, "calls": 9, **pair}


def test_what_was_applied_is_remembered_and_nothing_else():
    attested = Attested()
    assert attested.lacks(FORCE, [message()])
    assert attested.check([HEAD, line("unmatched"), line()], FORCE, [message()]) == ""
    assert not attested.lacks(FORCE, [message()])
    assert not attested.lacks(ForcedState(), [message(group_size=2)])
    assert attested.lacks(FORCE, [message(group_size=2)])
    assert attested.lacks(FORCE, [message(), message(Collective.ALL_GATHER)])


def test_what_was_not_applied_is_said(subtests):
    cases = [
        ([], "the tuner plugin took no part: NCCL did not load it"),
        ([{**HEAD, "not_in_use": "it cannot be opened"}], "the tuner plugin took no part: it cannot be opened"),
        ([HEAD, line("unavailable")], "NCCL does not offer ring/ll for all_reduce here"),
        ([HEAD, line("unavailable"), line()], "NCCL does not offer ring/ll for all_reduce here"),
        ([HEAD, line(collective="all_gather")], "NCCL was never asked for ring/ll for all_reduce here"),
    ]
    for lines, reason in cases:
        with subtests.test(lines=lines):
            attested = Attested()
            assert attested.check(lines, FORCE, [message()]) == reason
            assert attested.lacks(FORCE, [message()])


def test_what_is_no_report_is_refused():
    with pytest.raises(BenchmarkError):
        Attested().check(["x"], FORCE, [message()])


def test_a_choice_is_attested_anew_under_other_variables():
    """NVLS needs two channels, so NCCL_MAX_CTAS=1 takes it away: the default would be measured in its place."""
    attested, one = Attested(), ForcedState(rules=FORCE.rules, variables=(("NCCL_MAX_CTAS", "1"),))
    assert attested.check([HEAD, line()], FORCE, [message()]) == ""
    assert attested.lacks(one, [message()])
    assert attested.check([HEAD, line("unavailable")], one, [message()]) != ""
    assert not attested.lacks(FORCE, [message()])
