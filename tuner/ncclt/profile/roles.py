"""Ranks of one job that send different messages: pipeline stages, experts, uneven exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.message import Message
from ncclt.core.plural import count_noun

SHOWN = 3
"""Roles, ranks and messages that a note names at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMessages:
    """The messages in the file of one rank.

    Attributes:
        rank: global rank, None where the file does not say.
        calls: (process group, message) -> calls in the whole file. The group's name distinguishes sub-groups.
        steps: training steps of these calls.
    """

    rank: int | None
    calls: Mapping[tuple[str, Message], int]
    steps: int = 1

    def per_step(self) -> dict[Message, float]:
        """Return message -> calls per step; the calls of distinct groups add up, for the rank waits for all of them."""
        mine: dict[Message, float] = {}
        for (_group, message), count in self.calls.items():
            mine[message] = mine.get(message, 0.0) + count / self.steps
        return mine


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRole:
    """Ranks that send the same messages.

    Attributes:
        ranks: in order, None for each that is not known.
        calls_per_step: message -> calls per step of each of them.
    """

    ranks: tuple[int | None, ...]
    calls_per_step: Mapping[Message, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRoles:
    """The roles of the ranks of one job, the one with the most communication first.

    Every rank of a group records the same call, so counts are never added over ranks; and a mixture of several roles
    would be no rank of the job. A step lasts as long as its slowest role.

    Attributes:
        roles: at least one.
        times_us: mean duration of a call, µs, of messages that have one.
        by_time: the first takes more communication time than the second; else the messages lack times, or the times are
            the same, and it sends more bytes.
    """

    roles: tuple[RankRole, ...]
    times_us: Mapping[Message, float]
    by_time: bool

    @property
    def slowest(self) -> RankRole:
        """Return the role with the most communication, which limits the step."""
        return self.roles[0]

    def notes(self) -> list[str]:
        """Name the role of the workload and the roles that it leaves out; empty if all ranks have one role."""
        if len(self.roles) == 1:
            return []
        chosen, *others = self.roles
        most = "longest communication" if self.by_time else "most bytes"
        notes = [f"ranks send different messages: this workload is that of {_shown_ranks(chosen)} ({most})"]
        notes += [f"left out: {_shown_ranks(role)}, {_shown_calls(role)}" for role in others[:SHOWN]]
        if len(others) > SHOWN:
            notes.append(f"left out: {count_noun(len(others) - SHOWN, 'more role')}")
        return notes


def find_roles(views: Iterable[RankMessages], times_us: Mapping[Message, float] | None = None) -> RankRoles:
    """Group the ranks that send the same messages; groups of one rank, which send nothing, do not make one busy.

    Args:
        views: of one job, at least one; those without a call count only where none has one.
        times_us: mean duration of a call, µs, of messages that have one.
    """
    tables = [(view.rank, view.per_step()) for view in views]
    grouped: dict[frozenset[tuple[Message, float]], tuple[list[int | None], dict[Message, float]]] = {}
    for rank, table in [known for known in tables if known[1]] or tables:
        grouped.setdefault(frozenset(table.items()), ([], table))[0].append(rank)
    times = times_us or {}
    is_timed = all(message in times for _, table in grouped.values() for message in _sent(table))

    def load(role: RankRole) -> tuple[float, float, float, list[Message]]:
        # Ties are broken by the calls and the messages, so that the order of the ranks does not matter.
        sent = _sent(role.calls_per_step)
        time_us = sum(times[message] * calls for message, calls in sent.items()) if is_timed else 0.0
        return time_us, _bytes(sent), sum(sent.values()), sorted(sent)

    roles = [
        RankRole(ranks=tuple(sorted(ranks, key=lambda rank: (rank is None, rank or 0))), calls_per_step=table)
        for ranks, table in grouped.values()
    ]
    roles.sort(key=load, reverse=True)
    by_time = len(roles) > 1 and load(roles[0])[0] > load(roles[1])[0]
    return RankRoles(roles=tuple(roles), times_us=times, by_time=by_time)


def _sent(table: Mapping[Message, float]) -> dict[Message, float]:
    return {message: calls for message, calls in table.items() if message.group_size != 1}


def _bytes(table: Mapping[Message, float]) -> float:
    return sum(message.size_bytes * calls for message, calls in table.items())


def _shown_ranks(role: RankRole) -> str:
    named = [str(rank) for rank in role.ranks if rank is not None]
    if not named:
        return "one rank" if len(role.ranks) == 1 else f"{len(role.ranks)} ranks"
    return f"rank{'s' * (len(named) > 1)} {_shown(named)}"


def _shown_calls(role: RankRole) -> str:
    ranked = sorted(role.calls_per_step.items(), key=lambda row: (-row[0].size_bytes * row[1], row[0]))
    return _shown([f"{calls:g} x {message.label}" for message, calls in ranked])


def _shown(words: Sequence[str]) -> str:
    rest = [f"{len(words) - SHOWN} more"] * (len(words) > SHOWN)
    return ", ".join([*words[:SHOWN], *rest])
