"""Ranks of one job that send different messages: pipeline stages, experts, uneven exchanges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.message import Message
from ncclt.core.plural import count_noun

SHOWN = 3
"""Roles, ranks and messages that a note names at most."""


def count_per_step(calls: Mapping[tuple[str, Message], float], steps: int) -> dict[Message, float]:
    """Return message -> calls per step of one rank.

    Calls of distinct groups add up, for the rank waits for all of them.

    Args:
        calls: (process group, message) -> calls in all steps. The group's name distinguishes sub-groups.
        steps: training steps of these calls.
    """
    # Whole calls are added, so that neither the order of the groups nor their number makes ranks differ.
    totals: dict[Message, float] = defaultdict(float)
    for (_group, message), count in calls.items():
        totals[message] += count
    return {message: count / steps for message, count in totals.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRole:
    """Ranks that send the same messages.

    Attributes:
        ranks: in order, None for each that is not known.
        calls_per_step: message -> calls per step of each of them; in groups of one rank, of any of them.
    """

    ranks: tuple[int | None, ...]
    calls_per_step: Mapping[Message, float]

    def has(self, table: Mapping[Message, float]) -> bool:
        """Return True if a rank with these calls per step sends the messages of this role."""
        return _sent(table) == _sent(self.calls_per_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRoles:
    """The roles of the ranks of one job, the one with the most communication first.

    Every rank of a group records the same call, so counts are never added over ranks; and a mixture of several roles
    would be no rank of the job. A step lasts as long as its slowest role.

    Attributes:
        roles: at least one.
        times_us: mean duration of a call, µs, of messages that have one.
        why_first: what distinguishes the first from the second, in a few words: its communication time; its bytes,
            where messages lack times or the times are the same; else nothing that counts.
    """

    roles: tuple[RankRole, ...]
    times_us: Mapping[Message, float]
    why_first: str

    @property
    def slowest(self) -> RankRole:
        """Return the role with the most communication, which limits the step."""
        return self.roles[0]

    def notes(self) -> list[str]:
        """Name the role of the workload and the roles that it leaves out; empty if all ranks have one role."""
        if len(self.roles) == 1:
            return []
        chosen, *others = self.roles
        notes = [f"ranks send different messages: using those of {_name_ranks(chosen)} ({self.why_first})"]
        for role in others[:SHOWN]:
            ranked = sorted(_sent(role.calls_per_step).items(), key=lambda row: (-row[0].size_bytes * row[1], row[0]))
            calls = _list_some([f"{calls:g} x {message.label}" for message, calls in ranked])
            notes.append(f"left out: {_name_ranks(role)}, {calls}")
        if len(others) > SHOWN:
            notes.append(f"left out: {count_noun(len(others) - SHOWN, 'more role')}")
        return notes


def find_roles(
    ranks: Iterable[tuple[int | None, Mapping[Message, float]]], times_us: Mapping[Message, float] | None = None
) -> RankRoles:
    """Group the ranks that send the same messages; groups of one rank, which send nothing, make no difference.

    Args:
        ranks: those of one job, at least one: global number, None where the file does not say, and calls per step.
            Ranks that send nothing count only where none sends.
        times_us: mean duration of a call, µs, of messages that have one.
    """
    tables = list(ranks)
    grouped: dict[frozenset[tuple[Message, float]], tuple[list[int | None], dict[Message, float]]] = {}
    for rank, table in [known for known in tables if _sent(known[1])] or tables:
        members, calls = grouped.setdefault(frozenset(_sent(table).items()), ([], {}))
        members.append(rank)
        calls.update(table)
    times = times_us or {}
    is_timed = all(message in times for _, table in grouped.values() for message in _sent(table))

    def load(role: RankRole) -> tuple[float, float, float, list[Message]]:
        # Ties are broken by the calls and the messages, so that the order of the ranks does not matter.
        sent = _sent(role.calls_per_step)
        time_us = sum(times[message] * calls for message, calls in sent.items()) if is_timed else 0.0
        sent_bytes = sum(message.size_bytes * calls for message, calls in sent.items())
        return time_us, sent_bytes, sum(sent.values()), sorted(sent)

    roles = [
        RankRole(ranks=tuple(sorted(members, key=lambda rank: (rank is None, rank or 0))), calls_per_step=table)
        for members, table in grouped.values()
    ]
    roles.sort(key=load, reverse=True)
    why_first = ""
    if len(roles) > 1:
        first, second = load(roles[0]), load(roles[1])
        if first[0] > second[0]:
            why_first = "longest communication"
        else:
            why_first = "most bytes" if first[1] > second[1] else "as many bytes as others"
    return RankRoles(roles=tuple(roles), times_us=times, why_first=why_first)


def _sent(table: Mapping[Message, float]) -> dict[Message, float]:
    return {message: calls for message, calls in table.items() if message.group_size != 1}


def _name_ranks(role: RankRole) -> str:
    named = [str(rank) for rank in role.ranks if rank is not None]
    if not named:
        return "one rank" if len(role.ranks) == 1 else f"{len(role.ranks)} ranks"
    return f"rank{'s' * (len(named) > 1)} {_list_some(named)}"


def _list_some(words: Sequence[str]) -> str:
    return ", ".join([*words[:SHOWN], *[f"{len(words) - SHOWN} more"] * (len(words) > SHOWN)])
