import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

import ncclt.store
from ncclt.errors import StoreError
from ncclt.store import open_store
from ncclt.store.database import Database
from ncclt.store.location import locate
from ncclt.store.migrate import migrate, migration
from ncclt.store.revisions import REVISIONS, VERSION_TABLE, known_revision
from ncclt.store.tables import metadata


@pytest.fixture(autouse=True)
def by_migrations(tables_made_once):
    """Let these tests' stores be migrated, without the shortcut of the other unit tests (conftest.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ncclt.store.migrate._upgrade", tables_made_once)
        yield patch


@pytest.fixture
def database(tmp_path):
    opened = Database(locate(f"sqlite:///{tmp_path}/a.db"))
    yield opened
    opened.close()


def test_the_list_of_revisions_is_what_lies_in_the_folder():
    scripts = ScriptDirectory(str(Path(ncclt.store.__file__).parent / "migrations"))
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == REVISIONS


def test_the_migrations_make_the_tables_that_the_code_uses(database):
    migrate(database)
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []
        keys = {table.name: inspect(connection).get_pk_constraint(table.name) for table in metadata.sorted_tables}
    # alembic compares no primary keys
    assert {name: key["constrained_columns"] for name, key in keys.items()} == {
        table.name: [column.name for column in table.primary_key] for table in metadata.sorted_tables
    }


def test_the_shortcut_of_the_unit_tests_makes_what_the_migrations_make(by_migrations, tmp_path):
    def dump(name):
        with open_store(f"sqlite:///{tmp_path}/{name}.db"), closing(sqlite3.connect(tmp_path / f"{name}.db")) as made:
            return sorted(made.iterdump())

    whole = dump("whole")
    by_migrations.undo()
    dump("first of this process, perhaps")
    assert dump("short") == whole


def test_a_migration_that_fails_leaves_nothing(database, monkeypatch):
    """Two statements into it, the whole of it is undone."""
    from alembic import op

    def fail(*_arguments, **_options):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(op, "create_index", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        migrate(database)
    with closing(sqlite3.connect(database.location.path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    monkeypatch.undo()
    migrate(database)
    assert migration(database).is_current


def test_a_store_that_is_current_is_opened_without_writing(database):
    migrate(database)
    with closing(sqlite3.connect(database.location.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM studies").fetchone()  # a writer could not commit now
        before = database.location.path.stat().st_mtime_ns
        migrate(database)
        assert database.location.path.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("tables", "revision", "known"),
    [([], None, ""), ([VERSION_TABLE], None, ""), ([VERSION_TABLE, "trials"], "0001", "0001")],
)
def test_known_revisions(tables, revision, known):
    assert known_revision("a.db", tables=tables, read=lambda: revision) == known


@pytest.mark.parametrize(("tables", "revision"), [(["trials"], "0001"), ([VERSION_TABLE], "0002x")])
def test_what_is_not_ours_is_refused(tables, revision):
    with pytest.raises(StoreError) as caught:
        known_revision("a.db", tables=tables, read=lambda: revision)
    assert "--storage" in caught.value.hint
