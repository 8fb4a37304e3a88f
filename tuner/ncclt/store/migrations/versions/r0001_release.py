"""Create the tables of the first release.

The columns are written out and not taken from tables.py: a migration says what it did, whatever came later.
"""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001_release"
down_revision = None

_REFUSAL = "the history is append-only"


def upgrade() -> None:
    """Create every table, and the triggers that keep the history."""
    for name in ("workloads", "clusters"):
        op.create_table(name, sa.Column("name", sa.String, primary_key=True), _text("document"))
    _create_study_tables()
    _create_recommendation_tables()
    op.create_table(
        "records",
        _sequence(),
        *_strings("kind", "id", "cluster", "model", "recommendation", "word", "created"),
        _text("document"),
        sa.UniqueConstraint("kind", "id", name="uq_records_id"),
    )
    op.create_index("ix_records_recommendation", "records", ["kind", "recommendation"])
    op.create_index("ix_records_cluster_model", "records", ["kind", "cluster", "model"])
    op.create_table(
        "keys",
        _sequence(),
        *_strings("id", "digest"),
        _text("document"),
        sa.UniqueConstraint("id", name="uq_keys_id"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
    )
    op.create_table(
        "job_workers",
        sa.Column("name", sa.String, primary_key=True),
        *_strings("cluster"),
        sa.Column("renewed_s", sa.Float, nullable=False),
    )
    made = op.create_table("secrets", sa.Column("name", sa.String, primary_key=True), *_strings("value"))
    op.bulk_insert(made, [{"name": "tickets", "value": secrets.token_hex(32)}])


def _create_study_tables() -> None:
    op.create_table(
        "studies",
        _sequence(),
        *_strings("id", "name", "cluster", "model", "state", "created", "updated"),
        _text("document"),
        sa.UniqueConstraint("id", name="uq_studies_id"),
        sa.UniqueConstraint("name", name="uq_studies_name"),
    )
    op.create_index("ix_studies_cluster_model", "studies", ["cluster", "model"])
    op.create_index("ix_studies_state", "studies", ["state", "cluster", "model"])
    op.create_table(
        "trials",
        sa.Column("study", sa.String, sa.ForeignKey("studies.id", name="fk_trials_study"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        *_strings("phase", "setting", "outcome"),
        sa.Column("score_us", sa.Float),
        *_strings("started"),
        _text("document"),
    )
    op.create_index("ix_trials_score", "trials", ["study", "phase", "setting", "score_us"])
    op.create_table(
        "leases",
        sa.Column("study", sa.String, sa.ForeignKey("studies.id", name="fk_leases_study"), primary_key=True),
        sa.Column("what", sa.String, primary_key=True),
        *_strings("worker"),
        sa.Column("renewed_s", sa.Float, nullable=False),
        _text("document"),
    )
    op.create_table(
        "measurements",
        sa.Column("study", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        *_strings("collective", "dtype"),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("group_size", sa.Integer, nullable=False),
        sa.Column("spans_nodes", sa.Boolean, nullable=False),
        sa.Column("wrong", sa.BigInteger),
        sa.Column("interpolated", sa.Boolean, nullable=False),
        sa.Column("measured_bytes", sa.BigInteger),
        sa.Column("bits", sa.String, nullable=False),
        _text("samples_us"),
        sa.ForeignKeyConstraint(["study", "number"], ["trials.study", "trials.number"], name="fk_measurements_trial"),
    )


def _create_recommendation_tables() -> None:
    op.create_table(
        "recommendations",
        _sequence(),
        *_strings("id"),
        sa.Column("revision", sa.Integer, nullable=False),
        *_strings("study", "cluster", "model", "fingerprint", "created"),
        _text("document"),
        *_strings("origin", "state"),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("unverified", sa.Boolean, nullable=False),
        sa.UniqueConstraint("id", name="uq_recommendations_id"),
        sa.UniqueConstraint("cluster", "model", "fingerprint", "revision", name="uq_recommendations_revision"),
    )
    for name, columns in {
        "study": ["study"],
        "newest": ["cluster", "model", "fingerprint", "origin", "sequence", "state"],
        "state": ["cluster", "model", "state", "sequence"],
    }.items():
        op.create_index(f"ix_recommendations_{name}", "recommendations", columns)
    op.create_table(
        "changes",
        sa.Column("cluster", sa.String, primary_key=True),
        sa.Column("model", sa.String, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_changes_number", "changes", ["number"])
    op.create_table(
        "history",
        _sequence(),
        *_strings("cluster", "model", "recommendation", "action", "who", "why", "created"),
    )
    op.create_index("ix_history_recommendation", "history", ["recommendation", "sequence"])
    op.create_index("ix_history_cluster", "history", ["cluster", "sequence"])
    _refuse_changes_of_history(is_postgresql=op.get_bind().dialect.name == "postgresql")
    op.create_table("cluster_rules", sa.Column("cluster", sa.String, primary_key=True), _text("document"))
    op.create_table(
        "rollouts",
        _sequence(),
        *_strings("id", "cluster", "model", "control", "state"),
        _text("document"),
        sa.UniqueConstraint("id", name="uq_rollouts_id"),
    )
    op.create_index("ix_rollouts_state", "rollouts", ["cluster", "model", "state"])
    op.create_table(
        "rollout_arms",
        sa.Column("rollout", sa.String, primary_key=True),
        sa.Column("recommendation", sa.String, primary_key=True),
    )
    op.create_index("ix_rollout_arms_recommendation", "rollout_arms", ["recommendation"])
    op.create_table(
        "job_times",
        _sequence(),
        *_strings("rollout", "job", "recommendation"),
        sa.Column("step_us", sa.Float, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("waited_s", sa.Float, nullable=False),
        *_strings("who", "address", "created"),
        sa.UniqueConstraint("rollout", "job", name="uq_job_times_job"),
    )
    op.create_table(
        "job_starts",
        _sequence(),
        *_strings("rollout", "job", "recommendation"),
        sa.Column("issued_s", sa.Float, nullable=False),
        *_strings("running", "created"),
        sa.UniqueConstraint("rollout", "job", name="uq_job_starts_job"),
    )
    op.create_table(
        "job_decisions",
        sa.Column("cluster", sa.String, primary_key=True),
        sa.Column("job", sa.String, primary_key=True),
        _text("question"),
        _text("document"),
        *_strings("created"),
    )
    op.create_table(
        "attested_jobs",
        sa.Column("ticket", sa.String, primary_key=True),
        *_strings("attestation", "cluster", "job", "who", "address", "created"),
    )
    op.create_index("ix_attested_jobs_attestation", "attested_jobs", ["attestation"])


def _refuse_changes_of_history(*, is_postgresql: bool) -> None:
    """Let the database itself refuse to change or delete an entry of the history."""
    if not is_postgresql:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER history_no_{verb.lower()} BEFORE {verb} ON history "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION history_is_kept() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER history_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON history "
        "FOR EACH STATEMENT EXECUTE FUNCTION history_is_kept()"
    )


def _sequence() -> sa.Column[int]:
    return sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True)


def _strings(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String, nullable=False) for name in names]


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)
