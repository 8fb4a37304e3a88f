"""The files of one job: one per rank, none twice, none of another job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.errors import TraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """What a file says about its place in the job.

    Attributes:
        label: name of the file, for messages.
        ranks: ranks that it covers; None = it does not name its rank.
        world_size: ranks of the job, 0 = it does not say.
    """

    label: str
    ranks: tuple[int | None, ...]
    world_size: int = 0


def check_one_job(files: Sequence[RankFile]) -> None:
    """Refuse files of different jobs, and several files of one rank: its calls would be counted twice.

    Raises:
        TraceError: the files do not belong together.
    """
    worlds = {file.world_size: file.label for file in files if file.world_size}
    if len(worlds) > 1:
        shown = ", ".join(f"{label} of {world_size} ranks" for world_size, label in sorted(worlds.items()))
        raise TraceError(f"the files are of different jobs: {shown}", hint="import each job on its own")
    seen: dict[int, str] = {}
    for file in files:
        for rank in file.ranks:
            if rank is None:
                continue
            if rank in seen:
                raise TraceError(
                    f"rank {rank} appears twice: {seen[rank]} and {file.label}",
                    hint="give one file per rank, all of the same job",
                )
            seen[rank] = file.label
