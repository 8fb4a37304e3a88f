"""Stored measurements of the NCCL default on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclt.core.trial import Measurement, Outcome
from ncclt.profile.views.estimate import Curve, CurveKey, curves

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.study import Study
    from ncclt.store import Store

_MOST_STUDIES = 20
"""Most studies read, newest first: older ones add little, and each has hundreds of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurves:
    """Times of the default on one cluster.

    Attributes:
        curves: median time by size, for each kind of message.
        studies: names of their studies, newest first.
        simulated: whether they come from a model.
        recorded: `recorded: SYSTEM, SOURCE` where they were replayed; empty where they were not.
    """

    curves: Mapping[CurveKey, Curve]
    studies: tuple[str, ...]
    simulated: bool
    recorded: str = ""

    @property
    def sentence(self) -> str:
        """Say where the times come from."""
        if not self.studies:
            return "nothing is measured on this cluster: times follow from the nominal bandwidth of its links"
        count = len(self.studies)
        kind = "SIMULATED, not measured" if self.simulated else self.recorded or "measured"
        return (
            f"times of {count} stud{'y' if count == 1 else 'ies'} with the NCCL default ({kind}) where there are any, "
            "else from the nominal bandwidth of the links"
        )


def measured_curves(store: Store, cluster: Cluster) -> MeasuredCurves:
    """Collect the good launches of the default from the studies whose fingerprint is that of the cluster.

    Replayed studies count only where none was measured in place, and simulated ones where there is no other.
    """
    fitting = list(_fitting(store, cluster))
    real = [s for s in fitting if not s.label] or [s for s in fitting if not s.simulated]
    chosen = (real or fitting)[:_MOST_STUDIES]
    found: list[Measurement] = []
    used: list[str] = []
    for study in chosen:
        default = [
            measurement
            for trial in store.trials(study.id)
            if trial.setting.is_default and trial.policy is None and trial.result.outcome is Outcome.OK
            for measurement in trial.result.measurements
        ]
        if default:
            used.append(study.name)
            found += default
    return MeasuredCurves(
        curves=curves(found),
        studies=tuple(used),
        simulated=bool(used) and not real,
        recorded=real[0].label if used and real else "",
    )


def _fitting(store: Store, cluster: Cluster) -> Iterator[Study]:
    cursor: str | None = None
    while True:
        page = store.studies(limit=500, cursor=cursor, cluster=cluster.name)
        for summary in page.items:
            if not cluster.fingerprint().mismatches(summary.study.cluster.fingerprint()):
                yield summary.study
        cursor = page.next_cursor
        if cursor is None:
            return
