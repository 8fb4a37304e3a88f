"""Create the table of attestations: whether a recommendation took effect in a job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create attestations."""
    op.create_table(
        "attestations",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("id", "recommendation", "effect", "created")),
        sa.Column("document", sa.Text, nullable=False),
        sa.UniqueConstraint("id", name="uq_attestations_id"),
    )
    op.create_index("ix_attestations_recommendation", "attestations", ["recommendation"])
