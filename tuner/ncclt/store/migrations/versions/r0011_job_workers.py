"""Keep which workers take tuning jobs, and the rules by which workloads are tuned again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the tables of workers and of rules."""
    op.create_table(
        "job_workers",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("cluster", sa.String, nullable=False),
        sa.Column("renewed_s", sa.Float, nullable=False),
    )
    op.create_table(
        "job_rules",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("cluster", sa.String, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
