"""The core's values as documents of `schemas`."""

from __future__ import annotations

from typing import Any

from ncclt.core.cluster import Cluster
from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study, Trial, gpu_seconds
from ncclt.core.trial import Measurement
from ncclt.core.workload import Workload
from ncclt.prove.study_summary import summarize_study
from ncclt.store import CatalogueEntry, StudyEntry
from ncclt.store.store import Store
from ncclt_api.schemas import (
    CatalogueCluster,
    CatalogueWorkload,
    MeasurementDocument,
    ProvenRecommendation,
    RecommendationDocument,
    StudyDetail,
    StudySummaryDocument,
    TrialDocument,
    WorkloadDocument,
)

LAST_SHOWN = 5
"""Verifications and attestations that come with a recommendation; /v1/attestations has more."""


def cluster_document(entry: CatalogueEntry[Cluster]) -> CatalogueCluster:
    """Return a cluster of the catalogue."""
    return CatalogueCluster.model_validate(entry.item.to_document() | {"shipped": entry.shipped})


def workload_document(entry: CatalogueEntry[Workload]) -> CatalogueWorkload:
    """Return a workload of the catalogue."""
    return CatalogueWorkload.model_validate(_workload_fields(entry.item) | {"shipped": entry.shipped})


def proven_recommendation(store: Store, recommendation: Recommendation) -> ProvenRecommendation:
    """Return a published revision with the last verifications and attestations."""
    verifications = store.records.verifications(recommendation=recommendation.id, limit=LAST_SHOWN)
    attestations = store.records.attestations([recommendation.id], limit=LAST_SHOWN)
    return ProvenRecommendation.model_validate(
        recommendation.to_document()
        | {
            "verifications": [
                {
                    "id": v.id,
                    "verdict": v.verdict.to_document(),
                    "ranks": v.ranks,
                    "hosts": v.hosts,
                    "created": v.created,
                }
                for v in verifications
            ],
            "attestations": [
                {"id": a.id, "effect": a.effect, "form": a.form, "reason": a.reason, "created": a.created}
                for a in attestations
            ],
        }
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
    return StudyDetail.model_validate(
        _study_fields(study)
        | {
            "workload": WorkloadDocument.model_validate(_workload_fields(study.workload)),
            **_cost(store, study, recommendations),
            "recommendations": [proven_recommendation(store, r) for r in recommendations],
        }
    )


def _cost(store: Store, study: Study, recommendations: tuple[Recommendation, ...]) -> dict[str, Any]:
    trials = store.trials.find(study.id)
    newest = next(iter(recommendations), None)
    told = summarize_study(study, trials, newest).to_document() if newest else {}
    told.pop("use", None)  # its command depends on how this service is reached; the page shows it
    return {"gpu_hours": gpu_seconds(trials, study.cluster) / 3600, **told}


def trial_document(trial: Trial, cluster: Cluster) -> TrialDocument:
    """Return a trial with its measurements.

    Args:
        trial: of the study.
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
        measurements=[_measurement_document(m) for m in trial.result.measurements],
    )


def _measurement_document(measurement: Measurement) -> MeasurementDocument:
    return MeasurementDocument(
        **measurement.message.to_document(),
        samples_us=list(measurement.samples_us),
        time_us=measurement.time_us,
        busbw_gbps=measurement.busbw_gbps,
        wrong=measurement.wrong,
        interpolated=measurement.interpolated,
    )


def _workload_fields(workload: Workload) -> dict[str, Any]:
    return workload.to_document() | {"digest": workload.digest(), "bytes_per_step": workload.bytes_per_step}


def _study_fields(study: Study) -> dict[str, Any]:
    names = {"model": study.workload.name, "workload_digest": study.workload.digest(), "label": study.label}
    return study.to_document() | names
