"""Create the table of checks: whether a recommendation is still served."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create checks."""
    op.create_table(
        "checks",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("id", "recommendation", "freshness", "created")),
        sa.Column("document", sa.Text, nullable=False),
        sa.UniqueConstraint("id", name="uq_checks_id"),
    )
    op.create_index("ix_checks_recommendation", "checks", ["recommendation"])
