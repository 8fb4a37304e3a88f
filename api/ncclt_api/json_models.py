"""The JSON of the service: models generated from the core's records, and the bounds on what clients send.

Answers come from the core's own `to_document`; these models check them on the way out and describe them in OpenAPI. A
field, its type and its description are the record's own. Sizes are NCCL's tuning sizes in bytes, times are
microseconds, bandwidths are 1e9 bytes/s.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import UTC
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from ncclt.core.api_key import ApiKey
from ncclt.core.attestation import MOST_ROWS, Attestation, LogEvidence, MessageOutcome
from ncclt.core.budget import MOST_GPU_HOURS, MOST_SECONDS
from ncclt.core.cluster import Cluster
from ncclt.core.documents import Documented
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Verdict
from ncclt.core.revision import ClusterRules, HistoryEvent, RevisionState, RevisionStatus
from ncclt.core.rollout import PairedGain, RollOutArm
from ncclt.core.study import Arm, Study, StudyEntry, Trial, gpu_seconds
from ncclt.core.ticket import TICKET_PATTERN
from ncclt.core.trial import Measurement, TimesOrigin
from ncclt.core.tuning_job import FIRST_PRIORITY, LAST_PRIORITY, JobResult, JobStatus, StaleJob, TuningJob
from ncclt.core.verification import Verification
from ncclt.core.workload import MessageCalls, Workload
from ncclt.prove.rollout import ArmVerdict, RollOutVerdict
from ncclt.prove.study_summary import PartGain, summarize_study
from ncclt.store.store import Store
from ncclt_api.text import readable

_MOST = 2**53
"""Largest count that is accepted; beyond it JSON's numbers lose their last digits."""

_LONGEST_NAME = 200
_LONGEST_TEXT = 4000
_MOST_COUNT = 10**6

Model = TypeVar("Model", bound=BaseModel)
Entries = dict[str, tuple[Any, dict[str, Any]]]
"""Name in Python -> type and arguments of pydantic's `Field`."""

_NAMES: dict[type, str] = {
    PolicyVerdict: "DeliveryDocument",
    MessageOutcome: "AttestationRow",
    MessageCalls: "WorkloadMessage",
    PairedGain: "GainDocument",
    RollOutArm: "ArmDocument",
    ArmVerdict: "ArmProgress",
    RollOutVerdict: "RollOutProgress",
    ClusterRules: "RulesDocument",
    RevisionStatus: "RevisionDocument",
    HistoryEvent: "EventDocument",
    ApiKey: "KeyDocument",
}
"""Records whose component of the OpenAPI document has another name than `<Record>Document`."""


class AnswerModel(BaseModel):
    """The JSON of an answer, readable whatever was stored."""

    model_config = ConfigDict(populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _readable(cls, values: Any) -> Any:
        return readable(values)


class JsonBody(BaseModel):
    """Request body: no unknown fields, and no text or boolean in place of a number."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

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


def answer_model(
    record: type[Documented], *, only: Collection[str] = (), without: Collection[str] = ()
) -> Callable[[type[Model]], type[Model]]:
    """Return a decorator that adds the entries of a record's document to the model of an answer.

    Entries that the record's `SHAPE` hides or keeps private are left out, and so are those that the model itself has.

    Args:
        only: the entries to add; empty = all.
        without: entries to leave out.
    """

    def add(model: type[Model]) -> type[Model]:
        entries = _entries(record, answer_of)
        shown = {name: entry for name, entry in entries.items() if name in (only or entries) and name not in without}
        extended = _extend(model, shown)
        if model.__name__ == _name(record):
            _ANSWERS[record] = extended
        return extended

    return add


def input_model(
    record: type[Documented], *, only: Collection[str] = (), **bounds: Any
) -> Callable[[type[Model]], type[Model]]:
    """Return a decorator that adds the fields of a record to the model of a request's body.

    A text has at most `_LONGEST_NAME` characters and a number is from 0 to `_MOST`, unless `bounds` says otherwise.

    Args:
        only: the fields to add, with their defaults; empty = all, and all are required.
        bounds: field -> its FieldInfo, or (type, FieldInfo) where a client sends another type.
    """

    def add(model: type[Model]) -> type[Model]:
        entries: Entries = {}
        for name, (kind, arguments) in _entries(record, _INPUTS.__getitem__, optional=only).items():
            bound = bounds.get(name, _BOUNDS.get(kind))
            if name == "schema_version":
                kind, bound = Literal[record.SHAPE.schema], None
            if isinstance(bound, tuple):
                kind, bound = bound
            if bound and bound.description:
                arguments["description"] = bound.description
            if name in (only or (name,)):
                entries[name] = (Annotated[kind, bound] if bound else kind, arguments)
        _INPUTS[record] = _extend(model, entries)
        return _INPUTS[record]  # type: ignore[return-value]  # it was extended

    return add


_BOUNDS: dict[Any, Any] = {str: Field(max_length=_LONGEST_NAME), int: Field(ge=0, le=_MOST)}
_SHORT = Field(max_length=100)
_Time = Annotated[
    AwareDatetime, PlainSerializer(lambda time: time.astimezone(UTC).isoformat(timespec="milliseconds"), str)
]
_INPUTS: dict[type, type[BaseModel]] = {}
_ANSWERS: dict[type, type[BaseModel]] = {}


def _extend(model: type[Model], entries: Entries) -> type[Model]:
    added = {name: entry for name, entry in entries.items() if name not in model.model_fields}
    return create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **_pydantic_fields(added)
    )


def _pydantic_fields(entries: Entries) -> dict[str, Any]:
    return {name: (kind, Field(**arguments)) for name, (kind, arguments) in entries.items()}


def answer_of(record: type[Documented]) -> type[BaseModel]:
    """Return the model of a record inside another one, which has made its text readable."""
    if record not in _ANSWERS:
        summary = (inspect.getdoc(record) or "").partition("\n")[0]
        added = _pydantic_fields(_entries(record, answer_of))
        config = AnswerModel.model_config
        _ANSWERS[record] = create_model(_name(record), __config__=config, __doc__=summary, **added)
    return _ANSWERS[record]


def _name(record: type) -> str:
    return _NAMES.get(record, f"{record.__name__}Document")


def _entries(
    record: type[Documented], nested: Callable[[type], Any], *, optional: Collection[str] | None = None
) -> Entries:
    """Return the entries of a record's document that an answer has, in their order.

    Args:
        nested: returns the model of a record inside this one.
        optional: fields with their default; None = those that the document omits.
    """
    shape, hints, descriptions = record.SHAPE, get_type_hints(record), _descriptions(record)
    entries: Entries = {}
    optional = shape.omitted if optional is None else optional
    if shape.schema and not shape.bare:
        entries["schema_version"] = (int, {"alias": "schema"})

    def add_computed(before: str) -> None:
        for entry, attribute, place in shape.computed:
            if place == before:
                hint = hints.get(attribute) or get_type_hints(getattr(record, attribute).fget)["return"]
                entries[entry] = (_json_type(hint, nested), {"description": descriptions.get(attribute)})

    for field in fields(record):  # type: ignore[arg-type]  # every record is a dataclass
        add_computed(field.name)
        hint = hints[field.name]
        if field.name in (*shape.hidden, *shape.private):
            continue
        if field.name in shape.inlined:
            entries |= _entries(hint, nested)
            continue
        default: dict[str, Any] = {}
        if field.name in optional:
            default["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
        if field.name in shape.pairs:
            kind: Any = dict[str, _json_type(get_args(get_args(hint)[0])[1], nested)]  # type: ignore[misc]
            default = default and {"default_factory": dict}
        else:
            kind = _json_type(hint, nested, may_be_open=field.name in shape.unbounded)
        entries[field.name] = (kind, {"description": descriptions.get(field.name), **default})
    add_computed("")
    return entries


def _json_type(hint: Any, nested: Callable[[type], Any], *, may_be_open: bool = False) -> Any:
    """Return the type of a value as JSON has it."""
    kind, parts = get_origin(hint) or hint, get_args(hint)

    def convert(part: Any) -> Any:
        return _json_type(part, nested, may_be_open=may_be_open)

    if kind is UnionType:
        return reduce(or_, map(convert, parts))
    if kind is float and may_be_open:
        return float | None
    if not isinstance(kind, type):
        return hint
    if issubclass(kind, Documented):
        return nested(kind)
    if kind is Mapping:
        return dict[parts[0], convert(parts[1])]  # type: ignore[misc,valid-type]
    if kind is frozenset or parts[1:] == (...,):
        return list[convert(parts[0])]  # type: ignore[misc]
    if issubclass(kind, tuple):
        return tuple[*map(convert, parts or get_type_hints(kind).values())]  # type: ignore[misc]
    return hint


_JSON_WORDS = {"None": "null", "True": "true", "False": "false"}


def _descriptions(record: type) -> dict[str, str]:
    """Return the description of each attribute in a record's docstring, in the words of JSON."""
    _, _, text = (inspect.getdoc(record) or "").partition("Attributes:\n")
    attributes = re.findall(r"^    (\w[\w, ]*): ((?:.|\n {8})*)", text.partition("\n\n")[0], flags=re.MULTILINE)
    descriptions: dict[str, str] = {}
    for names, description in attributes:
        words = re.sub(r"(?<!\.)\.$", "", " ".join(description.split()))
        descriptions |= dict.fromkeys(
            names.split(", "), re.sub(r"\b(None|True|False)\b", lambda word: _JSON_WORDS[word[0]], words)
        )
    return descriptions


class Page(AnswerModel):
    """One page of a list.

    Attributes:
        next_cursor: `cursor` of the next page; null = this is the last one.
    """

    next_cursor: str | None


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


@answer_model(Verdict)
class VerdictDocument(AnswerModel):
    """Verdict of the interleaved A/B test against the NCCL default."""


@answer_model(Attestation)
class AttestationDocument(AnswerModel):
    """Attestation: the effect of a recommendation in one job."""


class AttestationList(Page):
    """One page of the attestations of a recommendation, newest first."""

    items: list[AttestationDocument]


@answer_model(Attestation, only=("id", "effect", "form", "reason", "created"))
class AttestationSummary(AnswerModel):
    """An attestation in one line."""


@answer_model(Verification, only=("id", "verdict", "ranks", "hosts", "created"))
class VerificationSummary(AnswerModel):
    """The verdict on step times of a real training, in one line."""


@input_model(MessageOutcome, reason=Field(max_length=_LONGEST_TEXT))
class NewAttestationRow(JsonBody):
    """One row of the attestation."""


@input_model(
    LogEvidence,
    kind=(Literal["plugin-report", "nccl-log"], Field()),
    nccl_version=_SHORT,
    table=_SHORT,
    checksum=_SHORT,
    not_in_use=Field(max_length=1000),
    count=Field(ge=1, le=_MOST),
)
class NewLogEvidence(JsonBody):
    """One source of facts about a job."""


@input_model(
    Attestation,
    id=Field(pattern="^[0-9a-f]{32}$", description="hash of the content"),
    recommendation=Field(min_length=1, max_length=_LONGEST_NAME),
    reason=Field(max_length=_LONGEST_TEXT),
    rows=Field(max_length=MOST_ROWS),
    sources=Field(max_length=1000),
    notes=(list[Annotated[str, Field(max_length=_LONGEST_TEXT)]], Field(max_length=100)),
    evidence=_SHORT,
    created=(_Time, Field()),
)
class NewAttestation(JsonBody):
    """Attestation: the effect of a recommendation in one job."""

    ticket: str = Field(pattern=f"^{TICKET_PATTERN}$", description="of the answer that the job started with")


@answer_model(PairedGain)
class GainDocument(AnswerModel):
    """Speed-up of an arm over the control, by pairs of jobs."""


@answer_model(Cluster)
class ClusterDocument(AnswerModel):
    """One kind of node and how many there are."""


class CatalogueCluster(ClusterDocument):
    """A cluster of the catalogue."""

    shipped: bool = Field(description="ships with ncclt; false = added here")


class ClusterList(Page):
    """One page of the clusters of the catalogue, by name."""

    items: list[CatalogueCluster]


@answer_model(Workload)
class WorkloadDocument(AnswerModel):
    """The messages of one training step."""

    digest: str = Field(description="hash of the messages")
    bytes_per_step: float


class CatalogueWorkload(WorkloadDocument):
    """A workload of the catalogue."""

    shipped: bool = Field(description="ships with ncclt; false = added here")


class WorkloadList(Page):
    """One page of the workloads of the catalogue, by name."""

    items: list[CatalogueWorkload]


@answer_model(Recommendation)
class RecommendationDocument(AnswerModel):
    """A published revision."""


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


@answer_model(Study, without=("workload",))
class StudyDocument(AnswerModel):
    """A study without its trials."""

    model: str
    workload_digest: str
    label: str = Field(description="SIMULATED, `recorded: SYSTEM, SOURCE`, or empty where they were measured")


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


@answer_model(PartGain)
class PartGainDocument(AnswerModel):
    """Gain of the validated policy for one part of a merged workload."""


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


@answer_model(Measurement)
class MeasurementDocument(BaseModel):
    """One message under one trial."""


@answer_model(Trial)
class TrialDocument(AnswerModel):
    """One launch of a setting or of a whole policy."""

    setting: dict[str, Any] = Field(description="forced setting; {} = the NCCL default; of a policy its parameters")
    policy: dict[str, Any] | None = Field(description="the policy that was launched; null = the setting was")
    gpu_seconds: float = Field(description="wall time times the GPUs that the launch held")


class TrialList(Page):
    """One page of the trials of a study, by number."""

    study: str
    simulated: bool
    items: list[TrialDocument]


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

    schema_version: int = Field(alias="schema")
    recommendation: str
    study: str
    origin: TimesOrigin
    stale: str
    arms: list[ArmEvidenceDocument]
    today: TodayEvidence | None


@input_model(
    TuningJob,
    only=("trials", "seconds", "gpu_hours", "blocks", "seed", "prove_variables", "priority"),
    trials=Field(ge=1, le=_MOST_COUNT, description="max search trials, including earlier runs"),
    seconds=Field(gt=0, le=MOST_SECONDS, description="max seconds of search"),
    gpu_hours=Field(gt=0, le=MOST_GPU_HOURS, description="max GPU-hours of the study"),
    blocks=Field(ge=1, le=_MOST_COUNT, description="max blocks of the validation"),
    seed=Field(ge=0, le=2**31 - 1),
    prove_variables=Field(description="also validate the policy in variables alone"),
    priority=Field(ge=FIRST_PRIORITY, le=LAST_PRIORITY),
)
class JobLimits(JsonBody):
    """Limits of a tuning job."""


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


@answer_model(JobResult, without=("schema_version",))
class JobResultDocument(AnswerModel):
    """Result of a tuning job."""


@answer_model(JobStatus, without=("job",))
@answer_model(TuningJob, without=("schema_version",))
class JobDocument(AnswerModel):
    """A tuning job with its state."""


class JobList(Page):
    """One page of jobs, newest first."""

    items: list[JobDocument]


@answer_model(StaleJob, without=("status",))
class StaleJobDocument(AnswerModel):
    """A stale recommendation and the job that renews it."""

    job: JobDocument | None = Field(description="null = refused")


class StaleJobList(AnswerModel):
    """Stale recommendations, newest first; those that a newer revision replaces are left out."""

    items: list[StaleJobDocument]


LAST_SHOWN = 5
"""Verifications and attestations that come with a recommendation; /v1/attestations has more."""


def cluster_document(cluster: Cluster, shipped: bool) -> CatalogueCluster:
    """Return a cluster of the catalogue."""
    return CatalogueCluster.model_validate(cluster.to_document() | {"shipped": shipped})


def workload_document(workload: Workload, shipped: bool) -> CatalogueWorkload:
    """Return a workload of the catalogue."""
    return CatalogueWorkload.model_validate(_workload_entries(workload) | {"shipped": shipped})


def proven_recommendation(store: Store, recommendation: Recommendation) -> ProvenRecommendation:
    """Return a published revision with the last verifications and attestations."""
    reports = {
        "verifications": store.records.verifications(recommendation=recommendation.id, limit=LAST_SHOWN),
        "attestations": store.records.attestations([recommendation.id], limit=LAST_SHOWN),
    }
    return ProvenRecommendation.model_validate(
        recommendation.to_document()
        | {"state": store.revisions.status(recommendation.id).state}
        | {name: [record.to_document() for record in records] for name, records in reports.items()}
    )


def study_summary_document(entry: StudyEntry) -> StudySummaryDocument:
    """Return a study with its numbers so far."""
    numbers = {"trials": entry.trials, "best_us": entry.best_us, "default_us": entry.default_us}
    published = entry.recommendation and entry.recommendation.to_document()
    return StudySummaryDocument.model_validate(_study_entries(entry.study) | numbers | {"recommendation": published})


def study_detail(store: Store, study: Study, recommendations: tuple[Recommendation, ...]) -> StudyDetail:
    """Return a study with its workload and its recommendations, newest first."""
    trials = store.trials.with_proof(study.id)
    summary = summarize_study(study, trials, recommendations[0]).to_document() if recommendations else {}
    return StudyDetail.model_validate(
        _study_entries(study)
        | summary
        | {
            "workload": _workload_entries(study.workload),
            "gpu_hours": gpu_seconds(trials, study.cluster) / 3600,
            "recommendations": [proven_recommendation(store, r) for r in recommendations],
        }
    )


def trial_document(trial: Trial, cluster: Cluster) -> TrialDocument:
    """Return a trial with its measurements.

    Args:
        cluster: of the study, for the GPUs that a launch holds.
    """
    return TrialDocument.model_validate(trial.to_document() | {"gpu_seconds": gpu_seconds([trial], cluster)})


def _workload_entries(workload: Workload) -> dict[str, Any]:
    return workload.to_document() | {"digest": workload.digest(), "bytes_per_step": workload.bytes_per_step}


def _study_entries(study: Study) -> dict[str, Any]:
    names = {"model": study.workload.name, "workload_digest": study.workload.digest(), "label": study.label}
    return study.to_document() | names
