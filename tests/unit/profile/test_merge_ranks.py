"""Merging what several ranks show."""

from ncclt.core.message import Collective, Message
from ncclt.core.workload import RankMessages, merge_ranks


def _message(size, collective=Collective.ALL_REDUCE):
    return Message(collective=collective, dtype="float32", size_bytes=size, group_size=4)


def test_uneven_exchanges_are_those_of_the_rank_that_sends_most():
    """Each rank of one all_to_all shows another size; it is still one call."""
    sizes = (100, 300, 200)
    views = [
        RankMessages(rank=rank, calls={("0", _message(size, Collective.ALL_TO_ALL)): 1})
        for rank, size in enumerate(sizes)
    ]
    assert merge_ranks(views) == {_message(300, Collective.ALL_TO_ALL): 1}


def test_stages_of_a_pipeline_are_not_mixed():
    """Each sends one message of its own size."""
    stages = [RankMessages(rank=rank, calls={("dp", _message(size)): 1}) for rank, size in enumerate((4000, 8000))]
    assert merge_ranks(stages) == {_message(8000): 1}


def test_groups_of_one_rank_add_up_and_ranks_do_not():
    """Two groups on rank 0, one on rank 1."""
    views = [
        RankMessages(rank=0, calls={("tp", _message(8)): 2, ("dp", _message(8)): 1}),
        RankMessages(rank=1, calls={("tp", _message(8)): 2}),
    ]
    assert merge_ranks(views) == {_message(8): 3}


def test_counts_are_per_step():
    """Six calls in three steps."""
    assert merge_ranks([RankMessages(rank=0, calls={("", _message(8)): 6}, steps=3)]) == {_message(8): 2}
