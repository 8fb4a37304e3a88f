"""Entry point of alembic: migrate the connection that `ncclt.store.migrate` hands over.

It comes inside a transaction, so a migration that fails or is killed leaves nothing behind, on SQLite too.
"""

from __future__ import annotations

from alembic import context

from ncclt.store.schema import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
