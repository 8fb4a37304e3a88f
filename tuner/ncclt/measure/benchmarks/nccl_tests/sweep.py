"""Covers several sizes by few runs of nccl-tests: `-b first -e last` with `-i` (bytes added) or `-f` (factor).

Starting a run costs seconds on one node and a minute on many, a row of its table far less. So a run may also measure
sizes that are not needed, as long as they cost less than another start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ncclt.core.message import VECTOR_BYTES, Collective

# The cost of a start and of a row, in seconds, to compare them; only the order of magnitude matters. A start loads CUDA
# and connects the ranks; a row makes some 64 calls in both halves with their checks, here at 10e9 bytes/s.
_START_S = 10.0
_ROW_S = 0.02
_ROW_S_PER_BYTE = 64 / 10e9

_FINEST_STEP = 16
"""A step is at least this part of the distance of two wanted sizes; finer ones rarely save a run."""

_FACTORS = (2, 3, 4, 8)


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
        sizes = [self.first]
        while sizes[-1] < self.last:
            sizes.append(sizes[-1] * self.factor if self.factor else sizes[-1] + self.step_bytes)
        return tuple(sizes)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the options of nccl-tests for this sweep."""
        ends = ("-b", str(self.first), "-e", str(self.last))
        if self.factor:
            return (*ends, "-f", str(self.factor))
        return (*ends, "-i", str(self.step_bytes)) if self.step_bytes else ends


def sweep_of(arguments: Sequence[str]) -> Sweep:
    """Return the sweep of a command's options, the inverse of `Sweep.arguments`."""
    options = dict(pairwise(arguments))
    return Sweep(
        first=int(options["-b"]),
        last=int(options["-e"]),
        step_bytes=int(options.get("-i", 0)),
        factor=int(options.get("-f", 0)),
    )


def alignment_bytes(collective: Collective, group_size: int, dtype_size: int) -> int:
    """Return the unit to which nccl-tests rounds sizes down: 16 bytes x ranks, or one element.

    No dtype avoids it: the count of each rank is cut to a multiple of 16 / element size (GetCollByteCount in
    all_gather.cu, reduce_scatter.cu and alltoall.cu; since 2.13.12, before that of 4 elements). `-u` shifts the buffers
    of all ranks by the same elements: that is unaligned too, but not as the parts of an odd size are.
    """
    return VECTOR_BYTES * group_size if collective.has_rank_parts else dtype_size


def requested_size(size_bytes: int, alignment: int) -> int:
    """Return the size to request: the nearest one that nccl-tests does not round, never 0."""
    return max(1, (size_bytes + alignment // 2) // alignment) * alignment


def plan_sweeps(sizes: Iterable[int], *, alignment: int) -> tuple[Sweep, ...]:
    """Cover distinct sizes with runs, greedily at the least cost per size, from the smallest size up.

    Any two sizes are a sequence, so at most half as many runs as sizes are needed (rounded up).

    Args:
        sizes: bytes, each a multiple of the alignment.
        alignment: what nccl-tests rounds sizes to, bytes.
    """
    return _planned(tuple(sorted(set(sizes))), alignment)


@lru_cache(maxsize=256)  # every trial of a study asks for the same sizes
def _planned(sizes: tuple[int, ...], alignment: int) -> tuple[Sweep, ...]:
    uncovered = list(sizes)
    sweeps = []
    while uncovered:
        _cost, best = min(_candidates(uncovered, alignment), key=lambda candidate: candidate[0])
        covered = set(best.sizes)
        uncovered = [size for size in uncovered if size not in covered]
        sweeps.append(best)
    return tuple(sweeps)


def bracket(sizes: Iterable[int], *, alignment: int) -> Sweep:
    """Return one run by factors of 2 that encloses all sizes, so that none needs to be extrapolated."""
    wanted = sorted(set(sizes))
    smallest, largest = wanted[0], wanted[-1]
    if smallest == largest:
        return Sweep(first=smallest, last=smallest)
    doublings, first = 0, largest
    while first > smallest:
        doublings += 1
        first = -(-largest // (alignment << doublings)) * alignment
    return Sweep(first=first, last=first << doublings, factor=2)


def _candidates(uncovered: list[int], alignment: int) -> Iterator[tuple[float, Sweep]]:
    """Yield (cost per wanted size, sweep) from the smallest size up to each wanted size that a sweep hits."""
    first = uncovered[0]
    yield _START_S, Sweep(first=first, last=first)
    steps = {
        (other - first) // part
        for other in uncovered[1:]
        for part in range(1, _FINEST_STEP + 1)
        if (other - first) % (part * alignment) == 0
    }
    for step in sorted(steps):
        met = [size for size in uncovered if (size - first) % step == 0]
        for count, last in enumerate(met[1:], start=2):
            rows = (last - first) // step + 1
            cost_s = _cost_s(met[:count], rows=rows, total_bytes=rows * (first + last) // 2)
            yield cost_s, Sweep(first=first, last=last, step_bytes=step)
    for factor in sorted({other // first for other in uncovered[1:] if other % first == 0} | set(_FACTORS)):
        reached = [first]
        while reached[-1] < uncovered[-1]:
            reached.append(reached[-1] * factor)
        met = sorted(set(uncovered).intersection(reached))
        for count, last in enumerate(met[1:], start=2):
            rows = reached.index(last) + 1
            cost_s = _cost_s(met[:count], rows=rows, total_bytes=sum(reached[:rows]))
            yield cost_s, Sweep(first=first, last=last, factor=factor)


def _cost_s(wanted: Sequence[int], *, rows: int, total_bytes: int) -> float:
    """Return the cost of a wanted size beyond its own row: its share of the start and of the rows not needed."""
    extra_s = _ROW_S * (rows - len(wanted)) + _ROW_S_PER_BYTE * (total_bytes - sum(wanted))
    return (_START_S + extra_s) / len(wanted)


Run = tuple[Sweep, frozenset[int]]
"""The sweep of one run, and the wanted sizes that are read from it, measured or (beyond the limit) interpolated."""


def plan_runs(kinds: Sequence[tuple[Sequence[int], int]], *, max_runs: int | None) -> tuple[tuple[Run, ...], ...]:
    """Return the runs of each kind; every wanted size is covered by exactly one of them.

    Args:
        kinds: of messages that cannot share a run: the wanted sizes in bytes, the most important first, and the
            alignment to which nccl-tests rounds them; each is a multiple of it.
        max_runs: runs of all kinds together at most, but at least one of each kind; None = no limit, no size is
            interpolated.
    """
    exact = [_exact(wanted, alignment) for wanted, alignment in kinds]
    if max_runs is None:
        return tuple(exact)
    granted = [1] * len(kinds)
    while sum(granted) < max_runs:
        missing = [len(runs) - grant for runs, grant in zip(exact, granted, strict=True)]
        if max(missing) <= 0:
            break
        granted[missing.index(max(missing))] += 1
    return tuple(
        runs if len(runs) <= grant else _limited(wanted, alignment, grant)
        for (wanted, alignment), runs, grant in zip(kinds, exact, granted, strict=True)
    )


def _exact(wanted: Iterable[int], alignment: int) -> tuple[Run, ...]:
    uncovered, runs = set(wanted), []
    for sweep in plan_sweeps(uncovered, alignment=alignment):
        covers = uncovered.intersection(sweep.sizes)
        uncovered -= covers
        runs.append((sweep, frozenset(covers)))
    return tuple(runs)


def _limited(wanted: Sequence[int], alignment: int, max_runs: int) -> tuple[Run, ...]:
    """Measure the most important sizes in all runs but one, which spans the others by factors of 2."""
    chosen: list[int] = []
    for size in dict.fromkeys(wanted):
        if len(plan_sweeps([*chosen, size], alignment=alignment)) < max_runs:
            chosen.append(size)
    others = frozenset(wanted).difference(chosen)
    return (*_exact(chosen, alignment), (bracket(others, alignment=alignment), others))
