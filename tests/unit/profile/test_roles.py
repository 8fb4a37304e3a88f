"""Ranks that send different messages: one table per role, and the slowest role stands for the job."""

from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import Collective, Message
from ncclt.profile.roles import count_per_step, find_roles


def _message(size, collective=Collective.ALL_REDUCE, group_size=4):
    return Message(collective=collective, dtype="float32", size_bytes=size, group_size=group_size)


def _sent(rank, *messages):
    return rank, dict.fromkeys(messages, 1)


def _slowest(*views):
    found = find_roles(views).slowest.calls_per_step
    assert found == find_roles(views[::-1]).slowest.calls_per_step, "it depends on the order of the ranks"
    return found


def test_the_rank_that_sends_most_bytes_stands_for_all_without_times():
    """The largest count of each message is of no rank of the job."""
    small = _sent(0, _message(8), _message(8, Collective.ALL_TO_ALL))
    large = _sent(1, _message(16), _message(12))
    assert _slowest(small, large) == {_message(16): 1, _message(12): 1}


def test_the_role_whose_communication_takes_longest_stands_for_all():
    """The other sends more bytes in less time."""
    exchange, reduction = _message(4000, Collective.ALL_TO_ALL), _message(8000)
    views = [_sent(0, exchange), _sent(1, reduction)]
    roles = find_roles(views, {exchange: 50.0, reduction: 30.0})
    assert roles.slowest.calls_per_step == {exchange: 1}
    assert "rank 0 (longest communication)" in roles.notes()[0]
    same = find_roles(views, {exchange: 30.0, reduction: 30.0})
    assert "rank 1 (most bytes)" in same.notes()[0]


def test_groups_of_a_rank_add_up_and_ranks_do_not():
    views = [
        (0, count_per_step({("tp", _message(8)): 4, ("dp", _message(8)): 2}, 2)),
        (1, count_per_step({("tp", _message(8)): 4}, 2)),
    ]
    assert _slowest(*views) == {_message(8): 3}


def test_groups_of_one_do_not_make_a_rank_busy():
    """They send nothing, however large their buffers are."""
    assert _slowest(_sent(0, _message(999, group_size=1)), _sent(1, _message(8))) == {_message(8): 1}


def test_ranks_that_send_the_same_have_one_role():
    """Whatever groups the calls are made in, and whatever a rank calls in groups of its own."""
    message, alone = _message(8), _message(4, group_size=1)
    split = (0, count_per_step({("a", message): 1, ("b", message): 2, ("c", alone): 1}, 10))
    whole = (1, count_per_step({("d", message): 3}, 10))
    idle = (2, count_per_step({("e", alone): 9}, 10))
    for views in ([split, whole, idle], [idle, whole, split]):
        found = find_roles(views)
        assert [role.ranks for role in found.roles] == [(0, 1)]
        assert [found.slowest.has(table) for _, table in (split, whole, idle)] == [True, True, False]


def test_a_tie_is_not_said_to_send_most():
    roles = find_roles([_sent(0, _message(8)), _sent(1, _message(8, Collective.REDUCE))])
    assert roles.notes()[0].endswith("using those of rank 1 (as many bytes as others)")


def test_notes_name_every_other_role_and_few_of_many():
    stages = [_sent(rank, _message(8 if rank % 2 else 16)) for rank in range(10)]
    assert find_roles(stages).notes() == [
        "ranks send different messages: using those of ranks 0, 2, 4, 2 more (most bytes)",
        "left out: ranks 1, 3, 5, 2 more, 1 x all_reduce 8 B float32",
    ]
    assert find_roles(stages[::2]).notes() == []
    uneven = [_sent(None, _message(4 * size)) for size in range(1, 8)]
    assert find_roles(uneven).notes()[-1] == "left out: 3 more roles"


@given(
    st.lists(st.dictionaries(st.sampled_from([8, 64, 4096]), st.integers(1, 9), min_size=1), min_size=2, max_size=5),
    st.lists(st.integers(1, 100), min_size=3, max_size=3),
    st.integers(1, 1000),
    st.booleans(),
)
def test_more_calls_per_step_never_make_a_role_less_slow(calls_of_ranks, times_us, added, timed):
    """And enough of them make it the slowest, by time where it is known and else by bytes."""
    tables = [{_message(size): calls for size, calls in sent.items()} for sent in calls_of_ranks]
    times = {_message(size): float(us) for size, us in zip([8, 64, 4096], times_us, strict=True)} if timed else {}

    def place_of_first_rank(more):
        size = next(iter(calls_of_ranks[0]))
        table = {message: calls + more * (message.size_bytes == size) for message, calls in tables[0].items()}
        roles = find_roles(enumerate([table, *tables[1:]]), times).roles
        return next(place for place, role in enumerate(roles) if 0 in role.ranks)

    assert place_of_first_rank(added) <= place_of_first_rank(0)
    assert place_of_first_rank(10**6) == 0
