"""The search for one workload on one cluster: the study as it is stored, its trials, and studies at a glance."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ncclt.core.cluster import Cluster
from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Message
from ncclt.core.plural import count_noun
from ncclt.core.policy import Policy
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.recommendation import Recommendation
from ncclt.core.setting import Setting
from ncclt.core.trial import TimesOrigin, TrialResult, times_origin
from ncclt.core.workload import Workload


class Phase(StrEnum):
    """Stage of the study that launched a trial."""

    SEARCH = "search"
    CONFIRM = "confirm"
    PROVE = "prove"


class Arm(StrEnum):
    """Arm of the proof that a trial measures; `today` is the NCCL default with the user's own tuning variables."""

    DEFAULT = "default"
    TODAY = "today"
    TABLE = "table"
    VARIABLES = "variables"


class StudyState(StrEnum):
    """Progress of a study."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Documented):
    """One launch, as a row of its study.

    Attributes:
        number: counts up from 0 in the study, over all phases.
        phase: phase of the study that it belongs to.
        setting: what was forced; of a whole policy, its process-wide parameters.
        repeat: number of earlier trials of the study with the same setting.
        result: outcome and measurements.
        score_us: communication time per step, µs; None unless the outcome is `ok` and all messages were measured.
        arm: in the proof, the arm that it measures; where no launch can apply a whole policy, one trial per setting.
        block: in the proof, the pair of launches, counted from 0, two to a block; else 0.
        proof: in the proof, the number of the proof in the study, from 1; else 0.
        started: ISO time.
        policy: launched as a whole; None = the setting was.
    """

    SHAPE: ClassVar = Shape(inlined=("result",), private=("proof",), computed=(("label", "label", "repeat"),))

    number: int
    phase: Phase
    setting: Setting
    repeat: int
    result: TrialResult
    score_us: float | None
    arm: Arm | None = None
    block: int = 0
    proof: int = 0
    started: str = ""
    policy: Policy | None = None

    @property
    def tries_setting(self) -> bool:
        """Return True if it tried one setting on all messages: neither a whole policy, nor a part of a proof."""
        return self.policy is None and self.phase is not Phase.PROVE

    def setting_for(self, message: Message) -> Setting:
        """Return the setting that was forced on one message."""
        return self.setting if self.policy is None else self.policy.setting_for(message)

    @property
    def is_default(self) -> bool:
        """Return True if it measured the NCCL default, neither a setting nor what the job runs today."""
        return self.setting.is_default and self.policy is None and self.arm is not Arm.TODAY

    @property
    def label(self) -> str:
        """Return the forced setting or policy as text."""
        if self.arm is Arm.TODAY:
            return Arm.TODAY.value
        if self.policy is None:
            return self.setting.label
        return f"policy of {count_noun(len(self.policy.rules), 'rule')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Documented):
    """A launch that a worker is about to make: no other worker gets its number or launches its setting meanwhile.

    Attributes:
        number: of the coming trial.
        setting: to force.
        repeat: number of earlier trials of the study with the same setting.
        phase: phase of the study that it belongs to.
    """

    number: int
    setting: Setting
    repeat: int
    phase: Phase


def gpu_seconds(trials: Iterable[Trial], cluster: Cluster) -> float:
    """Return the cost of trials: wall time of each launch times the GPUs that it held, s."""
    return sum(trial.result.wall_s for trial in trials) * cluster.world_size


def median_scores(trials: Iterable[Trial]) -> dict[Setting, float]:
    """Return the median communication time per step of each setting that was tried before the proof, µs."""
    scores: dict[Setting, list[float]] = {}
    for trial in trials:
        if trial.tries_setting and trial.score_us is not None:
            scores.setdefault(trial.setting, []).append(trial.score_us)
    return {setting: statistics.median(times_us) for setting, times_us in scores.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Documented):
    """Identity and state of a study; its trials are stored separately.

    Attributes:
        id: short unique id.
        name: unique; the same name resumes.
        cluster: sized to the job.
        workload: placed on the cluster, so every group size is known.
        launcher: name of the launcher of its trials.
        simulated: times come from a model, not from measurements.
        process_wide: names of the process-wide parameters that are searched, sorted.
        seed: of search, simulated noise and bootstrap.
        state: its progress.
        reason: cause of the end of the search.
        created, updated: ISO time.
        printed_costs: NCCL's own tables that the search began from; None = our estimate of them.
        sampler: MODULE:CLASS(KEY=VALUE) that chose the settings; empty = ncclt's own.
        today: tuning variables that the job sets today, name -> value, an arm of the proof; empty = none.
        deterministic: only what keeps the order of additions of the NCCL default is searched and published.
        way: of forcing and timing settings (`Testbed.way`), such as `+plugin`; None = not stored.
    """

    SHAPE: ClassVar = Shape(
        omitted=("printed_costs", "sampler", "today", "deterministic", "way"),
        private=("printed_costs", "way"),
        pairs=("today",),
    )

    id: str
    name: str
    cluster: Cluster
    workload: Workload
    launcher: str
    simulated: bool
    process_wide: tuple[str, ...]
    seed: int
    state: StudyState
    reason: str = ""
    created: str = ""
    updated: str = ""
    printed_costs: PrintedCosts | None = None
    sampler: str = ""
    today: tuple[tuple[str, str], ...] = ()
    deterministic: bool = False
    way: str | None = None

    @property
    def label(self) -> str:
        """Return the mark that every result of this study carries; empty where its times were measured."""
        if self.simulated:
            return "SIMULATED"
        return self.cluster.recorded_label if self.origin is TimesOrigin.RECORDED else ""

    @property
    def origin(self) -> TimesOrigin:
        """Return the origin of its times."""
        return times_origin(self.launcher, simulated=self.simulated)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEntry:
    """A study at a glance.

    Attributes:
        study: the study itself.
        trials: trials of all phases and outcomes.
        best_us: lowest communication time per step over the settings that were searched, each by its median, µs;
            None before the first good trial, and once the verdict of the recommendation has its own times.
        default_us: median communication time per step of the NCCL default in the search, µs; None as `best_us`.
        recommendation: the newest one of the study.
    """

    study: Study
    trials: int
    best_us: float | None
    default_us: float | None
    recommendation: Recommendation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPage:
    """Some studies, newest first.

    Attributes:
        items: the studies.
        next_cursor: of the next page; None on the last.
    """

    items: tuple[StudyEntry, ...]
    next_cursor: str | None
