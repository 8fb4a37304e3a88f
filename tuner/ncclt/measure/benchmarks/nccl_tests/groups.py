"""How nccl-tests is told to divide the ranks of a job into groups, all of which run at the same time.

It runs one communicator per group and prints the rows of the group of rank 0, with the mean time over all groups
(common.cu, Allreduce over MPI_COMM_WORLD). Groups inside a node are neighbours: `DIV`. Groups across nodes take every
n-th rank, so they lie on as many nodes as they can, as the cost model expects it (nccl/cost_model/graph.py): `MOD`.
"""

from __future__ import annotations

from ncclt.core.message import Message
from ncclt.errors import UsageError
from ncclt.measure.benchmarks.nccl_tests.features import NcclTestsFeatures

SPLIT = "NCCL_TESTS_SPLIT"
SPLIT_MASK = "NCCL_TESTS_SPLIT_MASK"

_HINT = "use nccl-tests 2.14 or newer, built with MPI=1, or --benchmark torch_collectives"


def group_variables(message: Message, *, world_size: int, features: NcclTestsFeatures) -> tuple[tuple[str, str], ...]:
    """Return the variables that make groups of the message's size out of a job.

    Args:
        message: with its group size known.
        world_size: ranks of the job.
        features: of the build; where it is not known whether it can, it is asked to, and its result tells.

    Raises:
        UsageError: the job cannot be divided so, or this build of nccl-tests cannot.
    """
    size = message.group_size
    if size == world_size:
        return ()
    if not 0 < size <= world_size or world_size % size:
        raise UsageError(
            f"{message.label} is sent by groups of {size} ranks, into which {world_size} ranks cannot be divided",
            hint="place the workload on the cluster first, or choose nodes and GPUs that its groups divide",
        )
    count = world_size // size
    if features.split is not False:
        return ((SPLIT, f"MOD {count}" if message.spans_nodes else f"DIV {size}"),)
    # The mask picks bits of the rank, so it can only do powers of two.
    if not features.split_mask or count & (count - 1) or size & (size - 1):
        raise UsageError(
            f"{message.label} is sent by groups of {size} of {world_size} ranks, which this nccl-tests cannot form",
            hint=_HINT,
        )
    return ((SPLIT_MASK, hex(count - 1 if message.spans_nodes else world_size - size)),)
