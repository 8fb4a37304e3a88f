"""Tuning jobs: studies that are requested now and run later, by a worker."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from ncclt.core.budget import Budget
from ncclt.core.cluster import Cluster
from ncclt.core.documents import Documented, Shape
from ncclt.core.recommendation import SHAPE_PARTS
from ncclt.core.workload import Workload
from ncclt.errors import UsageError

FIRST_PRIORITY, LAST_PRIORITY = 1, 9

USUAL_PRIORITY = 5

_USUAL = Budget()


class JobState(StrEnum):
    """Progress of a tuning job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Return True if the job has reached a final state."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningJob(Documented):
    """Tuning job request: workload, cluster and budget.

    Attributes:
        id: identifies it.
        cluster: its name.
        model: name of the workload.
        nodes, gpus_per_node, nccl_version: of the training; None = the cluster's.
        trials: max search trials, including earlier runs.
        seconds: max seconds of search; None = no limit.
        gpu_hours: max GPU-hours of the study; None = no limit.
        blocks: max blocks of the validation.
        seed: of the search.
        prove_variables: also validate the policy in variables alone.
        priority: 1 = first, 9 = last.
        study: name of its study; jobs that ask for the same share one, so a repeated job launches nothing.
        created: ISO time.
        by: id of the key that requested it; empty = no key.

    Raises:
        UsageError: a number is out of range.
    """

    SHAPE: ClassVar = Shape(name="a tuning job", error=UsageError, schema=1)

    id: str
    cluster: str
    model: str
    nodes: int | None = None
    gpus_per_node: int | None = None
    nccl_version: str | None = None
    trials: int = _USUAL.trials
    seconds: float | None = None
    gpu_hours: float | None = None
    blocks: int = _USUAL.blocks
    seed: int = 0
    prove_variables: bool = False
    priority: int = USUAL_PRIORITY
    study: str = ""
    created: str = ""
    by: str = ""

    def __post_init__(self) -> None:
        Budget(trials=self.trials, seconds=self.seconds, gpu_hours=self.gpu_hours, blocks=self.blocks, seed=self.seed)
        if not FIRST_PRIORITY <= self.priority <= LAST_PRIORITY:
            raise UsageError(
                f"the priority must be {FIRST_PRIORITY} to {LAST_PRIORITY}, not {self.priority}",
                hint=f"{FIRST_PRIORITY} is taken first",
            )
        for field in ("nodes", "gpus_per_node"):
            if (count := getattr(self, field)) is not None and count < 1:
                raise UsageError(f"{field} must be at least 1, not {count}")

    def on(self, cluster: Cluster, workload: Workload, *, again: bool) -> TuningJob:
        """Return the job with the name of its study.

        Args:
            cluster, workload: those that it names, as they are now: when they change, it is another study.
            again: measure again although the same was tuned before.

        Raises:
            UsageError: the workload does not fit the shape.
        """
        sized = cluster.sized(nodes=self.nodes, gpus_per_node=self.gpus_per_node, nccl_version=self.nccl_version)
        placed = workload.placed(nodes=sized.nodes, gpus_per_node=sized.gpus_per_node)
        budget = [self.trials, self.seconds, self.gpu_hours]
        place = [sized.fingerprint().digest(), sized.driver]
        same = [*place, placed.digest(), self.seed, *budget, self.id if again else ""]
        mark = hashlib.sha256(json.dumps(same).encode()).hexdigest()[:8]
        return replace(self, study=f"{self.model}-{self.cluster}-{sized.nodes}x{sized.gpus_per_node}-job-{mark}")

    def is_same_request(self, other: TuningJob) -> bool:
        """Return True if both request the same; id, time and requester do not count."""
        return replace(self, id=other.id, study=other.study, created=other.created, by=other.by) == other

    def arguments(self) -> tuple[str, ...]:
        """Return it as arguments of `ncclt tune`."""
        names = ("model", "cluster", *SHAPE_PARTS, "trials", "seconds", "gpu_hours", "blocks", "seed", "study")
        words = [
            f"--{'time' if name == 'seconds' else name.replace('_', '-')}={value}"
            for name in names
            if (value := getattr(self, name)) is not None
        ]
        return (*words, "--prove-variables") if self.prove_variables else tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(Documented):
    """Outcome of a tuning job.

    Attributes:
        state: a final state.
        reason: one sentence.
        study: id of its study; empty = none.
        trials: of the study.
        recommendation: id of the published recommendation; empty = none.
        decision: of the verdict; empty = none.
        simulated: times come from a model, not from measurements.
        recorded: the recording that was replayed; empty = none.
    """

    SHAPE: ClassVar = Shape(name="the result of a tuning job", schema=1)

    state: JobState
    reason: str = ""
    study: str = ""
    trials: int = 0
    recommendation: str = ""
    decision: str = ""
    simulated: bool = False
    recorded: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus(Documented):
    """A tuning job and where it stands.

    Attributes:
        job: as it was requested.
        state: its progress.
        cancelling: cancellation was requested while it runs.
        worker: that runs or ran it last.
        started, ended: ISO time; empty = not yet.
        taken_over: times that its worker died and another took it over.
        result: None before its end, and of a job that was cancelled in the queue.
    """

    job: TuningJob
    state: JobState
    cancelling: bool = False
    worker: str = ""
    started: str = ""
    ended: str = ""
    taken_over: int = 0
    result: JobResult | None = None


def describe_worker(name: str) -> str:
    """Return the name of a worker for people: its machine and process.

    >>> describe_worker("login1/4026531836/17/4711")
    'login1, process 17'
    """
    machine, _, process_name = name.partition("/")
    _, _, process = process_name.rpartition("/")[0].rpartition("/")
    return f"{machine}, process {process}" if process else name


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something that happened to a job.

    Attributes:
        number: counts up from 0 in the job; `Last-Event-ID` of server-sent events.
        kind: `started`, `trials`, `log`, `given-back` or `ended`.
        data: depends on the kind.
    """

    number: int
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleJob(Documented):
    """Stale recommendation and the job that renews it.

    Attributes:
        recommendation: id of the stale revision.
        stale: reason why it is stale.
        cluster, model, nodes, gpus_per_node, nccl_version: of the jobs that it is for.
        status: of the job; None = refused.
        is_new: False = already queued or running.
        refused: reason why there is no job; empty = there is one.
    """

    recommendation: str
    stale: str
    cluster: str
    model: str
    nodes: int
    gpus_per_node: int
    nccl_version: str
    status: JobStatus | None = None
    is_new: bool = False
    refused: str = ""
