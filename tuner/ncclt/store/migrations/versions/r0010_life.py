"""Give revisions a state, keep who changed it and why, and roll a revision out to a share of the jobs.

What every store served before stays: the newest revision of each fingerprint and origin is active.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_NEWEST = "SELECT max(sequence) FROM recommendations GROUP BY cluster, model, fingerprint, origin"
_REFUSAL = "the history is append-only"


def upgrade() -> None:
    """Add the states, the history with its guards, the rules of clusters, and the roll-outs with their times."""
    op.add_column("recommendations", sa.Column("state", sa.String, nullable=False, server_default="active"))
    for name in ("pinned", "unverified"):
        op.add_column("recommendations", sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false()))
    op.execute(f"UPDATE recommendations SET state = 'retired' WHERE sequence NOT IN ({_NEWEST})")  # noqa: S608
    op.create_index("ix_recommendations_state", "recommendations", ["cluster", "model", "state", "sequence"])
    op.create_table(
        "history",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("cluster", "model", "recommendation", "action", "who", "why", "created")
        ),
    )
    op.create_index("ix_history_recommendation", "history", ["recommendation", "sequence"])
    op.create_index("ix_history_cluster", "history", ["cluster", "sequence"])
    _refuse_changes(is_postgresql=op.get_bind().dialect.name == "postgresql")
    op.create_table(
        "cluster_rules",
        sa.Column("cluster", sa.String, primary_key=True),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "rollouts",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("id", "cluster", "model", "recommendation", "control", "state")
        ),
        sa.Column("document", sa.Text, nullable=False),
        sa.UniqueConstraint("id", name="uq_rollouts_id"),
    )
    op.create_index("ix_rollouts_state", "rollouts", ["cluster", "model", "state"])
    op.create_index("ix_rollouts_recommendation", "rollouts", ["recommendation"])
    op.create_table(
        "job_times",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("rollout", "job", "recommendation")),
        sa.Column("step_us", sa.Float, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("created", sa.String, nullable=False),
        sa.UniqueConstraint("rollout", "job", name="uq_job_times_job"),
    )


def _refuse_changes(*, is_postgresql: bool) -> None:
    """Let the database itself refuse to change or delete an entry of the history."""
    if not is_postgresql:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER history_no_{verb.lower()} BEFORE {verb} ON history "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION history_is_kept() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER history_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON history "
        "FOR EACH STATEMENT EXECUTE FUNCTION history_is_kept()"
    )
