"""Create the table of preflights: the health of a fabric over time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create preflights."""
    op.create_table(
        "preflights",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("id", "cluster", "state", "created")),
        sa.Column("simulated", sa.Boolean, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.UniqueConstraint("id", name="uq_preflights_id"),
    )
    op.create_index("ix_preflights_cluster", "preflights", ["cluster"])
