"""The JSON of the service: the core's documents as clients see them.

Values come from the core's own `to_document`; these classes check them on the way out and describe them in OpenAPI.
Sizes are NCCL's tuning sizes in bytes, times are microseconds, bandwidths are 1e9 bytes/s.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import LINK_CLASSES
from ncclt.core.message import Collective
from ncclt.core.recommendation import Decision
from ncclt.core.study import Arm, Phase, StudyState
from ncclt.core.trial import Outcome
from ncclt_api.attestation_schemas import AttestationSummary
from ncclt_api.text import AnswerModel


class Health(AnswerModel):
    """Liveness or readiness of the service."""

    status: str
    version: str
    migration: str | None = Field(default=None, description="revision of the store's tables")
    away: list[str] = Field(default=[], description="what is missing while jobs are given the answers that are kept")


class FieldProblem(AnswerModel):
    """One invalid field of a request."""

    where: str
    message: str


class AvailableShape(AnswerModel):
    """A job shape that a recommendation was published for."""

    nodes: int
    gpus_per_node: int
    nccl_version: str
    recommendation: str = Field(description="id of the newest revision of this shape")
    simulated: bool
    recorded: bool = Field(description="its times were recorded elsewhere and replayed")
    stale: bool


class ProblemDocument(AnswerModel):
    """An error in the form of RFC 9457, with a hint."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    hint: str
    request_id: str
    errors: list[FieldProblem] | None = None
    available: list[AvailableShape] | None = Field(
        None, description="`getEnvironment` only: what was published for other jobs, newest first"
    )


class ClusterDocument(AnswerModel):
    """One kind of node and how many there are."""

    name: str
    nodes: int
    gpus_per_node: int
    gpu: str
    compute_capability: int
    link_class: str = Field(description=f"one of {', '.join(LINK_CLASSES)}")
    link_gbps: float
    fabric: str
    nics_per_node: int
    nic_gbps: float
    gpudirect: bool
    cpu: str
    nccl_version: str
    topology_hash: str
    driver: str = Field(default="", description="NVIDIA driver; empty = not known")
    description: str
    sources: list[str]


class CatalogueCluster(ClusterDocument):
    """A cluster of the catalogue."""

    shipped: bool = Field(description="comes with ncclt; false = added here")


class ClusterList(AnswerModel):
    """All clusters of the catalogue."""

    items: list[CatalogueCluster]


# Its text comes from columns and is always Unicode, so it skips AnswerModel's check: an answer may have thousands.
class MessageDocument(BaseModel):
    """One kind of message; group_size 0 = the whole job."""

    collective: Collective
    dtype: str
    size_bytes: int
    group_size: int
    spans_nodes: bool


class WorkloadMessage(MessageDocument):
    """A message with its calls in one training step."""

    calls_per_step: float
    recorded_us: float | None = None


class TimedCallDocument(MessageDocument):
    """A call of the median step."""

    start_us: float = Field(description="after the first call of the step")
    duration_us: float


class ProvenanceDocument(AnswerModel):
    """Where a workload came from."""

    source: str
    created: str
    detail: dict[str, str]
    world_size: int
    ranks_read: list[int]
    steps: int
    notes: list[str]
    whole_file: bool = Field(default=False, description="the calls are all of the source, not those of one step")


class WorkloadPartDocument(AnswerModel):
    """One of the workloads that were merged into another."""

    name: str
    weight: float = Field(description="its steps in one step of the merged workload")
    messages: list[WorkloadMessage] = Field(description="of one step of the part")


class WorkloadDocument(AnswerModel):
    """The messages of one training step."""

    model_config = ConfigDict(populate_by_name=True)
    schema_version: int = Field(alias="schema")
    name: str
    digest: str = Field(description="hash of the messages")
    bytes_per_step: float
    provenance: ProvenanceDocument
    messages: list[WorkloadMessage]
    step_time_us: float | None = None
    exposed_us: float | None = None
    copied_us: float | None = Field(default=None, description="copies within the GPU, per step")
    timeline: list[TimedCallDocument] = Field(default=[], description="the calls of the median step of one rank")
    parts: list[WorkloadPartDocument] = Field(default=[], description="of a merged workload")


class CatalogueWorkload(WorkloadDocument):
    """A workload of the catalogue."""

    shipped: bool = Field(description="comes with ncclt; false = added here")


class WorkloadList(AnswerModel):
    """All workloads of the catalogue."""

    items: list[CatalogueWorkload]


class FingerprintDocument(AnswerModel):
    """What a recommendation is valid for."""

    gpu: str
    link_class: str
    fabric: str
    nodes: int
    gpus_per_node: int
    nccl_version: str
    topology_hash: str
    driver: str = Field(default="", description="NVIDIA driver under which it was measured; empty = not known")


class RuleDocument(AnswerModel):
    """What to choose for one collective in one range of sizes, both ends inclusive; null = left to NCCL."""

    collective: Collective
    min_bytes: int
    max_bytes: int | None
    group_size: int
    spans_nodes: bool | None = Field(default=None, description="of the rule's groups; null = however they are placed")
    algorithm: Algorithm | None
    protocol: Protocol | None
    channels: int | None


class PolicyDocument(AnswerModel):
    """Rules and process-wide parameters."""

    rules: list[RuleDocument]
    parameters: dict[str, int]


class VerdictDocument(AnswerModel):
    """What the interleaved re-measurement against the untouched default proved."""

    decision: Decision
    reason: str
    speedup: float
    interval: tuple[float | None, float | None] = Field(description="95 %, valid at any end; null = without bound")
    blocks: int
    default_us: float
    policy_us: float = Field(
        description="median of its launches; the paired estimate shown elsewhere is default_us / speedup"
    )
    min_effect: float = Field(description="smallest gain that was worth a change, as a share")


class DeliveryDocument(AnswerModel):
    """One form of the result with the verdict on exactly that form."""

    policy: PolicyDocument
    verdict: VerdictDocument


class RecommendationDocument(AnswerModel):
    """A published revision."""

    model_config = ConfigDict(populate_by_name=True)
    schema_version: int = Field(alias="schema")
    id: str
    revision: int
    study: str
    cluster: str
    model: str
    workload_digest: str
    collectives: list[Collective]
    fingerprint: FingerprintDocument
    table: DeliveryDocument
    variables: DeliveryDocument | None
    simulated: bool = Field(description="the times come from a model, not from measurements")
    launcher: str
    recorded: str = Field(default="", description="`recorded: SYSTEM, SOURCE` where the times were replayed")
    created: str
    source_digest: str = Field(description="hash of the stored workload's messages; empty = not recorded")
    stale: str = Field(description="why it is no longer served; empty while it is")
    dtypes: list[tuple[Collective, str]] = Field(
        description="collectives with the dtypes that the workload sends; empty = not recorded"
    )


class VerificationSummary(AnswerModel):
    """The verdict on step times of a real training, in one line."""

    id: str
    verdict: VerdictDocument = Field(description="on the step time: its times are µs per step")
    ranks: int
    hosts: int
    created: str


class ProvenRecommendation(RecommendationDocument):
    """A published revision with the reports of real jobs."""

    verifications: list[VerificationSummary] = Field(description="newest first, the last few")
    attestations: list[AttestationSummary] = Field(description="newest first, the last few")


class RecommendationList(AnswerModel):
    """Published revisions, newest first."""

    items: list[ProvenRecommendation]


class StudyDocument(AnswerModel):
    """A study without its trials."""

    id: str
    name: str
    cluster: ClusterDocument
    model: str
    workload_digest: str
    launcher: str
    simulated: bool = Field(description="the times come from a model, not from measurements")
    label: str = Field(description="SIMULATED, `recorded: SYSTEM, SOURCE`, or empty where they were measured")
    process_wide: list[str]
    seed: int
    state: StudyState
    reason: str
    created: str
    updated: str


class StudySummaryDocument(StudyDocument):
    """A study with its numbers so far."""

    trials: int
    best_us: float | None = Field(description="lowest median of a setting in the search, per step; not proven")
    default_us: float | None = Field(description="median of the NCCL default in the search, per step")
    recommendation: RecommendationDocument | None


class StudyList(AnswerModel):
    """One page of studies, newest first."""

    items: list[StudySummaryDocument]
    next_cursor: str | None


class PartGainDocument(AnswerModel):
    """Gain of the proven policy for one part of a merged workload."""

    name: str
    weight: float = Field(description="its steps in one step of the merged workload")
    default_us: float | None = Field(description="communication time of one step of the part; null = no proof")
    policy_us: float | None
    speedup: float | None
    interval: tuple[float, float | None] | None = Field(description="95 %; null at its end = it has none")
    note: str = Field(description="why there is no proof, or what it leaves out")


class StudyDetail(StudyDocument):
    """A study with its workload and its published recommendations."""

    workload: WorkloadDocument
    gpu_hours: float = Field(description="cost of all launches of the study")
    gain_ms: float | None = Field(None, description="communication time that a step saves; null = no gain is proven")
    gain_ms_interval: tuple[float, float] | None = Field(None, description="its 95 % interval")
    step_gain_ms: float | None = Field(
        None, description="by how much a step becomes shorter; null = what is exposed is not known"
    )
    steps_per_day: float | None = Field(
        None, description="assumed for the next two: steps as recorded, around the clock, else one per second"
    )
    gpu_hours_per_week: float | None = Field(None, description="GPU time that the job saves in a week")
    payback_hours: float | None = Field(None, description="hours of training after which the study has paid for itself")
    payback_steps: float | None = Field(
        None,
        description="training steps after which the newest recommendation has saved as much; null = nothing is gained, "
        "or the workload is a whole file",
    )
    parts: list[PartGainDocument] = Field(default=[], description="gain of each part of a merged workload")
    recommendations: list[ProvenRecommendation]


class MeasurementDocument(MessageDocument):
    """One message under one trial."""

    samples_us: list[float]
    time_us: float
    busbw_gbps: float
    wrong: int | None
    interpolated: bool


class TrialDocument(AnswerModel):
    """One launch of a setting or of a whole policy."""

    number: int
    phase: Phase
    setting: dict[str, Any] = Field(description="what was forced; {} = the default; of a policy its parameters")
    policy: dict[str, Any] | None = Field(description="launched as a whole; null = the setting was")
    label: str
    repeat: int
    outcome: Outcome
    score_us: float | None
    arm: Arm | None
    block: int
    detail: str
    wall_s: float
    gpu_seconds: float = Field(description="wall time times the GPUs that the launch held")
    place: str = Field(description="the nodes it ran on; empty where the launcher chose them")
    warm: bool = Field(description="measured by ranks that were already running; never so in proofs")
    by_plugin: bool = Field(description="the tuner plugin was loaded to force the setting")
    started: str
    measurements: list[MeasurementDocument]


class BlockDocument(AnswerModel):
    """One block of a proof, two pairs of default and policy, and the decision after it."""

    block: int
    trials: list[tuple[int, int]] = Field(description="numbers of the first trials of each pair: default, policy")
    default_us: list[float]
    policy_us: list[float]
    log_ratios: list[float] = Field(description="ln(default / policy) of each pair")
    speedup: float = Field(description="of this and all earlier blocks")
    interval: tuple[float | None, float | None]
    decision: Decision


class ArmEvidenceDocument(AnswerModel):
    """Evidence for one form of the result."""

    arm: Arm
    verdict: VerdictDocument = Field(description="as it was published")
    recomputed: VerdictDocument | None = Field(description="from the stored trials; null = nothing was launched")
    same: bool | None
    blocks: list[BlockDocument]


class EvidenceDocument(AnswerModel):
    """The newest verdict of a study, judged again from its trials."""

    model_config = ConfigDict(populate_by_name=True)
    schema_version: int = Field(alias="schema")
    recommendation: str
    study: str
    stale: str
    arms: list[ArmEvidenceDocument]


class TrialList(AnswerModel):
    """One page of the trials of a study, by number; `next_after` is null on the last, and `after` of the next else."""

    study: str
    simulated: bool
    items: list[TrialDocument]
    next_after: int | None
