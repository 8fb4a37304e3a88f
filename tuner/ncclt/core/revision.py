"""The life of a published revision: its state, what a cluster requires before jobs get it, and the history of both."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.errors import UsageError

MOST_WHY = 500
"""Characters of a reason at most."""

LOSS_LIMIT = 0.01
"""Default for the loss of step time beyond which a roll-out ends, as a share."""


class RevisionState(StrEnum):
    """State of a revision; jobs get an active one."""

    CANDIDATE = "candidate"
    ACTIVE = "active"
    STALE = "stale"
    RETIRED = "retired"


class Action(StrEnum):
    """Kind of an entry in the history."""

    PUBLISHED = "published"
    KEPT = "kept"
    STALE = "stale"
    VERIFIED = "verified"
    APPROVED = "approved"
    ACTIVATED = "activated"
    ROLLED_BACK = "rolled-back"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    RETIRED = "retired"
    ROLL_OUT_BEGAN = "roll-out-began"
    ROLL_OUT_PAUSED = "roll-out-paused"
    ROLL_OUT_RESUMED = "roll-out-resumed"
    ROLL_OUT_WON = "roll-out-won"
    ROLL_OUT_LOST = "roll-out-lost"
    ROLL_OUT_ENDED = "roll-out-ended"
    RULES_CHANGED = "rules-changed"
    JOB_FAILED = "job-failed"
    KEY_CREATED = "key-created"
    KEY_REVOKED = "key-revoked"
    WORKLOAD_ADDED = "workload-added"
    CLUSTER_ADDED = "cluster-added"
    PRUNED = "pruned"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionStatus(Documented):
    """A revision and where it is in its life.

    Attributes:
        id, revision, cluster, model: of the recommendation.
        nodes, gpus_per_node, nccl_version: the jobs that it is for.
        origin: measured, recorded or simulated times.
        state: `stale` where it would be active.
        stale: reason for not serving it; empty where it is not stale.
        pinned: jobs get it whatever is published later.
        unverified: `ncclt verify` must show a gain of step time before jobs get it.
        publisher: account that published it.
        created: ISO time.
    """

    SHAPE: ClassVar = Shape(schema=1)

    id: str
    revision: int
    cluster: str
    model: str
    nodes: int
    gpus_per_node: int
    nccl_version: str
    origin: str
    state: RevisionState
    stale: str
    pinned: bool
    unverified: bool
    publisher: str
    created: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent(Documented):
    """One entry of the history, which is never changed.

    Attributes:
        number: counts up in a store.
        cluster, model, recommendation: of the change; empty where it has none, all three for keys.
        action: kind of change.
        who: user of the operating system, `key ID` of the service, or `guard`.
        why: in their words; may be empty.
        created: ISO time.
    """

    SHAPE: ClassVar = Shape(schema=1)

    number: int
    cluster: str
    model: str
    recommendation: str
    action: Action
    who: str
    why: str
    created: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Actor and reason.

    Attributes:
        who: user of the operating system, `key ID` of the service, or `guard`.
        why: one line; may be empty.

    Raises:
        UsageError: the reason is too long, or not printable.
    """

    who: str
    why: str = ""

    def __post_init__(self) -> None:
        if len(self.why) > MOST_WHY or not self.why.isprintable():
            raise UsageError(f"a reason has at most {MOST_WHY} printable characters", hint="shorten it to one line")


def shorten_reason(text: str) -> str:
    """Return any text as a reason that `Actor` takes."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))[:MOST_WHY]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRules(Documented):
    """Conditions of a cluster for serving a new revision to all jobs.

    Attributes:
        cluster: its name.
        require_approval: another person than the publisher has to approve.
        require_verification: `ncclt verify` has to show a gain of step time.
        percent: of the jobs that get a new revision at first; 100 = all at once.
        loss_limit: loss of step time beyond which a roll-out ends, as a share.
        delivery: jobs get the active revision; if off, all of them keep their own settings.
        approve_wins: a person has to approve a revision that won on step times of jobs before all jobs get it.

    Raises:
        UsageError: a number is out of range.
    """

    SHAPE: ClassVar = Shape(name="rules of a cluster", schema=1)

    cluster: str
    require_approval: bool = False
    require_verification: bool = False
    percent: int = 100
    loss_limit: float = LOSS_LIMIT
    delivery: bool = True
    approve_wins: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.percent <= 100:
            raise UsageError(f"a roll-out is for 1 to 100 % of the jobs, not {self.percent}")
        if not 0 <= self.loss_limit <= 0.5:
            raise UsageError(f"the limit of a loss is a share of 0 to 0.5, not {self.loss_limit:g}")
