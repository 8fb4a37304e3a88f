"""A roll-out: a revision that a share of the jobs get, while the step times of all are compared."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.errors import InputError

MOST_JOB_NAME = 300
"""Characters of a job's name at most."""

_LONGEST_STEP_US = 86400e6
_MOST_STEPS = 10**9


class Variant(StrEnum):
    """Variant of a roll-out that a job gets: the new revision, the active one, or the NCCL default."""

    CANDIDATE = "candidate"
    ACTIVE = "active"
    DEFAULT = "default"


class Reason(StrEnum):
    """Reason of a variant, in the terms of OpenFeature's remote evaluation protocol."""

    TARGETING_MATCH = "TARGETING_MATCH"
    DEFAULT = "DEFAULT"
    STALE = "STALE"
    DISABLED = "DISABLED"


class RollOutState(StrEnum):
    """State of a roll-out.

    A `won` one awaits the approval of a person, and keeps its share until then; `promoted` = all jobs get the revision.
    """

    RUNNING = "running"
    WON = "won"
    PROMOTED = "promoted"
    LOST = "lost"
    ENDED = "ended"


OPEN_STATES = (RollOutState.RUNNING, RollOutState.WON)
"""In these a share of the jobs gets the revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOut(Documented):
    """A revision on its way to all jobs.

    Attributes:
        id: identifies it.
        cluster, model: names of cluster and workload.
        recommendation: id of the revision that is rolled out.
        control: id of the active one that the other jobs keep; empty = they keep the NCCL default.
        percent: of the jobs that get it.
        seed: random text that the share is drawn with, so that no job can choose.
        loss_limit: loss of step time beyond which it ends, as a share.
        state: how it stands.
        reason: one sentence on how it ended or why it won; empty while it runs.
        created, ended: ISO times; `ended` is empty while a share of the jobs gets it.
    """

    SHAPE: ClassVar = Shape(schema=1)

    id: str
    cluster: str
    model: str
    recommendation: str
    control: str
    percent: int
    seed: str
    loss_limit: float
    state: RollOutState = RollOutState.RUNNING
    reason: str = ""
    created: str = ""
    ended: str = ""

    def variant(self, job: str) -> Variant:
        """Return the variant of a job: a function of its name alone, so that all of its ranks get the same.

        Args:
            job: the name of the job, equal in all of its processes; empty = not known, which is never a candidate.
        """
        if job and draw(self.seed, job) * 100 < self.percent:
            return Variant.CANDIDATE
        return Variant.ACTIVE if self.control else Variant.DEFAULT

    def revision_for(self, job: str) -> str:
        """Return the id of the revision that a job is given; empty = the NCCL default."""
        wanted = {Variant.CANDIDATE: self.recommendation, Variant.ACTIVE: self.control, Variant.DEFAULT: ""}
        return wanted[self.variant(job)]

    @property
    def is_open(self) -> bool:
        """Return True if a share of the jobs gets the revision."""
        return self.state in OPEN_STATES


@lru_cache(maxsize=1 << 14)
def draw(seed: str, job: str) -> float:
    """Return a number from 0 to below 1 that a seed and a job's name decide, evenly spread over names."""
    digest = hashlib.sha256(f"{seed}\0{job}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """Start of a job in a roll-out.

    Attributes:
        rollout: id of the roll-out.
        job: name of the job.
        recommendation: id of the revision that the job was given; empty = the NCCL default.
        issued_s: Unix time of its ticket.
    """

    rollout: str
    job: str
    recommendation: str
    issued_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTime(Documented):
    """The step time of one job in a roll-out.

    Attributes:
        rollout: id of the roll-out.
        job: name of the job.
        recommendation: id of the revision that the job was given; empty = the NCCL default.
        step_us: median time of its measured steps on the slowest rank, µs.
        steps: how many were measured.
        waited_s: seconds from the job's start to this report.
        who, address: of the reporter.
        created: ISO time at which it was stored.

    Raises:
        InputError: a name or a number that no job has.
    """

    SHAPE: ClassVar = Shape(name="a step time", hint="see docs/operator/rollout.md", schema=1)

    rollout: str
    job: str
    recommendation: str
    step_us: float
    steps: int
    waited_s: float = 0.0
    who: str = ""
    address: str = ""
    created: str = ""

    def __post_init__(self) -> None:
        if not 0 < len(self.job) <= MOST_JOB_NAME or not self.job.isprintable() or not self.job.strip():
            raise InputError(f"a job's name has 1 to {MOST_JOB_NAME} printable characters", hint=self.SHAPE.hint)
        if not (math.isfinite(self.step_us) and 0 < self.step_us <= _LONGEST_STEP_US):
            raise InputError(
                f"a step takes above 0 µs and at most a day, not {self.step_us:g} µs", hint=self.SHAPE.hint
            )
        if not 1 <= self.steps <= _MOST_STEPS:
            raise InputError(f"a step time is that of 1 step at least, not {self.steps}", hint=self.SHAPE.hint)
