"""Create the table of verifications: real step times under two environments."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create verifications."""
    op.create_table(
        "verifications",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("id", "cluster", "model", "recommendation", "decision", "created")
        ),
        sa.Column("document", sa.Text, nullable=False),
        sa.UniqueConstraint("id", name="uq_verifications_id"),
    )
    op.create_index("ix_verifications_cluster_model", "verifications", ["cluster", "model"])
