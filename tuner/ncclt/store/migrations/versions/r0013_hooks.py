"""Keep up to where in the history each web hook has received events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the table of web hooks."""
    op.create_table(
        "hooks",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("since_s", sa.Float, nullable=False),
        sa.Column("due_s", sa.Float, nullable=False),
    )
