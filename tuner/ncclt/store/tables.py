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


def _strings(*names: str) -> list[Column[str]]:
    return [Column(name, String, nullable=False) for name in names]


def _keys(*names: str) -> list[Column[str]]:
    return [Column(name, String, primary_key=True) for name in names]


def _texts(*names: str) -> list[Column[str]]:
    return [Column(name, Text, nullable=False) for name in names]


def _numbers(kind: type[Float[float] | Integer | BigInteger], *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


def _flags(*names: str) -> list[Column[bool]]:
    return [Column(name, Boolean, nullable=False) for name in names]


def _sequence() -> Column[int]:
    """Return the order of insertion: newest first does not depend on clocks, and a page's cursor stays valid."""
    return Column("sequence", Integer, primary_key=True, autoincrement=True)


workloads = Table("workloads", metadata, *_keys("name"), *_texts("document"))

clusters = Table("clusters", metadata, *_keys("name"), *_texts("document"))

studies = Table(
    "studies",
    metadata,
    _sequence(),
    *_strings("id", "name", "cluster", "model", "state", "created", "updated"),
    *_texts("document"),
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
    *_strings("phase", "setting", "outcome"),
    Column("score_us", Float),
    *_strings("started"),
    *_texts("document"),
    Index("ix_trials_score", "study", "phase", "setting", "score_us"),
)

# What only one worker may do: a trial, the end of a study. A row is deleted when that is done, or when its worker is
# dead or has been silent for too long.
leases = Table(
    "leases",
    metadata,
    Column("study", String, ForeignKey("studies.id", name="fk_leases_study"), primary_key=True),
    *_keys("what"),
    *_strings("worker"),
    *_numbers(Float, "renewed_s"),
    *_texts("document"),
)

measurements = Table(
    "measurements",
    metadata,
    *_keys("study"),
    Column("number", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    *_strings("collective", "dtype"),
    *_numbers(BigInteger, "size_bytes"),
    *_numbers(Integer, "group_size"),
    *_flags("spans_nodes"),
    Column("wrong", BigInteger),
    *_flags("interpolated"),
    Column("measured_bytes", BigInteger),
    *_strings("bits"),
    *_texts("samples_us"),
    ForeignKeyConstraint(["study", "number"], ["trials.study", "trials.number"], name="fk_measurements_trial"),
)

recommendations = Table(
    "recommendations",
    metadata,
    _sequence(),
    *_strings("id"),
    *_numbers(Integer, "revision"),
    *_strings("study", "cluster", "model", "fingerprint", "created"),
    *_texts("document"),
    *_strings("origin", "state"),
    *_flags("pinned", "unverified"),
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
    *_keys("cluster", "model"),
    *_numbers(BigInteger, "number"),
    Index("ix_changes_number", "number"),
)

# Checks, attestations, preflights, verifications and segments. `sequence` orders those of one kind; `word` is the
# record's result in one word; a name that it does not have is empty.
records = Table(
    "records",
    metadata,
    _sequence(),
    *_strings("kind", "id", "cluster", "model", "recommendation", "word", "created"),
    *_texts("document"),
    UniqueConstraint("kind", "id", name="uq_records_id"),
    Index("ix_records_recommendation", "kind", "recommendation"),
    Index("ix_records_cluster_model", "kind", "cluster", "model"),
)

# Who may use the service: the hash of a secret, and what its holder may do.
keys = Table(
    "keys",
    metadata,
    _sequence(),
    *_strings("id", "digest"),
    *_texts("document"),
    UniqueConstraint("id", name="uq_keys_id"),
    UniqueConstraint("digest", name="uq_keys_digest"),
)

# Who did what to revisions and rules, and why. Triggers refuse to change or delete a row.
history = Table(
    "history",
    metadata,
    _sequence(),
    *_strings("cluster", "model", "recommendation", "action", "who", "why", "created"),
    Index("ix_history_recommendation", "recommendation", "sequence"),
    Index("ix_history_cluster", "cluster", "sequence"),
)

cluster_rules = Table("cluster_rules", metadata, *_keys("cluster"), *_texts("document"))

rollouts = Table(
    "rollouts",
    metadata,
    _sequence(),
    *_strings("id", "cluster", "model", "control", "state"),
    *_texts("document"),
    UniqueConstraint("id", name="uq_rollouts_id"),
    Index("ix_rollouts_state", "cluster", "model", "state"),
)

# The revisions that are the arms of roll-outs.
rollout_arms = Table(
    "rollout_arms",
    metadata,
    *_keys("rollout", "recommendation"),
    Index("ix_rollout_arms_recommendation", "recommendation"),
)

# Step times that jobs of roll-outs reported, one per job, in their order of arrival.
job_times = Table(
    "job_times",
    metadata,
    _sequence(),
    *_strings("rollout", "job", "recommendation"),
    *_numbers(Float, "step_us"),
    *_numbers(BigInteger, "steps"),
    *_numbers(Float, "waited_s"),
    *_strings("who", "address", "created"),
    UniqueConstraint("rollout", "job", name="uq_job_times_job"),
)

# Jobs of roll-outs that got a ticket, in the order in which that was stored.
job_starts = Table(
    "job_starts",
    metadata,
    _sequence(),
    *_strings("rollout", "job", "recommendation"),
    *_numbers(Float, "issued_s"),
    *_strings("running", "created"),
    UniqueConstraint("rollout", "job", name="uq_job_starts_job"),
)

# The answer that all nodes of a job get, where they asked for a common one.
job_decisions = Table(
    "job_decisions", metadata, *_keys("cluster", "job"), *_texts("question", "document"), *_strings("created")
)

# The ticket that each attestation came with, which counts once, and its sender.
attested_jobs = Table(
    "attested_jobs",
    metadata,
    *_keys("ticket"),
    *_strings("attestation", "cluster", "job", "who", "address", "created"),
    Index("ix_attested_jobs_attestation", "attestation"),
)

# Made with the tables, so that all replicas have the same.
secrets = Table("secrets", metadata, *_keys("name"), *_strings("value"))

# Workers that take tuning jobs of a cluster. A row is deleted when its worker has left, or was dead and its jobs were
# given back.
job_workers = Table("job_workers", metadata, *_keys("name"), *_strings("cluster"), *_numbers(Float, "renewed_s"))

Names = str | Collection[str] | None
"""One name, any of some names, or None = any name."""


def is_named(column: ColumnElement[Any], names: Names) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of a column that holds one of some names; none at all where any name will do."""
    if names is None:
        return ()
    return (column == names,) if isinstance(names, str) else (column.in_(sorted(names)),)


def split_named(values: Iterable[Value]) -> Iterator[list[Value]]:
    """Yield values in lists of at most `MOST_NAMED`."""
    remaining = iter(values)
    while part := list(islice(remaining, MOST_NAMED)):
        yield part
