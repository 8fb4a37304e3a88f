"""The JSON of the service: the core's documents as clients see them, and the bounds on what clients send.

Values come from the core's own `to_document`; these classes check them on the way out and describe them in OpenAPI.
Sizes are NCCL's tuning sizes in bytes, times are microseconds, bandwidths are 1e9 bytes/s.
"""

from __future__ import annotations

from datetime import UTC
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.attestation import MOST_ROWS, Effect, Form, RowState
from ncclt.core.budget import MOST_GPU_HOURS, MOST_SECONDS
from ncclt.core.cluster import LINK_CLASSES, Cluster
from ncclt.core.message import Collective
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.revision import RevisionState
from ncclt.core.study import Arm, Phase, Study, StudyEntry, StudyState, Trial, gpu_seconds
from ncclt.core.ticket import TICKET_PATTERN
from ncclt.core.trial import Outcome
from ncclt.core.tuning_job import FIRST_PRIORITY, LAST_PRIORITY, USUAL_PRIORITY, JobState, TuningJob
from ncclt.core.verification import Verification
from ncclt.core.workload import Workload
from ncclt.prove.study_summary import summarize_study
from ncclt.store.store import Store
from ncclt_api.text import AnswerModel

_MOST = 2**53
"""Largest count that is accepted; beyond it JSON's numbers lose their last digits."""

_USUAL = TuningJob(id="", cluster="", model="")
_LONGEST_NAME = 200
_MOST_COUNT = 10**6


class JsonBody(BaseModel):
    """Request body: no unknown fields, and no text or boolean in place of a number."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_other_type(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        types = {annotation, *get_args(annotation)}
        if bool in types and not isinstance(value, bool):
            raise ValueError("must be true or false")
        if types & {int, float} and isinstance(value, bool | str):
            raise ValueError("must be a whole number" if int in types else "must be a number")
        return value


class AttestationRow(AnswerModel):
    """One kind of message; size_bytes and group_size 0 = not known, or any."""

    collective: Collective
    size_bytes: int
    group_size: int
    wanted: str
    used: str
    calls: int
    state: RowState
    reason: str


class LogEvidenceDocument(AnswerModel):
    """Reports of the plugin or logs of NCCL with the same facts."""

    kind: str
    nccl_version: str
    table: str
    checksum: str
    not_in_use: str
    ranks: int
    nodes: int
    count: int


class NewAttestationRow(JsonBody):
    """One row of the attestation."""

    collective: Collective
    size_bytes: int = Field(ge=0, le=_MOST)
    group_size: int = Field(ge=0, le=_MOST)
    wanted: str = Field(max_length=200)
    used: str = Field(max_length=200)
    calls: int = Field(ge=0, le=_MOST)
    state: RowState
    reason: str = Field(max_length=4000)


class NewLogEvidence(JsonBody):
    """One source of facts about a job."""

    kind: Literal["plugin-report", "nccl-log"]
    nccl_version: str = Field(max_length=100)
    table: str = Field(max_length=100)
    checksum: str = Field(max_length=100)
    not_in_use: str = Field(max_length=1000)
    ranks: int = Field(ge=0, le=_MOST)
    nodes: int = Field(ge=0, le=_MOST)
    count: int = Field(ge=1, le=_MOST)


class NewAttestation(JsonBody):
    """Attestation: the effect of a recommendation in one job."""

    model_config = ConfigDict(populate_by_name=True)

    schema_version: Literal[1] = Field(alias="schema")
    id: str = Field(pattern="^[0-9a-f]{32}$", description="hash of the content")
    recommendation: str = Field(min_length=1, max_length=200)
    cluster: str = Field(max_length=200)
    model: str = Field(max_length=200)
    form: Form
    effect: Effect
    reason: str = Field(max_length=4000)
    calls_as_wanted: int = Field(ge=0, le=_MOST)
    calls_differing: int = Field(ge=0, le=_MOST)
    calls_unruled: int = Field(ge=0, le=_MOST)
    rows: list[NewAttestationRow] = Field(max_length=MOST_ROWS)
    sources: list[NewLogEvidence] = Field(max_length=1000)
    hosts: int = Field(ge=0, le=_MOST)
    notes: list[Annotated[str, Field(max_length=4000)]] = Field(max_length=100)
    evidence: str = Field(max_length=100, description="hash of the files; tells jobs apart")
    created: AwareDatetime
    ticket: str = Field(pattern=f"^{TICKET_PATTERN}$", description="of the answer that the job started with")

    @field_serializer("created")
    def _iso(self, value: AwareDatetime) -> str:
        return value.astimezone(UTC).isoformat(timespec="milliseconds")


class AttestationDocument(AnswerModel):
    """Attestation: the effect of a recommendation in one job."""

    model_config = ConfigDict(populate_by_name=True)

    schema_version: int = Field(alias="schema")
    id: str
    recommendation: str
    cluster: str
    model: str
    form: Form
    effect: Effect
    reason: str
    calls_as_wanted: int
    calls_differing: int
    calls_unruled: int
    rows: list[AttestationRow]
    sources: list[LogEvidenceDocument]
    hosts: int
    notes: list[str]
    evidence: str
    created: str


class Page(AnswerModel):
    """One page of a list.

    Attributes:
        next_cursor: `cursor` of the next page; null = this is the last one.
    """

    next_cursor: str | None


class AttestationList(Page):
    """One page of the attestations of a recommendation, newest first."""

    items: list[AttestationDocument]


class AttestationSummary(AnswerModel):
    """An attestation in one line."""

    id: str
    effect: Effect
    form: Form
    reason: str
    created: str


class Health(AnswerModel):
    """Liveness or readiness of the service."""

    status: str
    version: str
    migration: str | None = Field(default=None, description="schema revision of the store")
    away: list[str] = Field(default=[], description="missing parts while cached answers are served")


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
    recorded: bool = Field(description="times were recorded elsewhere and replayed")
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
        None, description="`getEnvironment` only: recommendations for other job shapes, newest first"
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
    driver: str = Field(default="", description="NVIDIA driver; empty = unknown")
    description: str
    sources: list[str]
    site_variables: dict[str, str] = Field(
        default_factory=dict, description="NCCL_* variables of the site that trials had; empty = none, or not launched"
    )


class CatalogueCluster(ClusterDocument):
    """A cluster of the catalogue."""

    shipped: bool = Field(description="ships with ncclt; false = added here")


class ClusterList(Page):
    """One page of the clusters of the catalogue, by name."""

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
    """Provenance of a workload."""

    source: str
    created: str
    detail: dict[str, str]
    world_size: int
    ranks_read: list[int]
    steps: int
    notes: list[str]
    whole_file: bool = Field(default=False, description="calls of the whole source, not of one step")


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

    shipped: bool = Field(description="ships with ncclt; false = added here")


class WorkloadList(Page):
    """One page of the workloads of the catalogue, by name."""

    items: list[CatalogueWorkload]


class FingerprintDocument(AnswerModel):
    """Conditions under which a recommendation is valid."""

    gpu: str
    link_class: str
    fabric: str
    nodes: int
    gpus_per_node: int
    nccl_version: str
    topology_hash: str
    driver: str = Field(default="", description="NVIDIA driver of the measurement; empty = unknown")
    site_variables: dict[str, str] = Field(
        default_factory=dict, description="NCCL_* variables of the site that trials had; empty = none, or not launched"
    )


class RuleDocument(AnswerModel):
    """Choice for one collective in one range of sizes, both ends inclusive; null = left to NCCL."""

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
    """Verdict of the interleaved A/B test against the NCCL default."""

    decision: Decision
    reason: str
    speedup: float
    interval: tuple[float | None, float | None] = Field(description="95 %, valid at any end; null = without bound")
    blocks: int
    default_us: float
    policy_us: float = Field(
        description="median of its launches; the paired estimate shown elsewhere is default_us / speedup"
    )
    min_effect: float = Field(description="minimum gain, as a share")


class DeliveryDocument(AnswerModel):
    """One form of the result with the verdict on exactly that form."""

    policy: PolicyDocument
    verdict: VerdictDocument
    over_today: VerdictDocument | None = Field(
        default=None, description="verdict against what the job ran; null = it set no tuning variables"
    )


class TodayDocument(AnswerModel):
    """The tuning variables that the job set when it was measured."""

    variables: dict[str, str]
    default: VerdictDocument = Field(
        description="verdict of the NCCL default against them; tuned = the variables cost time"
    )


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
    simulated: bool = Field(description="times come from a model, not from measurements")
    launcher: str
    recorded: str = Field(default="", description="`recorded: SYSTEM, SOURCE` where the times were replayed")
    created: str
    source_digest: str = Field(description="hash of the stored workload's messages; empty = not recorded")
    stale: str = Field(description="reason why it is no longer served; empty while it is")
    dtypes: list[tuple[Collective, str]] = Field(
        description="collectives with the dtypes that the workload sends; empty = not recorded"
    )
    groups: list[tuple[int, bool]] = Field(
        description="measured process groups: ranks, and whether they span nodes; empty = not recorded"
    )
    today: TodayDocument | None = Field(default=None, description="null = the job set no tuning variables")


class VerificationSummary(AnswerModel):
    """The verdict on step times of a real training, in one line."""

    id: str
    verdict: VerdictDocument = Field(description="on the step time: its times are µs per step")
    ranks: int
    hosts: int
    created: str


class ListedRecommendation(RecommendationDocument):
    """A published revision with its state."""

    state: RevisionState


class ProvenRecommendation(ListedRecommendation):
    """A published revision with its state and the reports of real jobs."""

    verifications: list[VerificationSummary] = Field(description="newest first, the last few")
    attestations: list[AttestationSummary] = Field(description="newest first, the last few")


class RecommendationList(Page):
    """One page of published revisions, newest first."""

    items: list[ListedRecommendation]


class StudyDocument(AnswerModel):
    """A study without its trials."""

    id: str
    name: str
    cluster: ClusterDocument
    model: str
    workload_digest: str
    launcher: str
    simulated: bool = Field(description="times come from a model, not from measurements")
    label: str = Field(description="SIMULATED, `recorded: SYSTEM, SOURCE`, or empty where they were measured")
    process_wide: list[str]
    seed: int
    today: dict[str, str] = Field(default_factory=dict, description="tuning variables of the job, an arm of its own")
    state: StudyState
    reason: str
    created: str
    updated: str


class StudySummaryDocument(StudyDocument):
    """A study with its numbers so far."""

    trials: int
    best_us: float | None = Field(
        description="lowest median of a setting in the search, per step, not validated; null = no trial yet, or the "
        "verdict of `recommendation` has times"
    )
    default_us: float | None = Field(
        description="median of the NCCL default in the search, per step; null as for `best_us`"
    )
    recommendation: RecommendationDocument | None


class StudyList(Page):
    """One page of studies, newest first."""

    items: list[StudySummaryDocument]


class PartGainDocument(AnswerModel):
    """Gain of the validated policy for one part of a merged workload."""

    name: str
    weight: float = Field(description="its steps in one step of the merged workload")
    default_us: float | None = Field(description="communication time of one step of the part; null = no result")
    policy_us: float | None
    speedup: float | None
    interval: tuple[float, float | None] | None = Field(description="95 %; null at its end = it has none")
    note: str = Field(description="reason why there is no result, or the messages that it leaves out")


class StudyDetail(StudyDocument):
    """A study with its workload and its published recommendations."""

    workload: WorkloadDocument
    gpu_hours: float = Field(description="cost of all launches of the study")
    gain_ms: float | None = Field(None, description="communication time saved per step; null = no validated gain")
    gain_ms_interval: tuple[float, float] | None = Field(None, description="its 95 % interval")
    step_gain_ms: float | None = Field(None, description="savings of step time; null = the exposed part is not known")
    steps_per_day: float | None = Field(
        None, description="assumed for the next two: steps as recorded, around the clock, else one per second"
    )
    gpu_hours_per_week: float | None = Field(None, description="GPU-hours saved per week")
    payback_hours: float | None = Field(None, description="hours of training until the study has paid for itself")
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
    measured_bytes: int | None = Field(
        None, description="size whose time this is, where the benchmark cannot send the message's; null = it can"
    )


class TrialDocument(AnswerModel):
    """One launch of a setting or of a whole policy."""

    number: int
    phase: Phase
    setting: dict[str, Any] = Field(description="forced setting; {} = the NCCL default; of a policy its parameters")
    policy: dict[str, Any] | None = Field(description="the policy that was launched; null = the setting was")
    label: str
    repeat: int
    outcome: Outcome
    score_us: float | None
    arm: Arm | None
    block: int
    detail: str
    wall_s: float
    gpu_seconds: float = Field(description="wall time times the GPUs that the launch held")
    place: str = Field(description="nodes of the trial; empty where the launcher chose them")
    warm: bool = Field(description="measured by persistent workers; never in validation")
    by_plugin: bool = Field(description="forced by the tuner plugin")
    started: str
    measurements: list[MeasurementDocument]


class BlockDocument(AnswerModel):
    """One block of a validation: two pairs of default and policy, and the decision after it."""

    block: int
    trials: list[tuple[int, int]] = Field(description="numbers of the first trials of each pair: default, policy")
    default_us: list[float]
    policy_us: list[float]
    log_ratios: list[float] = Field(description="ln(default / policy) of each pair")
    speedup: float = Field(description="of this and all earlier blocks")
    interval: tuple[float | None, float | None]
    decision: Decision


class RecomputedVerdict(AnswerModel):
    """A verdict as it was published, and judged again from the stored trials."""

    verdict: VerdictDocument
    recomputed: VerdictDocument
    same: bool


class ArmEvidenceDocument(AnswerModel):
    """Evidence for one form of the result."""

    arm: Arm
    verdict: VerdictDocument = Field(description="as it was published")
    recomputed: VerdictDocument | None = Field(description="from the stored trials; null = nothing was launched")
    same: bool | None
    blocks: list[BlockDocument]
    over_today: RecomputedVerdict | None = Field(default=None, description="null = the job set no tuning variables")


class TodayEvidence(AnswerModel):
    """Evidence for the NCCL default in comparison with the tuning variables that the job set."""

    variables: dict[str, str]
    over_today: RecomputedVerdict


class EvidenceDocument(AnswerModel):
    """The newest verdict of a study, judged again from its trials."""

    model_config = ConfigDict(populate_by_name=True)
    schema_version: int = Field(alias="schema")
    recommendation: str
    study: str
    stale: str
    arms: list[ArmEvidenceDocument]
    today: TodayEvidence | None


class TrialList(Page):
    """One page of the trials of a study, by number."""

    study: str
    simulated: bool
    items: list[TrialDocument]


LAST_SHOWN = 5
"""Verifications and attestations that come with a recommendation; /v1/attestations has more."""


class JobLimits(JsonBody):
    """Limits of a tuning job."""

    trials: int = Field(_USUAL.trials, ge=1, le=_MOST_COUNT, description="max search trials, including earlier runs")
    seconds: float | None = Field(None, gt=0, le=MOST_SECONDS, description="max seconds of search")
    gpu_hours: float | None = Field(None, gt=0, le=MOST_GPU_HOURS, description="max GPU-hours of the study")
    blocks: int = Field(_USUAL.blocks, ge=1, le=_MOST_COUNT, description="max blocks of the validation")
    seed: int = Field(0, ge=0, le=2**31 - 1)
    prove_variables: bool = Field(False, description="also validate the policy in variables alone")
    priority: int = Field(USUAL_PRIORITY, ge=FIRST_PRIORITY, le=LAST_PRIORITY, description="1 = first, 9 = last")


class NewStaleJobs(JobLimits):
    """Request to renew stale recommendations."""

    cluster: str | None = Field(None, min_length=1, max_length=_LONGEST_NAME, description="only those of this cluster")


class NewJob(JobLimits):
    """A tuning job that is requested."""

    cluster: str = Field(min_length=1, max_length=_LONGEST_NAME, description="name, see GET /v1/clusters")
    model: str | None = Field(
        None, min_length=1, max_length=_LONGEST_NAME, description="name of the workload, see GET /v1/workloads"
    )
    profile: dict[str, Any] | None = Field(
        None, description="a workload instead of its name, as GET /v1/workloads/NAME returns it; stored under its name"
    )
    nodes: int | None = Field(None, ge=1, le=_MOST_COUNT, description="null = all nodes of the cluster")
    gpus_per_node: int | None = Field(None, ge=1, le=_MOST_COUNT)
    nccl_version: str | None = Field(None, max_length=40)
    again: bool = Field(False, description="measure again even if this was tuned before")

    @model_validator(mode="after")
    def _one_workload(self) -> NewJob:
        if (self.model is None) == (self.profile is None):
            raise ValueError("give one of model and profile")
        return self


class JobResultDocument(AnswerModel):
    """Result of a tuning job."""

    state: JobState
    reason: str
    study: str = Field(description="id of its study; empty = none")
    trials: int
    recommendation: str = Field(description="id of the published recommendation; empty = none")
    decision: str
    simulated: bool
    recorded: str = Field(description="the recording that was replayed; empty = none")


class JobDocument(AnswerModel):
    """A tuning job with its state."""

    id: str
    cluster: str
    model: str
    nodes: int | None
    gpus_per_node: int | None
    nccl_version: str | None
    trials: int
    seconds: float | None
    gpu_hours: float | None
    blocks: int
    seed: int
    prove_variables: bool
    priority: int
    study: str = Field(description="name of its study; jobs that request the same share one")
    created: str
    by: str = Field(description="key that submitted it; empty = no key")
    state: JobState
    cancelling: bool = Field(description="cancellation requested while it runs")
    worker: str
    started: str = Field(description="ISO time; empty = not yet")
    ended: str = Field(description="ISO time; empty = not yet")
    taken_over: int = Field(description="times that a dead worker's job was taken over")
    result: JobResultDocument | None


class JobList(Page):
    """One page of jobs, newest first."""

    items: list[JobDocument]


class StaleJobDocument(AnswerModel):
    """A stale recommendation and the job that renews it."""

    recommendation: str = Field(description="id of the stale revision")
    stale: str = Field(description="reason why it is stale")
    cluster: str
    model: str
    nodes: int
    gpus_per_node: int
    nccl_version: str
    job: JobDocument | None = Field(description="null = refused")
    is_new: bool = Field(description="false = already queued or running")
    refused: str = Field(description="reason why there is no job; empty = there is one")


class StaleJobList(AnswerModel):
    """Stale recommendations, newest first; those that a newer revision replaces are left out."""

    items: list[StaleJobDocument]


def cluster_document(cluster: Cluster, shipped: bool) -> CatalogueCluster:
    """Return a cluster of the catalogue."""
    return CatalogueCluster.model_validate(cluster.to_document() | {"shipped": shipped})


def workload_document(workload: Workload, shipped: bool) -> CatalogueWorkload:
    """Return a workload of the catalogue."""
    return CatalogueWorkload.model_validate(_workload_fields(workload) | {"shipped": shipped})


def proven_recommendation(store: Store, recommendation: Recommendation) -> ProvenRecommendation:
    """Return a published revision with the last verifications and attestations."""
    verifications = store.records.verifications(recommendation=recommendation.id, limit=LAST_SHOWN)
    attestations = store.records.attestations([recommendation.id], limit=LAST_SHOWN)
    return ProvenRecommendation.model_validate(
        recommendation.to_document()
        | {
            "state": store.revisions.status(recommendation.id).state,
            "verifications": [verification_summary(one) for one in verifications],
            "attestations": [
                {"id": a.id, "effect": a.effect, "form": a.form, "reason": a.reason, "created": a.created}
                for a in attestations
            ],
        }
    )


def verification_summary(found: Verification) -> VerificationSummary:
    """Return a verification without its command line, environments and launches."""
    return VerificationSummary(
        id=found.id,
        verdict=VerdictDocument.model_validate(found.verdict.to_document()),
        ranks=found.ranks,
        hosts=found.hosts,
        created=found.created,
    )


def recommendation_document(recommendation: Recommendation) -> RecommendationDocument:
    """Return a published revision."""
    return RecommendationDocument.model_validate(recommendation.to_document())


def study_summary_document(summary: StudyEntry) -> StudySummaryDocument:
    """Return a study with its numbers so far."""
    published = summary.recommendation
    return StudySummaryDocument.model_validate(
        _study_fields(summary.study)
        | {
            "trials": summary.trials,
            "best_us": summary.best_us,
            "default_us": summary.default_us,
            "recommendation": recommendation_document(published) if published else None,
        }
    )


def study_detail(store: Store, study: Study, recommendations: tuple[Recommendation, ...]) -> StudyDetail:
    """Return a study with its workload and its recommendations, newest first."""
    trials = store.trials.with_proof(study.id)
    summary = summarize_study(study, trials, recommendations[0]).to_document() if recommendations else {}
    summary.pop("use", None)  # its command depends on how this service is reached; the page shows it
    return StudyDetail.model_validate(
        _study_fields(study)
        | {
            "workload": WorkloadDocument.model_validate(_workload_fields(study.workload)),
            "gpu_hours": gpu_seconds(trials, study.cluster) / 3600,
            **summary,
            "recommendations": [proven_recommendation(store, r) for r in recommendations],
        }
    )


def trial_document(trial: Trial, cluster: Cluster) -> TrialDocument:
    """Return a trial with its measurements.

    Args:
        cluster: of the study, for the GPUs that a launch holds.
    """
    return TrialDocument(
        number=trial.number,
        phase=trial.phase,
        setting=trial.setting.to_document(),
        policy=trial.policy.to_document() if trial.policy else None,
        label=trial.label,
        repeat=trial.repeat,
        outcome=trial.result.outcome,
        score_us=trial.score_us,
        arm=trial.arm,
        block=trial.block,
        detail=trial.result.detail,
        wall_s=trial.result.wall_s,
        gpu_seconds=gpu_seconds([trial], cluster),
        place=trial.result.place,
        warm=trial.result.persistent,
        by_plugin=trial.result.by_plugin,
        started=trial.started,
        measurements=[
            MeasurementDocument(
                **one.message.to_document(),
                samples_us=list(one.samples_us),
                time_us=one.time_us,
                busbw_gbps=one.busbw_gbps,
                wrong=one.wrong,
                interpolated=one.interpolated,
                measured_bytes=one.measured_bytes,
            )
            for one in trial.result.measurements
        ],
    )


def _workload_fields(workload: Workload) -> dict[str, Any]:
    return workload.to_document() | {"digest": workload.digest(), "bytes_per_step": workload.bytes_per_step}


def _study_fields(study: Study) -> dict[str, Any]:
    names = {"model": study.workload.name, "workload_digest": study.workload.digest(), "label": study.label}
    return study.to_document() | names


class GainDocument(BaseModel):
    """Speed-up of an arm over the control, by pairs of jobs."""

    estimate: float = Field(description="ratio of step times, control over arm")
    interval: tuple[float | None, float | None] = Field(
        description="95 %, for all arms together; null = open, for too few pairs"
    )
    pairs: int = Field(description="of jobs")
