"""Groups smaller than the job, in the words of nccl-tests; what its own arithmetic makes of them is what was meant."""

import re

import made_workloads
import pytest

from ncclt.errors import UsageError
from ncclt.measure.benchmarks.nccl_tests.benchmark import group_variables
from ncclt.measure.benchmarks.nccl_tests.features import LEAST, NcclTestsFeatures

OLD = NcclTestsFeatures(split=False, split_mask=True)


def message(group_size, spans_nodes=False):
    return made_workloads.message(1024, dtype="float32", group=group_size, spans=spans_nodes)


def colours(variables, world_size):
    """What common.cu computes: ranks of one colour are a group."""
    ((name, value),) = variables
    if name == "NCCL_TESTS_SPLIT_MASK":
        return [rank & int(value, 16) for rank in range(world_size)]
    operation, number = re.fullmatch(r"(MOD|DIV) (\d+)", value).groups()
    return [rank % int(number) if operation == "MOD" else rank // int(number) for rank in range(world_size)]


@pytest.mark.parametrize("features", [LEAST, OLD], ids=["split", "mask"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_groups_of_a_node_are_neighbours(features, size):
    """16 ranks on 2 nodes: no group reaches over both."""
    found = colours(group_variables(message(size), world_size=16, features=features), 16)
    for colour in set(found):
        ranks = [rank for rank in range(16) if found[rank] == colour]
        assert ranks == list(range(ranks[0], ranks[0] + size))


@pytest.mark.parametrize("features", [LEAST, OLD], ids=["split", "mask"])
@pytest.mark.parametrize(("size", "ranks"), [(2, [0, 8]), (4, [0, 4, 8, 12]), (8, [0, 2, 4, 6, 8, 10, 12, 14])])
def test_groups_across_nodes_take_equal_places(features, size, ranks):
    """As data parallelism beside tensor parallelism does."""
    found = colours(group_variables(message(size, spans_nodes=True), world_size=16, features=features), 16)
    assert [rank for rank in range(16) if found[rank] == found[0]] == ranks


def test_the_whole_job_needs_no_variable():
    """And must not depend on what a release knows."""
    assert group_variables(message(16), world_size=16, features=NcclTestsFeatures(split=False)) == ()


def test_what_cannot_be_divided_is_refused(subtests):
    """Before anything is launched."""
    cases = [
        (3, 16, LEAST),
        (32, 16, LEAST),
        (8, 16, NcclTestsFeatures(split=False, split_mask=False)),
        (3, 12, OLD),
    ]
    for size, world_size, features in cases:
        with subtests.test(size=size):
            with pytest.raises(UsageError) as caught:
                group_variables(message(size), world_size=world_size, features=features)
            assert caught.value.hint
