"""Find the newest revisions without reading the others, and let services notice that answers have changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the origin of recommendations with an index over it, and the numbers of changes."""
    postgresql = op.get_bind().dialect.name == "postgresql"
    simulated, launcher = (
        ("(document::json ->> 'simulated') = 'true'", "document::json ->> 'launcher'")
        if postgresql
        else ("json_extract(document, '$.simulated')", "json_extract(document, '$.launcher')")
    )
    op.add_column("recommendations", sa.Column("origin", sa.String, nullable=False, server_default="measured"))
    op.execute(
        f"UPDATE recommendations SET origin = CASE WHEN {simulated} THEN 'simulated' "  # noqa: S608  no input
        f"WHEN {launcher} = 'replay' THEN 'recorded' ELSE 'measured' END"
    )
    columns = ["cluster", "model", "fingerprint", "origin", "sequence"]
    op.create_index("ix_recommendations_newest", "recommendations", columns)
    op.create_table(
        "changes",
        sa.Column("cluster", sa.String, primary_key=True),
        sa.Column("model", sa.String, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_changes_number", "changes", ["number"])
