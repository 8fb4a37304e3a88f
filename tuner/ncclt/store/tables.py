"""Our tables: columns for what is queried, one document for the rest (see documents.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

MOST_NAMED = 500
"""Max values in one query: databases have a limit, and PostgreSQL plans long lists slowly."""

Value = TypeVar("Value")

metadata = MetaData()

workloads = Table(
    "workloads",
    metadata,
    Column("name", String, primary_key=True),
    Column("document", Text, nullable=False),
)

clusters = Table(
    "clusters",
    metadata,
    Column("name", String, primary_key=True),
    Column("document", Text, nullable=False),
)

# `sequence` is the order of insertion: newest first does not depend on clocks, and a page's cursor stays valid while
# studies are added.
studies = Table(
    "studies",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False),
    Column("name", String, nullable=False),
    Column("cluster", String, nullable=False),
    Column("model", String, nullable=False),
    Column("state", String, nullable=False),
    Column("created", String, nullable=False),
    Column("updated", String, nullable=False),
    Column("document", Text, nullable=False),
    UniqueConstraint("id", name="uq_studies_id"),
    UniqueConstraint("name", name="uq_studies_name"),
    Index("ix_studies_cluster_model", "cluster", "model"),
    Index("ix_studies_state", "state", "cluster", "model"),
)

trials = Table(
    "trials",
    metadata,
    Column("study", String, ForeignKey("studies.id", name="fk_trials_study"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("phase", String, nullable=False),
    Column("setting", String, nullable=False),
    Column("outcome", String, nullable=False),
    Column("score_us", Float),
    Column("started", String, nullable=False),
    Column("document", Text, nullable=False),
    Index("ix_trials_score", "study", "phase", "setting", "score_us"),
)

# What only one worker may do: a trial, the end of a study. A row is deleted when that is done, or when its worker is
# dead or has been silent for too long.
leases = Table(
    "leases",
    metadata,
    Column("study", String, ForeignKey("studies.id", name="fk_leases_study"), primary_key=True),
    Column("what", String, primary_key=True),
    Column("worker", String, nullable=False),
    Column("renewed_s", Float, nullable=False),
    Column("document", Text, nullable=False),
)

measurements = Table(
    "measurements",
    metadata,
    Column("study", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("collective", String, nullable=False),
    Column("dtype", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("group_size", Integer, nullable=False),
    Column("spans_nodes", Boolean, nullable=False),
    Column("wrong", BigInteger),
    Column("interpolated", Boolean, nullable=False),
    Column("measured_bytes", BigInteger),
    Column("bits", String, nullable=False),
    Column("samples_us", Text, nullable=False),
    ForeignKeyConstraint(["study", "number"], ["trials.study", "trials.number"], name="fk_measurements_trial"),
)

recommendations = Table(
    "recommendations",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("study", String, nullable=False),
    Column("cluster", String, nullable=False),
    Column("model", String, nullable=False),
    Column("fingerprint", String, nullable=False),
    Column("created", String, nullable=False),
    Column("document", Text, nullable=False),
    Column("origin", String, nullable=False),
    Column("state", String, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("unverified", Boolean, nullable=False),
    UniqueConstraint("id", name="uq_recommendations_id"),
    UniqueConstraint("cluster", "model", "fingerprint", "revision", name="uq_recommendations_revision"),
    Index("ix_recommendations_study", "study"),
    Index("ix_recommendations_newest", "cluster", "model", "fingerprint", "origin", "sequence", "state"),
    Index("ix_recommendations_state", "cluster", "model", "state", "sequence"),
)

# When what jobs of a workload on a cluster are given last changed: services drop their answers by it. The numbers are
# those of one sequence over all pairs; an empty cluster stands for all of them.
changes = Table(
    "changes",
    metadata,
    Column("cluster", String, primary_key=True),
    Column("model", String, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Index("ix_changes_number", "number"),
)

# Checks, attestations, preflights, verifications and segments. `sequence` orders those of one kind; `word` is the
# record's result in one word; a name that it does not have is empty.
records = Table(
    "records",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("kind", String, nullable=False),
    Column("id", String, nullable=False),
    Column("cluster", String, nullable=False),
    Column("model", String, nullable=False),
    Column("recommendation", String, nullable=False),
    Column("word", String, nullable=False),
    Column("created", String, nullable=False),
    Column("document", Text, nullable=False),
    UniqueConstraint("kind", "id", name="uq_records_id"),
    Index("ix_records_recommendation", "kind", "recommendation"),
    Index("ix_records_cluster_model", "kind", "cluster", "model"),
)

# Who may use the service: the hash of a secret, and what its holder may do.
keys = Table(
    "keys",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("document", Text, nullable=False),
    UniqueConstraint("id", name="uq_keys_id"),
    UniqueConstraint("digest", name="uq_keys_digest"),
)

# Who did what to revisions and rules, and why. Triggers refuse to change or delete a row.
history = Table(
    "history",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("cluster", String, nullable=False),
    Column("model", String, nullable=False),
    Column("recommendation", String, nullable=False),
    Column("action", String, nullable=False),
    Column("who", String, nullable=False),
    Column("why", String, nullable=False),
    Column("created", String, nullable=False),
    Index("ix_history_recommendation", "recommendation", "sequence"),
    Index("ix_history_cluster", "cluster", "sequence"),
)

cluster_rules = Table(
    "cluster_rules",
    metadata,
    Column("cluster", String, primary_key=True),
    Column("document", Text, nullable=False),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False),
    Column("cluster", String, nullable=False),
    Column("model", String, nullable=False),
    Column("control", String, nullable=False),
    Column("state", String, nullable=False),
    Column("document", Text, nullable=False),
    UniqueConstraint("id", name="uq_rollouts_id"),
    Index("ix_rollouts_state", "cluster", "model", "state"),
)

# The revisions that are the arms of roll-outs.
rollout_arms = Table(
    "rollout_arms",
    metadata,
    Column("rollout", String, primary_key=True),
    Column("recommendation", String, primary_key=True),
    Index("ix_rollout_arms_recommendation", "recommendation"),
)

# Step times that jobs of roll-outs reported, one per job, in their order of arrival.
job_times = Table(
    "job_times",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("rollout", String, nullable=False),
    Column("job", String, nullable=False),
    Column("recommendation", String, nullable=False),
    Column("step_us", Float, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("waited_s", Float, nullable=False),
    Column("who", String, nullable=False),
    Column("address", String, nullable=False),
    Column("created", String, nullable=False),
    UniqueConstraint("rollout", "job", name="uq_job_times_job"),
)

# Jobs of roll-outs that got a ticket, in the order in which that was stored.
job_starts = Table(
    "job_starts",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("rollout", String, nullable=False),
    Column("job", String, nullable=False),
    Column("recommendation", String, nullable=False),
    Column("issued_s", Float, nullable=False),
    Column("running", String, nullable=False),
    Column("created", String, nullable=False),
    UniqueConstraint("rollout", "job", name="uq_job_starts_job"),
)

# The answer that all nodes of a job get, where they asked for a common one.
job_decisions = Table(
    "job_decisions",
    metadata,
    Column("cluster", String, primary_key=True),
    Column("job", String, primary_key=True),
    Column("question", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("created", String, nullable=False),
)

# The ticket that each attestation came with, which counts once, and its sender.
attested_jobs = Table(
    "attested_jobs",
    metadata,
    Column("ticket", String, primary_key=True),
    Column("attestation", String, nullable=False),
    Column("cluster", String, nullable=False),
    Column("job", String, nullable=False),
    Column("who", String, nullable=False),
    Column("address", String, nullable=False),
    Column("created", String, nullable=False),
    Index("ix_attested_jobs_attestation", "attestation"),
)

# Made with the tables, so that all replicas have the same.
secrets = Table(
    "secrets",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", String, nullable=False),
)

# Workers that take tuning jobs of a cluster. A row is deleted when its worker has left, or was dead and its jobs were
# given back.
job_workers = Table(
    "job_workers",
    metadata,
    Column("name", String, primary_key=True),
    Column("cluster", String, nullable=False),
    Column("renewed_s", Float, nullable=False),
)

Names = str | Collection[str] | None
"""One name, any of some names, or None = any name."""


def is_named(column: ColumnElement[Any], names: Names) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of a column that holds one of some names; none at all where any name will do."""
    if names is None:
        return ()
    return (column == names,) if isinstance(names, str) else (column.in_(sorted(names)),)


def split_named(values: Iterable[Value]) -> Iterator[list[Value]]:
    """Yield values in lists of at most `MOST_NAMED`."""
    rest = iter(values)
    while part := list(islice(rest, MOST_NAMED)):
        yield part
