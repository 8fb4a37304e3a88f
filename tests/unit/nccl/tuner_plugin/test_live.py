"""Plans that change at a question: counting, arming, and decisions that come, come late, or never."""

import ctypes
import threading
import time

import pytest

from ncclt.core.nccl_version import NcclVersion
from ncclt.deliver.agree.injected.live import LivePlugin, read_communicators
from ncclt.errors import InputError
from ncclt.nccl.tuner_plugin.compact_table import encode_table
from ncclt.nccl.tuner_table import ALGORITHMS, FUNCTIONS, PROTOCOLS, table_text

ALL_REDUCE = FUNCTIONS.index("allreduce")
LIVE = {"NCCLT_LIVE": "1", "NCCLT_TABLE": None, "NCCLT_POLICY": None, "NCCLT_POLICY_SHM": None}
COSTS = (1.0,) * 21
TREE_LL, RING_LL = 0, ALGORITHMS.index("ring") * len(PROTOCOLS)
IN_DOUBT_S = 0.05
NUMBER = 0x1234
proposals = iter(range(1, 10_000))


def plan(*rows):
    return encode_table(table_text(rows, table_id="r", version=NcclVersion(2, 28, 9), nodes=2, ranks=16))


TREE = plan("allreduce,0,100,tree,ll,2,-1,-1")
RING = plan("allreduce,0,100,ring,ll,4,-1,-1")
SIMPLE = plan("allreduce,0,100,ring,simple,4,-1,-1")
"""Unlike a row of LL, it answers estimates."""


@pytest.fixture(scope="session")
def live(library):
    return LivePlugin(ctypes.CDLL(str(library)))


@pytest.fixture
def open_live(plugin):
    def open_one(number, **options):
        return plugin.communicator(**{"ranks": 16, "nodes": 2, "api": 5, "environ": LIVE, "number": number, **options})

    return open_one


@pytest.fixture
def comm(open_live):
    with open_live(NUMBER) as opened:
        yield opened


def ask(comm, size_bytes=64, **options):
    """Return the choice of the plan: its position in the cost table, None = the NCCL default."""
    costs = comm.ask(ALL_REDUCE, size_bytes, **options).costs
    return next((at for at, cost in enumerate(costs) if 0 <= cost < 1), None)


def facts(live, number=NUMBER):
    return read_communicators(live.describe())[0][f"{number:016x}"]


def arm(live, proposal, text, *, number=NUMBER, connected_only=False, wait_s=IN_DOUBT_S):
    return live.arm(proposal, number, text, connected_only=connected_only, wait_s=wait_s)


def switch(live, text, **options):
    """Arm a plan for the next question and commit it; return the checksum of its rows."""
    proposal = next(proposals)
    armed = arm(live, proposal, text, **options)
    live.decide(proposal, commit=True)
    return armed[-1]


def test_questions_are_counted_and_estimates_are_not(live, comm):
    for _ in range(3):
        ask(comm)
    ask(comm, pipe_ops=0)
    live.estimate(1)
    ask(comm)
    other = threading.Thread(target=ask, args=(comm,))  # whose question is no estimate
    other.start()
    other.join()
    live.estimate(0)
    assert facts(live)["count"] == 4


def test_plan_changes_with_the_next_question(live, comm):
    assert [ask(comm), ask(comm)] == [None, None]
    begins, told, _ = arm(live, proposal := next(proposals), TREE)
    assert (begins, f"{told:016x}") == (2, facts(live)["hash"])
    live.decide(proposal, commit=True)
    assert [ask(comm), ask(comm)] == [TREE_LL, TREE_LL]
    switch(live, RING)
    assert ask(comm) == RING_LL
    switch(live, "")
    assert ask(comm) is None


def test_aborted_plan_leaves_the_one_in_force(live, comm):
    ask(comm)
    switch(live, TREE)
    assert ask(comm) == TREE_LL
    for _ in range(2):  # an aborted one can follow another at once
        arm(live, proposal := next(proposals), RING)
        live.decide(proposal, commit=False)
    assert [ask(comm), ask(comm)] == [TREE_LL, TREE_LL]


def test_question_waits_for_the_decision(live, comm):
    for commit in (True, False):
        ask(comm)
        arm(live, proposal := next(proposals), TREE if commit else RING, wait_s=30.0)
        timer = threading.Timer(0.05, live.decide, (proposal,), {"commit": commit})
        timer.start()
        assert ask(comm) == TREE_LL
        timer.join()


def test_question_fails_without_a_decision_and_so_do_all_later_ones(live, comm):
    ask(comm)
    arm(live, proposal := next(proposals), TREE)
    for _ in range(2):
        with pytest.raises(InputError, match=r"error 5.*did not arrive within 0.05 s. This call fails"):
            ask(comm)
        live.decide(proposal, commit=True)  # too late: a question has failed
    assert facts(live)["state"] == "failed"
    assert len([line for line in comm.log if "This call fails" in line]) == 1
    with pytest.raises(RuntimeError, match="the last switch is failed"):
        arm(live, next(proposals), TREE)


def test_estimates_that_precede_a_call_wait_and_those_of_one_rank_do_not(live, comm):
    """The answer to an estimate decides if NCCL asks the counted question at all."""
    ask(comm)
    arm(live, proposal := next(proposals), SIMPLE, wait_s=60.0)
    live.estimate(1)
    began_s = time.monotonic()
    assert ask(comm) is None
    assert time.monotonic() - began_s < 30
    live.estimate(0)
    timer = threading.Timer(0.05, live.decide, (proposal,), {"commit": True})
    timer.start()
    assert ask(comm, pipe_ops=0) == RING_LL + 2
    timer.join()


def test_second_switch_is_refused_before_the_first_is_reached(live, comm):
    ask(comm)
    arm(live, proposal := next(proposals), TREE)
    with pytest.raises(RuntimeError, match="the last switch is undecided"):
        arm(live, next(proposals), RING)
    live.decide(proposal, commit=True)
    with pytest.raises(RuntimeError, match="no question came since the last switch"):
        arm(live, next(proposals), RING)
    assert ask(comm) == TREE_LL
    switch(live, RING)
    assert ask(comm) == RING_LL


@pytest.mark.parametrize("text", [TREE[:-1], "1:nonsense", "x"])
def test_damaged_plan_is_refused(live, comm, text):
    ask(comm)
    with pytest.raises(RuntimeError, match=r"."):
        arm(live, next(proposals), text)
    assert ask(comm) is None
    with pytest.raises(RuntimeError, match="communicator 0000000000000999 is not open"):
        arm(live, next(proposals), TREE, number=0x999)


def test_rows_count_for_sizes_that_were_asked_before(live, comm):
    ask(comm, 64)
    switch(live, TREE)
    assert ask(comm, 64) == TREE_LL
    assert ask(comm, 65) is None
    switch(live, TREE)
    assert ask(comm, 65) == TREE_LL


def test_rows_count_for_choices_that_were_offered_every_time(live, comm):
    """NCCL's offers depend on the data type and the operation, which a tuner is not told."""
    ask(comm)
    ask(comm, costs=(-1.0, *COSTS[1:]))
    with_all = switch(live, RING)
    assert ask(comm) == RING_LL
    without = switch(live, TREE)
    assert ask(comm) is None
    assert with_all != without == switch(live, "")


def test_only_algorithms_in_use_are_chosen_where_others_would_connect(live, comm):
    default_is_ring = (*(9.0,) * 3, *COSTS[3:])
    ask(comm, costs=default_is_ring)
    switch(live, TREE, connected_only=True)
    assert ask(comm, costs=default_is_ring) is None
    switch(live, TREE)
    assert ask(comm, costs=default_is_ring) == TREE_LL
    switch(live, RING)
    ask(comm, costs=default_is_ring)
    switch(live, TREE, connected_only=True)
    assert ask(comm, costs=default_is_ring) == TREE_LL, "it has been used"


def test_equal_questions_have_equal_hashes_and_others_differ(live, open_live):
    def told(*changes):
        with open_live(0x77) as comm:
            for turn in range(130):
                ask(comm, **(changes[0] if changes and turn == changes[1] else {}))
            found = facts(live, 0x77)
            return found["mark"], found["hash"]

    plain = told()
    assert plain == told()
    for changes in ({"costs": (*COSTS[:20], -1.0)}, {"size_bytes": 65}):
        mark, whole = told(changes, 100)
        assert (mark != plain[0], whole != plain[1]) == (True, True)
        mark, whole = told(changes, 129)
        assert (mark != plain[0], whole != plain[1]) == (False, True), "the mark is at 128"


def test_questions_inside_a_capture_and_with_registered_buffers_are_told(live, comm):
    ask(comm)
    assert (facts(live)["captured"], facts(live)["registered"]) == (0, 0)
    ask(comm, registered=1)
    ask(comm)
    assert facts(live)["registered"] == 1
    live.capture(1)
    live.capture(0)
    assert facts(live)["captured"] == 0, "a graph without collectives"
    live.capture(1)
    ask(comm)
    live.capture(0)
    assert facts(live)["captured"] == 1


def test_communicators_that_cannot_change_say_why(live, open_live, plugin, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("allreduce,0,100,tree,ll,2,-1,-1\n")
    cases = (
        ({"api": 4}, "NCCL speaks tuner API v4, which does not name communicators: 2.28.3 does"),
        ({"environ": {**LIVE, "NCCLT_POLICY": str(table)}}, "NCCLT_POLICY names a table"),
        ({"environ": {**LIVE, "NCCLT_LIVE": None}}, "NCCLT_LIVE is not 1"),
    )
    for options, problem in cases:
        with open_live(NUMBER, **options) as comm:
            # A table counts where live tuning is refused.
            assert ask(comm) == (TREE_LL if problem == "NCCLT_POLICY names a table" else None)
            assert read_communicators(live.describe()) == ({}, [problem])


def test_two_contexts_of_one_communicator_are_left_out(live, open_live):
    with open_live(NUMBER) as first, open_live(NUMBER):
        ask(first)
        assert read_communicators(live.describe()) == ({}, [])
