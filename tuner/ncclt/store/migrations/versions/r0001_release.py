"""Create the tables of the first release.

They are those of tables.py, which no test lets differ from them (`test_tables_of_a_revision_never_change`): the next
migration begins with a copy of what it changes.
"""

from __future__ import annotations

import secrets

from alembic import op

from ncclt.store import tables

revision = "0001_release"
down_revision = None

_REFUSAL = "the history is append-only"


def upgrade() -> None:
    """Create every table, the triggers that keep the history, and the secret of the tickets."""
    connection = op.get_bind()
    tables.metadata.create_all(connection, checkfirst=False)
    _refuse_changes_of_history(is_postgresql=connection.dialect.name == "postgresql")
    op.bulk_insert(tables.secrets, [{"name": "tickets", "value": secrets.token_hex(32)}])


def _refuse_changes_of_history(*, is_postgresql: bool) -> None:
    """Let the database itself refuse to change or delete an entry of the history."""
    if not is_postgresql:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER history_no_{verb.lower()} BEFORE {verb} ON history "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION history_is_kept() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER history_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON history "
        "FOR EACH STATEMENT EXECUTE FUNCTION history_is_kept()"
    )
