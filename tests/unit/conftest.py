"""Fixtures of several packages: a small cluster and workload, a landscape with known best settings, a full disk."""

import resource
import signal
from contextlib import contextmanager

import pytest
from pair import PAIR
from sqlalchemy import inspect

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.store import migrate
from ncclt.store.schema import HEAD, VERSION_TABLE

SMALL, LARGE = 16 << 10, 64 << 20


@pytest.fixture(scope="session", autouse=True)
def tables_made_once():
    """Give every later fresh SQLite store the tables of the first: alembic takes 0.1 s, for most tests.

    What they make is the same (store/test_migrate.py); contract and integration tests migrate every store.
    """
    made = []

    def upgrade(connection):
        fresh = connection.dialect.name == "sqlite" and not inspect(connection).get_table_names()
        if fresh and made:
            for statement in made:
                connection.exec_driver_sql(statement)
            return
        upgrade_by_migrations(connection)
        if fresh:
            named = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
            made.extend(connection.exec_driver_sql(named).scalars())
            made.append(f"INSERT INTO {VERSION_TABLE} VALUES ('{HEAD}')")
            (secret,) = connection.exec_driver_sql("SELECT value FROM secrets").scalars()
            made.append(f"INSERT INTO secrets VALUES ('tickets', '{secret}')")

    upgrade_by_migrations = migrate._upgrade
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "_upgrade", upgrade)
        yield upgrade_by_migrations


@pytest.fixture
def full_disk():
    """Return a context in which this process can write to no file, as on a full disk; all that is there can be read."""

    @contextmanager
    def full():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write fails, and does not end us
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)

    return full


@pytest.fixture
def cluster():
    return PAIR


@pytest.fixture
def workload():
    rows = tuple(
        MessageCalls(
            message=Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=4),
            calls_per_step=calls,
        )
        for size, calls in ((SMALL, 10.0), (LARGE, 1.0))
    )
    return Workload(name="w", messages=rows, provenance=Provenance(source="test"))


@pytest.fixture
def landscape():
    """Small messages like tree/ll (2x), large ones ring/simple with 16 channels (1.2x); the rest loses."""

    def time_of(setting, message, _number):
        small = message.size_bytes == SMALL
        default_us = 20.0 if small else 1000.0
        if setting.algorithm is None:
            return default_us
        if small:
            return 10.0 if (setting.algorithm, setting.protocol) == (Algorithm.TREE, Protocol.LL) else 40.0
        if (setting.algorithm, setting.protocol) != (Algorithm.RING, Protocol.SIMPLE):
            return 3000.0
        return 1200.0 - 20 * min(setting.channels or 4, 18) if (setting.channels or 4) <= 18 else 1000.0

    return time_of
