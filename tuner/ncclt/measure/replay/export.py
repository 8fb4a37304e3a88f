"""A study as a landscape: the table that `--landscape` reads, without hosts and users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncclt.core.cluster import Cluster
from ncclt.core.plural import count_noun
from ncclt.core.study import Arm, Study, Trial
from ncclt.core.trial import Measurement, Outcome
from ncclt.measure.replay.landscape_rows import LandscapeRow, build_row


def export(study: Study, trials: Iterable[Trial], *, version: str) -> tuple[list[LandscapeRow], tuple[str, ...]]:
    """Return every good measurement of a study as a row, and what was left out and why."""
    launched = [t for t in trials if t.result.outcome is Outcome.OK and t.arm is not Arm.TODAY]
    good = [(t, m) for t in launched for m in t.result.measurements]
    measured = [(t, m) for t, m in good if m.message.group_size in (0, study.cluster.world_size) and not m.interpolated]
    # Messages that a benchmark rounds to the same size share one time.
    unique = list({(t.number, m.sent): (t, m) for t, m in reversed(measured)}.values())[::-1]
    parts = {m.message for _, m in good if m.message.group_size not in (0, study.cluster.world_size)}
    between = sum(m.interpolated for _, m in good)
    notes = []
    if parts:
        notes.append(f"{len(parts)} messages of smaller groups were left out: a landscape is of one shape of job")
    if between:
        notes.append(f"{between} interpolated times were left out: they were not measured")
    if rounded := {m.message for _, m in measured if m.measured_bytes}:
        notes.append(f"{count_noun(len(rounded), 'message')} exported at the nearest size that the benchmark can send")
    return _rows(study, unique, version), tuple(notes)


def exported_cluster(study: Study, rows: Sequence[LandscapeRow], *, name: str) -> Cluster:
    """Return the cluster of exported rows under a name of its own; what names hosts or people is left out."""
    return replace(
        study.cluster,
        name=name,
        description=rows[0].system,
        sources=(rows[0].source,),
        site_variables=(),
    )


def _rows(study: Study, measured: Iterable[tuple[Trial, Measurement]], version: str) -> list[LandscapeRow]:
    origin = "; ".join(filter(None, (study.label, f"study {study.name}", study.created[:10], f"ncclt {version}")))
    rows: list[LandscapeRow] = []
    points: Counter[tuple[object, ...]] = Counter()
    for trial, measurement in measured:
        source = f"{origin}; persistent ranks" if trial.result.persistent else origin
        setting, sent = trial.setting_for(measurement.message), measurement.sent
        if setting.spares_reductions:  # a row has one collective
            setting = setting.applied_to(sent.collective, version=study.cluster.version)
        point = (setting, sent.collective, sent.dtype, sent.size_bytes)
        points[point] += 1
        row = build_row(
            study.cluster,
            collective=sent.collective,
            dtype=sent.dtype,
            size_bytes=sent.size_bytes,
            setting=setting,
            repetition=points[point],
            time_us=float(f"{measurement.time_us:.6g}"),
            source=source,
        )
        rows.append(row)
    return rows
