"""Keep the keys of the service, each under the hash of its secret."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the table of keys."""
    op.create_table(
        "keys",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.UniqueConstraint("id", name="uq_keys_id"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
    )
