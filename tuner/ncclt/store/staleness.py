"""Staleness of recommendations: a failed recheck, a replaced workload or a changed cluster."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, func, select

from ncclt.core.cluster import Cluster
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import Recommendation, changed_cluster, replaced_workload
from ncclt.core.workload import Workload
from ncclt.store.documents import stored
from ncclt.store.part import Shipped
from ncclt.store.tables import Names, clusters, is_named, records, workloads


def with_staleness(
    connection: Connection, recommendations: Sequence[Recommendation], shipped: Shipped
) -> tuple[Recommendation, ...]:
    """Return recommendations with the reason why they are no longer served, in their order."""
    stale = [
        row
        for row in newest_records(connection, "recheck", [r.id for r in recommendations])
        if row.word == Freshness.STALE.value
    ]
    checked = {}
    for row in stale:
        with stored(f"the recheck {row.id}"):
            checked[row.recommendation] = Recheck.from_document(json.loads(row.document)).staleness
    digests = {
        name: _workload_digest(connection, shipped, name)
        for name in {r.model for r in recommendations if r.source_digest}
    }
    added = clusters.c.name.in_(sorted({r.cluster for r in recommendations}))  # shipped ones never change
    places = {}
    for name, text in connection.execute(select(clusters.c.name, clusters.c.document).where(added)):
        with stored(f"the cluster {name!r}"):
            places[name] = Cluster.from_document(json.loads(text))
    shapes = {(r.cluster, r.fingerprint): r for r in recommendations}
    changed = {shape: changed_cluster(r, places.get(r.cluster)) for shape, r in shapes.items()}
    answers = []
    for r in recommendations:
        why = checked.get(r.id) or replaced_workload(r, digests.get(r.model, "")) or changed[r.cluster, r.fingerprint]
        answers.append(r if r.stale == why else replace(r, stale=why))
    return tuple(answers)


def newest_records(
    connection: Connection, kind: str, recommendations: Collection[str], *, cluster: Names = None
) -> Sequence[Row[Any]]:
    """Return the row of the newest record of a kind for each recommendation that has one."""
    if not recommendations:
        return ()
    of = records.c.recommendation
    wanted = (records.c.kind == kind, of.in_(list(recommendations)), *is_named(records.c.cluster, cluster))
    newest = select(func.max(records.c.sequence)).where(*wanted).group_by(of)
    return connection.execute(select(records).where(records.c.sequence.in_(newest))).all()


def _workload_digest(connection: Connection, shipped: Shipped, name: str) -> str:
    """Return the digest of a workload; empty for one that was removed, which is not a replacement."""
    if name in shipped.workloads:
        return shipped.workloads[name].digest()
    text = connection.execute(select(workloads.c.document).where(workloads.c.name == name)).scalar()
    if text is None:
        return ""
    with stored(f"the workload {name!r}"):
        return Workload.from_document(json.loads(text)).digest()
