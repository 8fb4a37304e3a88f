"""Move verifications, preflights, checks and attestations into one table of records.

The rows are copied by the database itself, in their order of arrival; none of them passes through this process.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ncclt.store.revisions import EARLIER_TABLES

revision = "0007"
down_revision = "0006"

COLUMNS = ("cluster", "model", "recommendation", "word", "created")


def upgrade() -> None:
    """Create records, fill it and drop the four tables."""
    op.create_table(
        "records",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("kind", "id", *COLUMNS)),
        sa.Column("document", sa.Text, nullable=False),
        sa.UniqueConstraint("kind", "id", name="uq_records_id"),
    )
    op.create_index("ix_records_recommendation", "records", ["kind", "recommendation"])
    op.create_index("ix_records_cluster_model", "records", ["kind", "cluster", "model"])
    copied = ", ".join(("id", *COLUMNS, "document"))
    for kind, earlier in EARLIER_TABLES.items():
        rows = f"SELECT '{kind}', {copied} FROM ({earlier.query}) AS earlier ORDER BY sequence"  # noqa: S608  no input
        op.execute(f"INSERT INTO records (kind, {copied}) {rows}")
        op.drop_table(earlier.table)
