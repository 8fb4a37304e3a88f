"""Create the table of leases: what workers of a study are doing now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create leases."""
    op.create_table(
        "leases",
        sa.Column("study", sa.String, sa.ForeignKey("studies.id", name="fk_leases_study"), primary_key=True),
        sa.Column("what", sa.String, primary_key=True),
        sa.Column("worker", sa.String, nullable=False),
        sa.Column("renewed_s", sa.Float, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
