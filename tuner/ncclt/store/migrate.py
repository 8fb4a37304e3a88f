"""Migrate the tables to the revision of this ncclt."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.schema import CreateSchema

from ncclt.store.database import Database
from ncclt.store.schema import HEAD, OPTUNA_SCHEMA, POSTGRESQL_SCHEMA, VERSION_QUERY, known_revision


def migration(database: Database) -> str:
    """Return the revision of the tables, empty where there are none yet.

    Raises:
        StoreError: the database is unreachable, or as for `known_revision`.
    """
    with database.reading() as connection:
        return _current(database, connection)


def migrate(database: Database) -> None:
    """Create or update our tables, and on PostgreSQL the schemas of ours and of Optuna.

    A second process waits and finds the work done. Nothing is written if the tables are current, so a read-only store
    can be opened.

    Raises:
        StoreError: as `migration`, or it cannot be written.
    """
    if migration(database) == HEAD:
        return
    with database.alone() as connection:
        if database.schema is not None:
            # Checked first: CREATE SCHEMA IF NOT EXISTS requires the right to create even if it exists.
            schemas = set(inspect(connection).get_schema_names())
            for schema in (POSTGRESQL_SCHEMA, OPTUNA_SCHEMA):
                if schema not in schemas:
                    connection.execute(CreateSchema(schema))
        if _current(database, connection) != HEAD:
            _upgrade(connection)


def _current(database: Database, connection: Connection) -> str:
    tables = inspect(connection).get_table_names(schema=database.schema)

    def read() -> str | None:
        revision: str | None = connection.execute(text(VERSION_QUERY)).scalar()
        return revision

    return known_revision(database.shown, tables=tables, read=read)


def _upgrade(connection: Connection) -> None:
    # Imported here: alembic costs 0.1 s, and only the first opening needs it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    folder = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))  # % is ConfigParser's own
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
