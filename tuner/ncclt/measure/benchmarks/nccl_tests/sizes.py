"""Which run of nccl-tests covers which sizes, within an optional limit of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ncclt.measure.benchmarks.nccl_tests.sweep import Sweep, bracket, plan_sweeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes that one kind of message needs, bytes.

    Attributes:
        wanted: the most important first; a size may belong to several messages.
        alignment: what nccl-tests rounds them to; each is a multiple of it.
    """

    wanted: tuple[int, ...]
    alignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: its sweep, and the wanted sizes that are read from it, measured or (beyond the limit) interpolated."""

    sweep: Sweep
    covers: frozenset[int]


def plan_runs(kinds: Sequence[Sizes], *, max_runs: int | None) -> tuple[tuple[Run, ...], ...]:
    """Return the runs of each kind; every wanted size is covered by exactly one of them.

    Args:
        kinds: what cannot share a run.
        max_runs: runs of all kinds together at most, but at least one of each kind; None = no limit, no size is
            interpolated.
    """
    exact = [_exact(kind.wanted, kind.alignment) for kind in kinds]
    if max_runs is None:
        return tuple(exact)
    granted = [1] * len(kinds)
    while sum(granted) < max_runs:
        missing = [len(runs) - grant for runs, grant in zip(exact, granted, strict=True)]
        if max(missing) <= 0:
            break
        granted[missing.index(max(missing))] += 1
    return tuple(
        runs if len(runs) <= grant else _limited(kind, grant)
        for kind, runs, grant in zip(kinds, exact, granted, strict=True)
    )


def _exact(wanted: Iterable[int], alignment: int) -> tuple[Run, ...]:
    left, runs = set(wanted), []
    for sweep in plan_sweeps(left, alignment=alignment):
        covers = left.intersection(sweep.sizes)
        left -= covers
        runs.append(Run(sweep=sweep, covers=frozenset(covers)))
    return tuple(runs)


def _limited(kind: Sizes, max_runs: int) -> tuple[Run, ...]:
    """Measure the most important sizes in all runs but one, which spans the others by factors of 2."""
    chosen: list[int] = []
    for size in dict.fromkeys(kind.wanted):
        if len(plan_sweeps([*chosen, size], alignment=kind.alignment)) < max_runs:
            chosen.append(size)
    others = frozenset(kind.wanted).difference(chosen)
    spanning = Run(sweep=bracket(others, alignment=kind.alignment), covers=others)
    return (*_exact(chosen, kind.alignment), spanning)
