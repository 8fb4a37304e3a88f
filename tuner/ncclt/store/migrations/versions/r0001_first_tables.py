"""Create the first tables.

The columns are written out and not taken from tables.py: a migration says what it did, whatever came later.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create workloads, clusters, studies, trials, measurements and recommendations."""
    for name in ("workloads", "clusters"):
        op.create_table(name, sa.Column("name", sa.String, primary_key=True), _text("document"))
    op.create_table(
        "studies",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        *(_string(name) for name in ("id", "name", "cluster", "model", "state", "created", "updated")),
        _text("document"),
        sa.UniqueConstraint("id", name="uq_studies_id"),
        sa.UniqueConstraint("name", name="uq_studies_name"),
    )
    op.create_index("ix_studies_cluster_model", "studies", ["cluster", "model"])
    op.create_table(
        "trials",
        sa.Column("study", sa.String, sa.ForeignKey("studies.id", name="fk_trials_study"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        *(_string(name) for name in ("phase", "setting", "outcome")),
        sa.Column("score_us", sa.Float),
        _string("started"),
        _text("document"),
    )
    op.create_table(
        "measurements",
        sa.Column("study", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        _string("collective"),
        _string("dtype"),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("group_size", sa.Integer, nullable=False),
        sa.Column("spans_nodes", sa.Boolean, nullable=False),
        sa.Column("wrong", sa.BigInteger),
        sa.Column("interpolated", sa.Boolean, nullable=False),
        _text("samples_us"),
        sa.ForeignKeyConstraint(["study", "number"], ["trials.study", "trials.number"], name="fk_measurements_trial"),
    )
    op.create_table(
        "recommendations",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        _string("id"),
        sa.Column("revision", sa.Integer, nullable=False),
        *(_string(name) for name in ("study", "cluster", "model", "fingerprint", "created")),
        _text("document"),
        sa.UniqueConstraint("id", name="uq_recommendations_id"),
        sa.UniqueConstraint("cluster", "model", "fingerprint", "revision", name="uq_recommendations_revision"),
    )
    op.create_index("ix_recommendations_study", "recommendations", ["study"])


def _string(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String, nullable=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)
