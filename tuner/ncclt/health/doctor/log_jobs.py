"""Which processes of a log belong together: one file may hold several jobs, which may differ without harm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ncclt.health.doctor.log_facts import RankStart

ProcessKey = tuple[str, int]


def jobs_of(starts: Sequence[RankStart]) -> tuple[tuple[ProcessKey, ...], ...]:
    """Return the groups of processes that shared a communicator, alone ones left out.

    Before 2.17 communicators have no name in the log: there all ranks are taken for one job if no rank occurs twice.
    """
    groups: dict[ProcessKey, set[ProcessKey]] = {}
    for members in _communicators(starts):
        joined = set(members).union(*(groups.get(member, set()) for member in members))
        groups.update(dict.fromkeys(joined, joined))
    distinct = {id(group): group for group in groups.values() if len(group) > 1}
    return tuple(tuple(sorted(group)) for group in distinct.values())


def _communicators(starts: Sequence[RankStart]) -> Iterable[set[ProcessKey]]:
    named: dict[str, set[ProcessKey]] = {}
    for start in starts:
        if start.comm_id:
            named.setdefault(start.comm_id, set()).add((start.host, start.pid))
    yield from named.values()
    unnamed = [start for start in starts if not start.comm_id and start.rank is not None]
    by_size: dict[int | None, list[RankStart]] = {}
    for start in unnamed:
        by_size.setdefault(start.ranks, []).append(start)
    for members in by_size.values():
        if len({start.rank for start in members}) == len(members):
            yield {(start.host, start.pid) for start in members}
