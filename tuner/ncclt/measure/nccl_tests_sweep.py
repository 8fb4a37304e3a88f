"""How several sizes become few runs of nccl-tests: `-b first -e last` with `-i` (bytes added) or `-f` (factor)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ncclt.core.message import Collective

# nccl-tests gives each rank a whole number of 16 bytes for these (all_gather.cu, reduce_scatter.cu, alltoall.cu).
_ALIGNED = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Sizes that one run measures: `first`, then each the last one x `factor` or + `step_bytes`, up to `last`.

    Attributes:
        first, last: bytes, both measured.
        step_bytes: bytes added; 0 where a factor is used.
        factor: multiplier; 0 where a step is used. Both 0 = a single size.
    """

    first: int
    last: int
    step_bytes: int = 0
    factor: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return every size that is measured, ascending, bytes."""
        found = [self.first]
        while found[-1] < self.last:
            found.append(found[-1] * self.factor if self.factor else found[-1] + self.step_bytes)
        return tuple(found)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the options that say this to nccl-tests."""
        ends = ("-b", str(self.first), "-e", str(self.last))
        if self.factor:
            return (*ends, "-f", str(self.factor))
        return (*ends, "-i", str(self.step_bytes)) if self.step_bytes else ends


def alignment_bytes(collective: Collective, group_size: int, dtype_size: int) -> int:
    """Return what nccl-tests rounds sizes down to: 16 bytes x ranks, or one element."""
    return 16 * group_size if collective in _ALIGNED else dtype_size


def requested_size(size_bytes: int, alignment: int) -> int:
    """Return the size to ask for: the nearest that nccl-tests measures without rounding it, never 0."""
    return max(1, (size_bytes + alignment // 2) // alignment) * alignment


def plan_sweeps(sizes: Iterable[int]) -> tuple[Sweep, ...]:
    """Cover distinct sizes, and no others, with runs: greedily the longest sequence from the smallest size on.

    Any two sizes are a sequence, so at most half as many runs as sizes are needed (rounded up).
    """
    left = sorted(set(sizes))
    sweeps = []
    while left:
        best = max(_candidates(left), key=lambda sweep: len(sweep.sizes))
        covered = set(best.sizes)
        left = [size for size in left if size not in covered]
        sweeps.append(best)
    return tuple(sweeps)


def _candidates(left: list[int]) -> Iterable[Sweep]:
    first, present = left[0], set(left)
    yield Sweep(first=first, last=first)
    for second in left[1:]:
        last = second
        while last + second - first in present:
            last += second - first
        yield Sweep(first=first, last=last, step_bytes=second - first)
        if second % first == 0:
            factor, last = second // first, second
            while last * factor in present:
                last *= factor
            yield Sweep(first=first, last=last, factor=factor)
