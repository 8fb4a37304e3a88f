import hashlib
import json
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
from ncclt.store import known_names, open_store, open_to_read, published
from ncclt.store.database import Database
from ncclt.store.location import locate
from ncclt.store.migrate import migrate, migration
from ncclt.store.schema import HEAD, REVISIONS, VERSION_TABLE, known_revision
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


def test_tables_of_a_revision_never_change():
    """Stores are at this revision: another column is another migration, which begins with a copy of the tables."""
    shapes = [
        (table.name, [(column.name, str(column.type), column.nullable, column.primary_key) for column in table.columns])
        for table in metadata.sorted_tables
    ]
    named = sorted(
        (table.name, rule.name, [column.name for column in rule.columns])
        for table in metadata.sorted_tables
        for rule in (*table.indexes, *table.constraints)
        if rule.name
    )
    digest = hashlib.sha256(json.dumps([shapes, named]).encode()).hexdigest()[:12]
    assert (HEAD, digest) == ("0001_release", "8dc42091acfd")


def test_the_shortcut_of_the_unit_tests_makes_what_the_migrations_make(by_migrations, tmp_path):
    def dump(name):
        with open_store(f"sqlite:///{tmp_path}/{name}.db"), closing(sqlite3.connect(tmp_path / f"{name}.db")) as made:
            made.execute("UPDATE secrets SET value = 'random'")
            return sorted(made.iterdump())

    whole = dump("whole")
    by_migrations.undo()
    dump("first of this process, perhaps")
    assert dump("short") == whole


def test_a_migration_that_fails_leaves_nothing(database, monkeypatch):
    """The tables are made by then, and are undone."""
    from alembic import op

    def fail(*_arguments, **_options):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(op, "bulk_insert", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        migrate(database)
    with closing(sqlite3.connect(database.location.path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    monkeypatch.undo()
    migrate(database)
    assert migration(database) == HEAD


def test_a_store_that_is_current_is_opened_without_writing(database):
    migrate(database)
    with closing(sqlite3.connect(database.location.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM studies").fetchone()  # a writer could not commit now
        before = database.location.path.stat().st_mtime_ns
        migrate(database)
        assert database.location.path.stat().st_mtime_ns == before


def test_known_revisions():
    for tables, revision, known in (
        ([], None, ""),
        ([VERSION_TABLE], None, ""),
        ([VERSION_TABLE, "trials"], HEAD, HEAD),
    ):
        assert known_revision("a.db", tables=tables, read=lambda revision=revision: revision) == known


def test_what_is_not_ours_is_refused():
    for tables, revision in ((["trials"], HEAD), ([VERSION_TABLE], "0002x")):
        with pytest.raises(StoreError) as caught:
            known_revision("a.db", tables=tables, read=lambda revision=revision: revision)
        assert "--storage" in caught.value.hint


def test_a_store_of_an_unknown_version_is_refused_and_left_alone(database):
    migrate(database)
    shown, url = database.location.path, database.location.url
    ways = (open_store, open_to_read, known_names, lambda url: published(url, cluster="pair", model="toy"))
    for revision in ("0013", "0001_initial", "0002_later"):
        with closing(sqlite3.connect(shown)) as connection, connection:
            connection.execute("UPDATE ncclt_alembic_version SET version_num = ?", (revision,))
        before = shown.read_bytes()
        for way in ways:
            with pytest.raises(StoreError) as caught:
                way(url)
            assert f"{shown} has schema {revision!r}" in caught.value.message
        assert shown.read_bytes() == before
