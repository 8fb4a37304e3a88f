"""The last steps that all readers share: checks of the files, a workload from counts, notes on gaps, refusals.

Sentences that users read about files of any kind are here, once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from ncclt.core.message import Collective, Message
from ncclt.core.workload import RANK_ROLES, MessageCalls, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.roles import RankRoles


class _Sent(Protocol):
    """A call that may be the receiving half of a send_recv."""

    @property
    def message(self) -> Message: ...
    @property
    def is_receive(self) -> bool: ...


Sent = TypeVar("Sent", bound=_Sent)


def drop_answered_receives(calls: Iterable[Sent]) -> tuple[Sent, ...]:
    """Return the calls of one rank, of point-to-point ones the sends alone where there are sends.

    A message from rank to rank is one call: on a rank that does both halves the sends stand for it, and a rank that
    only receives shows it by its receives.
    """
    all_calls = tuple(calls)
    sends = any(c.message.collective is Collective.SEND_RECV and not c.is_receive for c in all_calls)
    return tuple(c for c in all_calls if not (sends and c.is_receive))


def build_workload(name: str, roles: RankRoles, origin: Provenance) -> Workload:
    """Return the workload of the slowest role, with notes on the others.

    Groups of one rank, which send nothing, are left out.

    Args:
        roles: of the ranks of the job.

    Raises:
        TraceError: every group has one rank.
    """
    calls_per_step = roles.slowest.calls_per_step
    alone = {message for message in calls_per_step if (message.group_size or origin.world_size) == 1}
    notes = [*origin.notes, *roles.notes()]
    if alone:
        collectives = join_distinct(sorted(message.collective for message in alone))
        reason = f"{collectives} in a group of one rank, which sends nothing"
        if len(alone) == len(calls_per_step):
            hint = "record a run on two or more GPUs"
            raise TraceError(f"no communication in {origin.detail.get('files', 'the files')}: {reason}", hint=hint)
        notes.append(f"left out: {reason}")
    several = {RANK_ROLES: str(len(roles.roles))} if len(roles.roles) > 1 else {}
    messages = tuple(
        MessageCalls(message=message, calls_per_step=calls, recorded_us=roles.times_us.get(message))
        for message, calls in calls_per_step.items()
        if message not in alone
    )
    provenance = replace(origin, detail={**origin.detail, **several}, notes=tuple(notes))
    return Workload(name=name, messages=messages, provenance=provenance)


def min_times(times_us: Iterable[Mapping[Message, float]]) -> dict[Message, float]:
    """Return the smallest of the ranks' mean durations, µs.

    A rank that comes early waits inside the call for the last one, so the smallest is closest to the transfer.
    """
    smallest: dict[Message, float] = {}
    for message, time_us in (timed for rank in times_us for timed in rank.items()):
        smallest[message] = min(time_us, smallest.get(message, time_us))
    return smallest


def count_reasons(left_out: Mapping[str, int]) -> list[str]:
    """Return `3 x REASON` for everything that was left out."""
    return [f"{count} x {reason}" for reason, count in sorted(left_out.items())]


def left_out_notes(left_out: Mapping[str, int]) -> list[str]:
    """Return one note per reason for which something was left out."""
    return [f"left out: {reason}" for reason in count_reasons(left_out)]


def partial_note(read: int, world_size: int) -> list[str]:
    """Return a note if the files of some ranks are missing."""
    return [f"read {read} of {world_size} ranks; using the busiest rank's counts"] if read < world_size else []


def largest_group_notes(ranks_seen: int, world_size: int) -> list[str]:
    """Return the notes of a source that shows communicators, the largest of which is the whole job (0 = none is)."""
    if not world_size:
        return [f"{ranks_seen} ranks read and no communicator of all of them: the job's size is unknown"]
    assumption = f"the largest communicator, of {world_size} ranks, is assumed to be the whole job"
    return [assumption, *partial_note(ranks_seen, world_size)]


def is_newer(version: str, newest: str) -> bool:
    """Return True if a version is later than the newest known one; other words in it do not count.

    >>> is_newer("v4.3", "v4.2"), is_newer("v4.10", "v4.2"), is_newer("1.1.1-chakra.0.0.4", "1.1.1")
    (True, True, False)
    """
    numbers, known = (tuple(map(int, re.findall(r"[0-9]{1,6}", text))) for text in (version, newest))
    return numbers[: len(known)] > known


def newer_notes(versions: Iterable[str], newest: str) -> list[str]:
    """Return a note on each version of a format that is later than the newest known one."""
    newer = sorted({version for version in versions if is_newer(version, newest)})
    return [f"format {version} is newer than {newest}: new fields are ignored" for version in newer]


def join_distinct(values: Iterable[str | None]) -> str:
    """Return the values that are not empty, each once."""
    return ", ".join(dict.fromkeys(value for value in values if value))


def format_day(moment_s: float) -> str:
    """Return the ISO date of a moment, seconds since 1970; empty outside of 2014 to 2099: that is no wall clock."""
    return datetime.fromtimestamp(moment_s, UTC).date().isoformat() if 1.4e9 < moment_s < 4.1e9 else ""


def parse_day(text: object) -> str:
    """Return the ISO date of `2024-04-17 16:29:57` or `2024-04-17T16:29:57`, empty for anything else."""
    try:
        return date.fromisoformat(text[:10]).isoformat() if isinstance(text, str) else ""
    except ValueError:
        return ""


def check_one_job(world_sizes: Iterable[tuple[str, int]]) -> None:
    """Refuse files of different jobs.

    Args:
        world_sizes: name of each file, and the ranks of its job, 0 = it does not say.

    Raises:
        TraceError: the jobs have different sizes.
    """
    worlds = {world_size: label for label, world_size in world_sizes if world_size}
    if len(worlds) > 1:
        shown = ", ".join(f"{label} of {world_size} ranks" for world_size, label in sorted(worlds.items()))
        raise TraceError(f"the files are of different jobs: {shown}", hint="import each job on its own")


def check_ranks_once(ranks: Iterable[tuple[str, int | None]]) -> None:
    """Refuse several files of one rank: its calls would be counted twice.

    Args:
        ranks: name of a file, and a rank that it covers, None = it does not name its rank.

    Raises:
        TraceError: a rank appears twice.
    """
    labels: dict[int, str] = {}
    for label, rank in ranks:
        if rank in labels:
            hint = "give one file per rank, all of the same job"
            raise TraceError(f"rank {rank} appears twice: {labels[rank]} and {label}", hint=hint)
        if rank is not None:
            labels[rank] = label


MOST_KINDS = 500_000
"""Most different calls per file: 4096 ranks in one log have some 100 each, random bytes have one per line."""


def check_distinct(paths: Sequence[Path]) -> None:
    """Raise if one file is given twice.

    Raises:
        TraceError: a path occurs twice.
    """
    places: set[str] = set()
    for path in paths:
        place = os.path.realpath(path)  # unlike `Path.resolve`, it takes a link to itself
        if place in places:
            raise TraceError(f"{path} was given twice", hint="name every file once")
        places.add(place)


def check_bounded(kinds: int, label: str) -> None:
    """Raise if a log has more different calls than any job makes.

    Raises:
        TraceError: more than `MOST_KINDS`.
    """
    if kinds > MOST_KINDS:
        raise TraceError(
            f"{label} shows more than {MOST_KINDS} different calls: this is not a log of a training job",
            hint="is the file damaged? otherwise cut it to some of the ranks",
        )
